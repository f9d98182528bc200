"""Tenants of the simulated world at their quotas: which they have, and that they do not pass them.

Judges dram by which slabs a tenant was given or had something read into, disk by the catalog.
"""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from kvd.core.disk_events import Committed
from kvd.core.events import Event
from kvd.core.quotas import Quota, promised_bytes_max
from kvd.core.state import CoreConfig
from kvd.limits import PAGE_BYTES
from kvd.testing.oracles import require

if TYPE_CHECKING:
    from kvd.testing.world import World

SEEDS_WITH = 0.4  # Of all.


def draw_quotas(seed: int, starts: int, config: CoreConfig, tenants: tuple[str, ...]) -> dict:
    """Return quotas by tenant; each start of a daemon may find others, as its operator wants."""
    if Random(f"{seed} quotas").random() >= SEEDS_WITH:
        return {}  # Drawn apart, so that all else of a seed is the same with and without.
    rng, quotas = Random(f"{seed} {starts}"), {}
    slabs, ssd_bytes = config.slab_count, 0
    if config.ssd is not None:
        ssd_bytes = promised_bytes_max(config.ssd, config.ssd.segments_max)
    for tenant in tenants[: rng.choice((1, 1, 2))]:
        dram = rng.randint(1, max(1, slabs // 2)) * config.slab_bytes
        disk = int(rng.choice((0, 0.2, 0.5)) * ssd_bytes)
        quota = rng.choice((Quota(dram), Quota(dram, disk), Quota(None, disk)))
        quotas[tenant] = quota if config.ssd is not None else Quota(dram)
    return quotas


class Sharing:
    def __init__(self, world: "World") -> None:
        self.world, self.state = world, world.state
        self._quotas = world.state.config.quotas
        # What a catalog of before may hold beyond a quota that was lowered since.
        self._excess = self._on_disk() if self._quotas else Counter()
        if any(self._excess[tenant] > most for tenant, most in self._ssd_quotas()):
            world.saw("a quota below what is on disk")

    def _ssd_quotas(self) -> list[tuple[str, int]]:
        every = ((tenant, quota.ssd_bytes) for tenant, quota in self._quotas.items())
        return [(tenant, most) for tenant, most in every if most is not None]

    def after(self, event: Event) -> None:
        """Require that nobody holds more than its quota."""
        if not self._quotas:
            return
        self._check_slabs()
        # A commit that failed may be in the catalog, and what it named is not the core's any more.
        if isinstance(event, Committed) and not self.world.tier.faults_told:
            self._check_disk()

    def _check_slabs(self) -> None:
        held: Counter = Counter()
        for slab in self.state.slabs:
            held.update(self.world.memory.tenants.get(slab, ()))
        for tenant, quota in self._quotas.items():
            if quota.dram_bytes is not None:
                bytes_held = held[tenant] * self.state.config.slab_bytes
                within = bytes_held <= quota.dram_bytes
                require(within, f"quota: {tenant} has {bytes_held} of {quota.dram_bytes} in dram")

    def _check_disk(self) -> None:
        held = self._on_disk()
        for tenant, most in self._ssd_quotas():
            before = max(most, self._excess[tenant])
            within = held[tenant] <= before
            require(within, f"quota: {tenant} has {held[tenant]} of {before} on disk")
            self._excess[tenant] = held[tenant]

    def _on_disk(self) -> Counter:
        held, trees, index = Counter(), self.state.index.trees_by_key, self.state.index
        for key, row in self.world.media.catalog.rows.items():
            tree = trees.get((key.keyspace, key.lane))
            known = None if tree is None else tree.rows.get(key.chain)
            if known is not None and index.generation[known] != row.generation:
                continue  # Replaced: its place is held by nobody until the catalog hears of it.
            fill = self.world.memory.find_fill(row.generation, key.chain)
            held[fill.tenant] += sum(place.count for place in row.places) * PAGE_BYTES
        return held

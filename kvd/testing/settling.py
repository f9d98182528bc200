"""The end of a simulated world: when nobody acts any more, everything is given back.

And after it: every tenant can store again, whatever the dead have left behind.
"""

from typing import TYPE_CHECKING

import numpy as np

from kvd.clock import NS_PER_S
from kvd.core.effects import Reserved
from kvd.core.events import LookupWanted, ReserveWanted, SealWanted
from kvd.core.quotas import Quota
from kvd.core.transitions import SlabState, StripState
from kvd.identity import chain_digests
from kvd.limits import PAGE_BYTES
from kvd.testing.lives import begin_day
from kvd.testing.memory import Fill, Strip
from kvd.testing.oracles import require
from kvd.types import CLASS_COUNT, Lane

if TYPE_CHECKING:
    from kvd.testing.client import Client
    from kvd.testing.world import World

DURABLE_NS = 20 * NS_PER_S
STORE_TRIES, STORE_EVERY_NS = 100, NS_PER_S // 4


def settle(world: "World", tenants: tuple[str, ...]) -> None:
    """End all sessions, then all processes; require that both leave nothing behind."""
    world.stopped = True
    world.operator.stop()
    if world.tier is not None:
        world.conditions.weather.calm_down()
    lingering = world.rng.random() < 0.5
    for client in list(world.clients.values()):
        client.stop(gone=not lingering)
    _rest(world)
    _require_quiet(world)
    for tenant in tenants:
        _store(world, tenant)
    for client in world.clients.values():
        client.stop(gone=True)
    _rest(world)
    _require_quiet(world)
    _require_clean(world)
    if world.tier is not None:
        _require_saved(world)
        begin_day(world)
        bounded = world.ssd.daily_write_bytes  # What waited for this day may use it up.
        for tenant in tenants if not bounded else ():
            # At a quota of disk, what is there may be worth more.
            if world.state.config.quotas.get(tenant, Quota()).ssd_bytes is None:
                _store(world, tenant, durable=True)
    for tenant in tenants:
        _store(world, tenant)


def _rest(world: "World") -> None:
    """Let all bounds pass: of leases, quarantine, reservations, recalls, failed slabs."""
    limits = world.limits
    bounds_ns = limits.lease_ttl_ns + limits.quarantine_ns + limits.reservation_ttl_ns
    bounds_ns += limits.recall_ns + limits.read_ns + limits.probe_ns
    world.advance_until(world.now_ns + bounds_ns + 8 * NS_PER_S)


def _require_quiet(world: "World") -> None:
    state = world.state
    for name in ("reservations", "leases", "pending", "delivering", "limbo", "clears"):
        require(not getattr(state, name), f"I11: {name} are left: {getattr(state, name)}")
    left = [session for session in state.sessions if session > 0]
    require(not left, f"I11: sessions are left: {left}")
    require(not world.wishes.open and not world.deliveries, "I10: wishes are left")
    world.operator.require_answered()
    kept = state.pins and state.draining  # An operator's: a daemon that drains takes no unpin.
    require(kept or not state.index.pins.any(), "I4: pins are left")


def _require_clean(world: "World") -> None:
    """Require that without any process every byte is free or holds something to be read."""
    state = world.state
    require(not state.quarantine, f"I11: quarantined: {state.quarantine}")
    for strip_state in (StripState.FILLING, StripState.FREEING, StripState.QUARANTINED):
        require(not state.bytes_in(strip_state), f"I3: bytes are left {strip_state}")
    left = state.bytes_in(StripState.FREE) + state.bytes_in(StripState.READY)
    require(left == state.capacity_bytes, f"I3: {left} of {state.capacity_bytes} bytes")
    own = [s.owner for s in state.slabs.values() if s.state == SlabState.OWNED]
    require(all(owner < 0 for owner in own), f"I11: slabs of {own}")
    # Of writers before a restart nobody hears any more.
    idle = all(
        s.state in (SlabState.IDLE, SlabState.OWNED) or (not s.owner and s.readable_bytes)
        for s in state.slabs.values()
    )
    require(idle, f"slabs are left: {[(s.id, s.state) for s in state.slabs.values()]}")
    whole = len(state.slabs) == state.config.slab_count
    require(whole or state.draining, f"{len(state.slabs)} of {state.config.slab_count} slabs")


def _require_saved(world: "World") -> None:
    """Require that the tier is well again, fits its budget, and waits for nothing."""
    count, tier = len(world.media.segments), world.tier
    require(count <= tier.config.segments_max, f"I8: {count} segments are left")
    require(tier.is_idle, f"the tier is never idle: {len(tier.reading)} reads")
    if not world.state.draining:
        require(world.state.ssd.fault is None, f"degraded for ever: {world.state.ssd.fault}")


def _store(world: "World", tenant: str, *, durable: bool = False) -> None:
    """Require that a new session gets one chunk stored before long, and if asked for on disk."""
    if world.state.draining:
        return
    client = world.join(tenant)
    text = [world.rng.randrange(1000) for _ in range(4)]
    chain, lane = chain_digests(text, 4), world.lanes[0]
    sizes = np.full((1, CLASS_COUNT), PAGE_BYTES, np.uint32)
    for _ in range(STORE_TRIES):
        reserved = _answer(
            client,
            lambda request: ReserveWanted(
                request, client.session, 1, lane, b"", chain, sizes, durable
            ),
        )
        if isinstance(reserved, Reserved) and reserved.reservation:
            break
        world.advance_until(world.now_ns + STORE_EVERY_NS)
    slabs = [(slab.id, slab.state, slab.tenant) for slab in world.state.slabs.values()]
    require(isinstance(reserved, Reserved), f"{tenant} cannot store: {reserved}")
    require(reserved.reservation, f"{tenant} gets no room ({reserved.reason!r}): {slabs}")
    fill = _filled(client, lane, chain, reserved)
    roots = np.array([[fill.root(c) for c in range(CLASS_COUNT)]], np.uint64)
    deadline_ns = world.now_ns + DURABLE_NS if durable else 0
    fill.sealed = world.steps + 1  # It may be saved before the answer.
    sealed = _answer(
        client,
        lambda request: SealWanted(
            request, client.session, reserved.reservation, 0, sizes, roots, 1, True, deadline_ns
        ),
    )
    require(sealed.durable or not durable, f"{tenant} stored a chunk, and it is not on disk")
    found = _answer(
        client,
        lambda request: LookupWanted(request, client.session, 1, (lane,), chain, False),
    )
    require(found.counts == (1, 1, 1), f"{tenant} stored a chunk and found {found}")
    client.stop(gone=True)


def _filled(client: "Client", lane: Lane, chain: bytes, reserved: Reserved) -> Fill:
    memory = client.world.memory
    keyspace, _ = client.world.state.sessions[client.session].keyspaces[1]
    owner = (client.tenant, keyspace, lane)
    fill = memory.begin_fill(owner, chain, reserved.generation)
    fill.sizes = (PAGE_BYTES,) * CLASS_COUNT
    for c in range(CLASS_COUNT):
        slab, offset = int(reserved.slabs[0, c]), int(reserved.offsets[0, c])
        strip = Strip(slab, memory.slabs[slab], offset, PAGE_BYTES, fill, c)
        strip.write(0, strip.sectors)
    return fill


def _answer(client: "Client", make: object) -> object:
    """Ask, and return the answer, if need be after some time."""
    answers: list[object] = []
    client.ask(make, lambda outcome: None, note=answers.append)
    while not answers:
        client.world.advance()
    return answers[0]

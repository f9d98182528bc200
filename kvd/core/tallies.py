"""What one lookup and one fetch add to the counts: strips asked for, and in which tier they were.

Sums of columns only: nothing here is done for each chunk.
"""

import numpy as np

from kvd.core.counts import DRAM, SSD, Counts
from kvd.core.effects import WHOLE, Promise, Shortfall
from kvd.core.events import Delivery, FetchWanted, LookupWanted
from kvd.core.load import Plan
from kvd.core.state import State
from kvd.limits import DIGEST_BYTES

_DELIVERIES = {Delivery.MAP: "map", Delivery.BYTES: "bytes"}


def on_lookup(counts: Counts, tenant: str, event: LookupWanted, found: tuple[int, ...]) -> None:
    """Count a lookup's answer. It bisects, so it does not know in which tier a strip is."""
    lanes = len(event.lanes)
    asked = len(event.chain) // DIGEST_BYTES * lanes
    counts.lookups[tenant] += 1
    for plane_class, count in enumerate(found):
        key = tenant, plane_class
        counts.lookup_requested_strips[key] += asked
        counts.lookup_hit_strips[key] += count * lanes
        counts.lookup_missed_strips[key] += asked - count * lanes


def on_fetch(
    state: State, tenant: str, event: FetchWanted, planned: Plan, promise: Promise
) -> None:
    """Count a fetch as its promise is given: all it asked for, every class and lane of it.

    A hit of dram is promised and was there; one of ssd is promised and has to be read, by whoever
    asked first. What dram has not is asked of ssd, where there is one.
    """
    counts, lanes = state.counts, len(event.lanes)
    asked = len(event.chain) // DIGEST_BYTES * lanes
    missing = state.index.missing.reshape(-1)
    for plane_class in range(event.class_count):
        promised, from_disk = promise.counts[plane_class] * lanes, 0
        if promise.ready[plane_class] != WHOLE:
            from_disk = int(np.count_nonzero(missing[planned.strips[plane_class]]))
        _count(counts, (tenant, DRAM, plane_class), asked, promised - from_disk)
        if state.ssd is not None:
            _count(counts, (tenant, SSD, plane_class), asked - promised + from_disk, from_disk)
        sizes = (int(lane.sizes[plane_class].sum()) for lane in promise.lanes)
        counts.fetch_promised_bytes[tenant, plane_class] += sum(sizes)
    counts.fetches[tenant, _DELIVERIES[event.delivery]] += 1
    if promise.reason != Shortfall.NONE:
        counts.fetch_shortfalls[tenant, promise.reason] += 1


def _count(counts: Counts, key: tuple[str, str, int], asked: int, hit: int) -> None:
    counts.fetch_requested_strips[key] += asked
    counts.fetch_hit_strips[key] += hit
    counts.fetch_missed_strips[key] += asked - hit

"""What happened, counted: plain numbers that only grow, with no part in any decision.

A field is a family of counters, by the labels that its line names, in their order. The metrics of
`kvd/observe` are named after the fields. What a line calls a strip is one class of one chunk of
one lane; `tier` is dram or ssd.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from kvd.types import CLASS_COUNT

DRAM, SSD = "dram", "ssd"
# Why a strip went, besides the reasons of a story: a put of its chunk, of another generation.
REPLACED = "replaced"


class Shed(StrEnum):
    """Why a chunk stays in dram only."""

    DEGRADED = "degraded"
    DAILY_BOUND = "daily_bound"
    QUOTA = "quota"  # Its tenant has as much on disk as it may, and nothing colder.
    CONDEMNED = "condemned"
    UNFOUNDED = "unfounded"  # Its parent is not on disk, nor on its way.
    TOO_LARGE = "too_large"  # For a segment.


def _family() -> Counter:
    return field(default_factory=Counter)


@dataclass(slots=True)
class Counts:
    # Fetches, by the answer: what was refused is not in them, what was put off is once.
    fetches: Counter = _family()  # tenant, delivery
    fetch_requested_strips: Counter = _family()  # tenant, tier, class
    fetch_hit_strips: Counter = _family()  # tenant, tier, class
    fetch_missed_strips: Counter = _family()  # tenant, tier, class
    fetch_promised_bytes: Counter = _family()  # tenant, class
    fetch_shortfalls: Counter = _family()  # tenant, reason
    fetch_cuts: Counter = _family()  # tenant
    fetches_postponed: Counter = _family()  # tenant
    deliveries: Counter = _family()  # tenant, outcome
    delivered_bytes: Counter = _family()  # tenant
    lookups: Counter = _family()  # tenant
    lookup_requested_strips: Counter = _family()  # tenant, class
    lookup_hit_strips: Counter = _family()  # tenant, class
    lookup_missed_strips: Counter = _family()  # tenant, class
    prefetches: Counter = _family()  # tenant
    clears: Counter = _family()  # tenant
    # Puts.
    reserved_chunks: Counter = _family()  # tenant, state
    not_admitted_chunks: Counter = _family()  # tenant, reason
    sealed_chunks: Counter = _family()  # tenant, state
    sealed_bytes: Counter = _family()  # tenant, class
    reservations_opened: Counter = _family()  # tenant
    reservations_ended: Counter = _family()  # tenant, how
    # Who is there, and what he holds.
    sessions_opened: Counter = _family()  # tenant
    sessions_ended: Counter = _family()  # tenant
    leases_granted: Counter = _family()  # tenant
    leases_ended: Counter = _family()  # tenant, how
    leases_lost: Counter = _family()  # tenant; for want of progress
    slabs_made: Counter = _family()
    slabs_failed: Counter = _family()
    slabs_recalled: Counter = _family()
    # Taken over from the daemon before.
    adopted_slabs: Counter = _family()
    adopted_strips: Counter = _family()  # class
    adopted_bytes: Counter = _family()  # class
    # What left.
    evicted_strips: Counter = _family()  # tenant, tier, class, reason
    evicted_bytes: Counter = _family()  # tenant, tier, class, reason
    condemned_chunks: Counter = _family()  # tenant, reason
    # The ssd tier.
    ssd_written_strips: Counter = _family()  # class
    ssd_written_bytes: Counter = _family()  # class
    ssd_write_faults: Counter = _family()  # kind
    ssd_durable_strips: Counter = _family()  # class; those that only moved are not in it
    ssd_moved_strips: Counter = _family()  # class
    ssd_read_strips: Counter = _family()  # class
    ssd_read_bytes: Counter = _family()  # class; of strips that are whole
    ssd_read_faults: Counter = _family()  # kind
    ssd_commits: Counter = _family()
    ssd_commit_faults: Counter = _family()  # kind
    ssd_durable_chunks: Counter = _family()
    ssd_shed_chunks: Counter = _family()  # reason
    ssd_segments_chosen: Counter = _family()
    ssd_segments_cleared: Counter = _family()
    ssd_segments_refused: Counter = _family()
    ssd_budget_shrinks: Counter = _family()
    ssd_degradations: Counter = _family()  # directory
    ssd_recoveries: Counter = _family()  # directory
    ssd_recovered_chunks: Counter = _family()
    ssd_left_out_chunks: Counter = _family()


def add_by_class(family: Counter, classes: np.ndarray, amounts: np.ndarray | None = None) -> None:
    """Count a column of classes, each once or by its amount."""
    sums = np.bincount(classes, amounts, CLASS_COUNT)
    for plane_class in range(CLASS_COUNT):
        if sums[plane_class]:
            family[plane_class] += int(sums[plane_class])

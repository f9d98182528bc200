"""The invariants of a part of the state, as a daemon in service can afford: some at every tick.

A window of rows, one slab, one session, one segment: each turn looks at the next. What needs all
rows at once, only `invariants` sees.
"""

from itertools import islice
from typing import TypeVar

import numpy as np

from kvd.core.index import NO_ROW, OF_LIVE_ROWS, Index
from kvd.core.ssd import Segment
from kvd.core.state import Session, Slab, State
from kvd.core.transitions import SegmentLife, SlabState
from kvd.limits import PAGE_BYTES
from kvd.types import CLASS_COUNT

ROWS = 256
SHARE = 8  # One row of so many is looked at one by one, another one in each round.
CHILDREN = 64  # Of a row: of one with more, they are not counted again.
_Owner = TypeVar("_Owner", Session, Slab, Segment)


def check_some(state: State, turn: int) -> None:
    """Raise AssertionError naming the invariant that does not hold in what is seen this turn."""
    index = state.index
    rounds, at = divmod(turn, -(-len(index.parent) // ROWS))
    window = np.arange(at * ROWS, min((at + 1) * ROWS, len(index.parent)))
    there = np.fromiter((index.chain[row] is not None for row in window.tolist()), bool)
    _check_gone(index, window[~there])
    live = window[there]
    _check_rows(state, live)
    few = live[rounds % SHARE :: SHARE]
    _check_places(state, few)
    _check_links(index, few)
    if (slab := _next(state.slabs, turn)) is not None:
        _check_slab(slab)
    if (session := _next(state.sessions, turn)) is not None:
        _check_session(state, session)
    if state.ssd is not None and (segment := _next(state.ssd.segments, turn)) is not None:
        _check_segment(segment, state.ssd.config.segment_bytes)
    assert state.capacity_bytes <= state.config.dram_bytes, "I3: more dram than configured"


def _next(owners: dict[int, _Owner], turn: int) -> _Owner | None:
    return next(islice(owners.values(), turn % len(owners), None)) if owners else None


def _check_gone(index: Index, rows: np.ndarray) -> None:
    for name in (*OF_LIVE_ROWS, "pins", "reads"):
        assert not getattr(index, name)[rows].any(), f"I11: {name} of a row that is gone"


def _check_rows(state: State, rows: np.ndarray) -> None:
    """I2, I4, I6: classes stand on each other and on the parent's; what is held is present."""
    index = state.index
    present = index.present[rows]
    held = (index.slab[rows] != 0) | (index.segment[rows] != 0)
    assert (present == held).all(), "I6: present nowhere"
    assert present[:, 0].all(), "I6: a row without an anchor"
    assert (present[:, 1:] <= present[:, :-1]).all(), "I6: a class without the one before it"
    parents = index.parent[rows]
    behind = parents != NO_ROW
    above = parents[behind]
    assert (index.tree_id[above] == index.tree_id[rows[behind]]).all(), "I6: a parent elsewhere"
    assert (present[behind] <= index.present[above]).all(), "I6: a parent has less"
    depth = np.zeros(len(rows), index.depth.dtype)
    depth[behind] = index.depth[above] + 1
    assert (index.depth[rows] == depth).all(), "I6: depth"
    generations = index.generation[rows]
    assert (generations > 0).all(), "I2: no generation"
    assert (generations <= state.generation).all(), "I2: a generation to come"
    for name in ("pins", "reads", "in_flight", "children"):
        assert (getattr(index, name)[rows] >= 0).all(), f"I4: less than no {name}"
    assert (present | (index.pins[rows] == 0)).all(), "I4: a strip is held, and not present"
    coming = index.in_flight[rows] != 0
    assert ((index.missing[rows] != 0) <= coming).all(), "I1: pieces that nobody reads"
    assert (coming <= (index.slab[rows] != 0)).all(), "I4: read into no place"


def _check_places(state: State, rows: np.ndarray) -> None:
    """I3, I7: a strip lies within its slab, in no free place, and in a segment of its class."""
    index = state.index
    for row, plane_class in np.argwhere(index.slab[rows]).tolist():
        strip = rows[row], plane_class
        slab = state.slabs.get(int(index.slab[strip]))
        assert slab is not None, "I3: a strip in a slab that is gone"
        begin, size = int(index.offset[strip]), int(index.size[strip])
        assert size > 0 and begin + size <= slab.size, "I3: a strip that leaves its slab"
        assert slab.extents.is_taken(begin, size), "I3, I4: a strip in a free place"
    if state.ssd is None:
        return
    for row, plane_class in np.argwhere(index.segment[rows]).tolist():
        strip = rows[row], plane_class
        segment = state.ssd.segments.get(int(index.segment[strip]))
        assert segment is not None and segment.plane_class == plane_class, "I7: another's segment"
        end = int(index.page[strip]) * PAGE_BYTES + int(index.size[strip])
        assert end <= segment.end, "I7: a strip behind the end of its segment"
        assert segment.life in (SegmentLife.OPEN, SegmentLife.FULL, SegmentLife.CLEARING), "I7"


def _check_links(index: Index, rows: np.ndarray) -> None:
    for row in rows.tolist():
        linked = index.children_of(row, CHILDREN)
        if len(linked) < CHILDREN:
            counted = index.present[linked].sum(axis=0, dtype=np.int64)
            assert (index.parent[linked] == row).all(), "I6: another's child"
            assert (counted == index.children[row]).all(), "I6: children"
        top = index.top_class(row)
        last = not index.children[row, top] and not index.segment[row, top]
        assert (row in index.frontier) == last, "the frontier"
        for plane_class in range(CLASS_COUNT):
            strip = row, plane_class
            copy = index.slab[strip] and index.segment[strip] and not index.in_flight[strip]
            assert (row * CLASS_COUNT + plane_class in index.copies) == bool(copy), "copies"


def _check_slab(slab: Slab) -> None:
    """I3: every byte is in exactly one state."""
    free = slab.extents
    counted = sum(slab.bytes_by_state.values()) + free.free_bytes
    assert slab.state == SlabState.TOUCHING or counted == slab.size, f"I3: slab {slab.id}"
    assert min(slab.bytes_by_state.values()) >= 0, f"I3: slab {slab.id} has less than nothing"
    assert free.free_bytes == sum(free.sizes), f"I3: free bytes of slab {slab.id}"


def _check_session(state: State, session: Session) -> None:
    """I9, I11: what it owns is there, and within its bounds."""
    limits = state.config.limits
    leases = [state.leases[lease] for lease in session.leases]
    assert sum(lease.size_bytes for lease in leases) == session.lease_bytes, "I9: leased bytes"
    assert session.lease_bytes <= limits.lease_bytes_per_session_max, "I9: leased bytes"
    assert len(leases) <= limits.leases_per_session_max, "I9: leases"
    assert all(lease.session == session.id for lease in leases), "I11: another's lease"
    assert len(session.requests) <= limits.requests_per_session_max, "I9: requests"
    for number in session.reservations:
        assert state.reservations[number].session == session.id, "I11: another's reservation"
    for number in session.slabs_owned:
        assert state.slabs[number].owner == session.id, "I11: a slab of two writers"


def _check_segment(segment: Segment, segment_bytes: int) -> None:
    """I3, I8: what lives in a segment fits in it."""
    assert segment.live_bytes >= 0 and segment.live_bytes + PAGE_BYTES <= segment.end, "I3"
    assert segment.end <= segment_bytes, f"I8: segment {segment.id} is longer than its file"
    assert segment.writing >= 0 and segment.held >= 0, f"I7: segment {segment.id}"

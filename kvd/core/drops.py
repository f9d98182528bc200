"""How strips leave: a copy from dram, a class of a chunk from everywhere, a chunk from the index.

Whatever the catalog may know of it is noted for its next commit.
"""

import numpy as np

from kvd.core.counts import DRAM, REPLACED, SSD
from kvd.core.index import NO_ROW, Saving, tenant_of
from kvd.core.state import State, move_bytes
from kvd.core.story import Note, Why
from kvd.core.transitions import StripState
from kvd.types import CLASS_COUNT, Extent, PlaneClass


def note(state: State, row: int, why: Why, plane_class: int = 0) -> None:
    """Remember why a chunk is not whole any more."""
    index = state.index
    tree, digest = index.trees[index.tree_id[row]], index.chain[row]
    assert digest is not None
    state.story.note((tree.digest, tree.lane, digest), Note(state.now_ns, why, plane_class))


def extent_of(state: State, row: int, plane_class: int) -> Extent:
    index = state.index
    slab = int(index.slab[row, plane_class])
    assert slab, (row, plane_class)
    return Extent(slab, int(index.offset[row, plane_class]), int(index.size[row, plane_class]))


def note_gone(state: State, row: int, plane_class: int, tier: str, why: Why | str) -> None:
    """Count a strip that leaves a tier."""
    index, counts = state.index, state.counts
    key = tenant_of(index, row), tier, plane_class, why
    counts.evicted_strips[key] += 1
    counts.evicted_bytes[key] += int(index.size[row, plane_class])


def free_copy(state: State, row: int, plane_class: int, why: Why = Why.ROOM) -> int:
    """Give up a strip's place in dram and return its slab; the strip is on disk, or going."""
    index = state.index
    assert not index.reads[row, plane_class], "I4: a lease names it"
    assert not index.missing[row, plane_class], "a hand writes into it"
    extent = extent_of(state, row, plane_class)
    move_bytes(state, extent, StripState.READY, StripState.FREE)
    index.slab[row, plane_class] = 0
    index.offset[row, plane_class] = 0
    index.copies.discard(row * CLASS_COUNT + plane_class)
    note_gone(state, row, plane_class, DRAM, why)
    return extent.slab


def drop_class(state: State, row: int, plane_class: int, why: Why) -> int:
    """Take the row's least significant strip from every tier; return its slab, 0 for none."""
    index = state.index
    note(state, row, why, plane_class)
    assert index.top_class(row) == plane_class
    assert not index.children[row, plane_class] and not index.pins[row, plane_class]  # I4, I6
    slab = free_copy(state, row, plane_class, why) if index.slab[row, plane_class] else 0
    if index.segment[row, plane_class]:
        _leave_segment(state, row, plane_class, why)
    index.present[row, plane_class] = False
    if state.ssd is not None and row in state.ssd.queue:
        left = index.present[row] & (index.segment[row] == 0)
        state.ssd.lessen(row, int(index.size[row][left].sum(dtype=np.int64)))
    parent = int(index.parent[row])
    if parent != NO_ROW:
        index.children[parent, plane_class] -= 1
        # The value of a chunk is at least that of what was built on it.
        index.heat[parent] = max(index.heat[parent], index.heat[row])
    index.place_frontier(row)
    if parent != NO_ROW:
        index.place_frontier(parent)
    if plane_class == PlaneClass.ANCHOR:
        forget(state, row)
    return slab


def _leave_segment(state: State, row: int, plane_class: int, why: Why) -> None:
    index, ssd = state.index, state.ssd
    assert ssd is not None
    segment = ssd.segments[int(index.segment[row, plane_class])]
    size = int(index.size[row, plane_class])
    segment.live_bytes -= size
    assert segment.live_bytes >= 0 and not index.new_segment[row, plane_class], segment.id
    ssd.used[tenant_of(index, row)] -= size
    index.segment[row, plane_class] = index.page[row, plane_class] = 0
    note_gone(state, row, plane_class, SSD, why)
    if index.cataloged[row]:
        ssd.hold(row, segment)
        ssd.journal.changed[row] = int(index.generation[row])


def forget(state: State, row: int) -> None:
    """Take a row without strips out of the index, and have the catalog forget it."""
    index, ssd = state.index, state.ssd
    if ssd is not None:
        ssd.unqueue(row)
        ssd.journal.changed.pop(row, None)
        ssd.journal.released += ssd.held.pop(row, ())
        uncatalog(state, row)
    index.forget_row(row)


def hold_segments(state: State, row: int) -> None:
    """Leave the places of a replaced row's strips alone until the catalog knows the new ones."""
    index, ssd = state.index, state.ssd
    on_disk = np.flatnonzero(index.segment[row])
    if ssd is None or not len(on_disk):
        return
    ssd.used[tenant_of(index, row)] -= int(index.size[row, on_disk].sum(dtype=np.int64))
    for plane_class in on_disk.tolist():
        segment = ssd.segments[int(index.segment[row, plane_class])]
        segment.live_bytes -= int(index.size[row, plane_class])
        ssd.hold(row, segment)
        note_gone(state, row, plane_class, SSD, REPLACED)
    index.segment[row] = index.page[row] = 0
    ssd.journal.changed.pop(row, None)


def condemn(state: State, row: int, why: Why) -> None:
    """Offer a chunk to nobody, not even after a restart; it stays until it goes or is replaced."""
    note(state, row, why)
    index = state.index
    if not index.condemned[row]:
        index.condemned[row] = True
        state.counts.condemned_chunks[tenant_of(index, row), why] += 1
    uncatalog(state, row)


def uncatalog(state: State, row: int) -> None:
    """Have the next commit drop a row, if the catalog may know it; what it held is free then."""
    index, ssd = state.index, state.ssd
    if ssd is not None and index.cataloged[row]:
        digest = index.chain[row]
        assert digest is not None
        ssd.journal.dropped[int(index.tree_id[row]), digest] = None
        ssd.journal.released += ssd.held.pop(row, ())
        index.cataloged[row] = False


def closure_of(state: State, row: int, plane_class: int) -> list[int] | None:
    """Return the row and all behind it that have the class, parents first; None if one is held."""
    index = state.index
    found, stack = [], [row]
    while stack:
        at = stack.pop()
        if not index.present[at, plane_class]:
            continue
        if is_held(state, at, plane_class):
            return None
        found.append(at)
        stack += index.children_of(at)
    return found


def is_held(state: State, row: int, plane_class: int) -> bool:
    """Return whether anybody holds a class of the row, from this one on (I4)."""
    index = state.index
    held = index.pins[row, plane_class:].any() or index.reads[row, plane_class:].any()
    return bool(
        held or index.missing[row, plane_class:].any() or index.saving[row] == Saving.WRITING
    )


def drop_all(state: State, rows: list[int], plane_class: int, why: Why) -> None:
    """Drop the class, and those that stand on it, of rows given parents first."""
    index = state.index
    for row in reversed(rows):
        for each in range(CLASS_COUNT - 1, plane_class - 1, -1):
            if index.present[row, each]:
                drop_class(state, row, each, why)


def leave_disk(state: State, rows: list[int], why: Why) -> None:
    """Take rows, given parents first, off the disk; of what dram has, all without holes stays."""
    index = state.index
    kept: dict[int, int] = {}  # How many leading classes stay.
    for row in rows:
        leading = int(np.logical_and.accumulate(index.slab[row] != 0).sum())
        kept[row] = min(leading, kept.get(int(index.parent[row]), CLASS_COUNT))
    for row in reversed(rows):
        for plane_class in range(CLASS_COUNT - 1, -1, -1):
            if plane_class < kept[row]:
                _keep_in_dram(state, row, plane_class, why)
            elif index.present[row, plane_class]:
                drop_class(state, row, plane_class, why)
        if kept[row]:
            index.place_frontier(row)


def _keep_in_dram(state: State, row: int, plane_class: int, why: Why) -> None:
    if state.index.segment[row, plane_class]:
        _leave_segment(state, row, plane_class, why)
        state.index.copies.discard(row * CLASS_COUNT + plane_class)


def held_rows(state: State, plane_class: int, also: int = NO_ROW) -> np.ndarray:
    """Return bool by row: of which `closure_of` returns None, as something in it is held.

    What `also` stands on counts as held as well.
    """
    index = state.index
    held = (index.saving == Saving.WRITING) | (index.missing[:, plane_class:] != 0).any(axis=1)
    for counts in (index.pins, index.reads):
        held |= (counts[:, plane_class:] != 0).any(axis=1)
    held &= index.present[:, plane_class]
    if also != NO_ROW:
        held[also] = True
    above = index.parent[held]
    above = above[above != NO_ROW]
    for at in above[~held[above]].tolist():
        while at != NO_ROW and not held[at]:
            held[at] = True
            at = int(index.parent[at])
    return held

"""Commits: what the catalog is told, one transaction at a time, and what follows from each.

A chunk is committed only behind its parent, class by class, so what a restart finds has no holes.
"""

import numpy as np

from kvd.core.columns import row_columns, row_keys
from kvd.core.disk_effects import Commit, SegmentRecord
from kvd.core.disk_events import Committed
from kvd.core.drops import uncatalog
from kvd.core.index import NO_ROW, Saving
from kvd.core.save import displace, displace_strip, enqueue
from kvd.core.segments import find_ssd
from kvd.core.ssd import ROWS_MOST, CommitBatch, Journal, Segment, Ssd
from kvd.core.state import State
from kvd.core.transitions import SegmentLife
from kvd.errors import Fault, FaultKind
from kvd.types import CLASS_COUNT, SegmentState

GENERATIONS = 1 << 20  # Told at once, so that a put seldom waits for it.
# A commit needs room for a copy of every page that it changes, besides what is there. One that
# finds none is tried again with half as many rows, before the catalog counts as full.
ROWS_LEAST = 16
_ALL = (1 << CLASS_COUNT) - 1
_STATES = {SegmentLife.OPEN: SegmentState.OPEN, SegmentLife.FREE: SegmentState.FREE}


def commit_due(state: State) -> list[Commit]:
    """Tell the catalog all that there is to tell, unless it is still busy with the last time."""
    ssd = find_ssd(state)
    if ssd.commit is not None or state.now_ns < ssd.commit_at_ns:
        return []
    if ssd.map_full is not None:
        return _commit_drops(state)
    freed = [] if ssd.clearing is None else [ssd.clearing.segment]
    freed = [segment_id for segment_id in freed if _is_cleared(ssd, segment_id)]
    journal = ssd.journal
    rows, later = _committable(state)
    changed = [
        row for row, generation in journal.changed.items()
        if row not in journal.written and _is_told(state, row, generation)
    ]  # fmt: skip
    rows, untold = _few_enough(state, rows, changed)
    later += [row for row in untold if row in journal.written]
    unchanged = [row for row in untold if row not in journal.written]
    told = rows or freed or journal.dropped or journal.removed or journal.released
    if not (told or _needs_generations(state) or ssd.catalog_fault is not None):
        return []
    ssd.journal = Journal(
        written={row: journal.written.pop(row) for row in later},
        changed={row: journal.changed.pop(row) for row in unchanged},
    )
    return [_send(state, journal, np.array(rows, np.int64), freed)]


def _few_enough(
    state: State, written: list[int], changed: list[int]
) -> tuple[list[int], list[int]]:
    """Return the rows that one commit may have, and those for the next.

    What lost a class comes first, as that gives room: what was built on others before them. Of
    written rows, which are in order, parents come first. So neither leaves a hole.
    """
    most, depth = find_ssd(state).commit_rows_max, state.index.depth
    if len(written) + len(changed) <= most:
        return written + changed, []
    rows = [*sorted(changed, key=lambda row: -int(depth[row])), *written]
    return rows[:most], rows[most:]


def on_tick(state: State) -> None:
    """Call a catalog degraded that does not answer: nobody is to wait for it."""
    ssd = find_ssd(state)
    if ssd.commit is None or ssd.catalog_fault is not None:
        return
    if state.now_ns - ssd.commit.sent_ns >= state.config.limits.write_ns:
        ssd.catalog_fault = Fault(FaultKind.TIMEOUT, "the catalog does not answer")


def _needs_generations(state: State) -> bool:
    return state.generation + GENERATIONS // 2 >= find_ssd(state).generation_limit


def _is_cleared(ssd: Ssd, segment_id: int) -> bool:
    segment = ssd.segments[segment_id]
    if segment.life != SegmentLife.CLEARING:
        return False
    return not (segment.live_bytes + segment.held + segment.writing or ssd.is_read(segment_id))


def _commit_drops(state: State) -> list[Commit]:
    """The catalog's file is full: only what makes room in it goes through."""
    ssd = find_ssd(state)
    if not ssd.journal.dropped:
        if state.now_ns >= ssd.map_retry_ns:
            ssd.map_full, ssd.refill = None, True  # Perhaps it has room again.
        return []
    journal = Journal(dropped=ssd.journal.dropped, released=ssd.journal.released)
    ssd.journal.dropped, ssd.journal.released = {}, []
    return [_send(state, journal, np.zeros(0, np.int64), [])]


def _is_told(state: State, row: int, generation: int) -> bool:
    index = state.index
    if index.generation[row] != generation or not index.present[row].any():
        return False
    if index.condemned[row] and not index.cataloged[row]:
        return False  # Cleared: the catalog is not to hear of it again.
    if index.segment[row, 0]:
        return True
    uncatalog(state, row)  # Nothing of it is on disk any more, while it lives on in dram.
    return False


def _committable(state: State) -> tuple[list[int], list[int]]:
    """Return the written rows whose parents are durable, or are with them, and those that wait.

    A row waits for a parent that is still being written, to another drive perhaps; without one
    that can become durable in time it is written again, or not at all.
    """
    ssd, index = find_ssd(state), state.index
    written = np.array(list(ssd.journal.written), np.int64)
    rows, later, again, masks = [], [], [], {}
    for row in written[np.argsort(index.depth[written], kind="stable")].tolist():
        assert index.generation[row] == ssd.journal.written[row]
        parent = int(index.parent[row])
        allowed = _ALL if parent == NO_ROW else masks.get(parent, _mask(index.segment[parent]))
        allowed |= _mask(index.segment[row])  # What only moves stands on what it stood on.
        there = np.where(index.new_segment[row] != 0, index.new_segment[row], index.segment[row])
        whole = _mask(there)
        mask = whole & allowed
        saving = Saving.NONE if parent == NO_ROW else index.saving[parent]
        if index.condemned[row]:
            displace(state, row)
            continue
        if mask != whole and saving == Saving.WRITING and parent not in masks:
            later.append(row)
            continue
        if mask & 1:
            _cut(state, row, mask)
        if mask & 1 and index.new_segment[row].any():
            masks[row] = mask
            rows.append(row)
        else:  # Nothing of it may stand, or nothing new.
            displace(state, row)
            if saving != Saving.NONE:
                again.append(row)
    enqueue(state, again)
    return rows, later


def _cut(state: State, row: int, mask: int) -> None:
    """Leave out classes that would stand on nothing."""
    for plane_class in range(CLASS_COUNT):
        if not mask >> plane_class & 1 and state.index.new_segment[row, plane_class]:
            displace_strip(state, row, plane_class)


def _mask(segments: np.ndarray) -> int:
    """Return the leading classes that are somewhere, a bit each."""
    mask = 0
    for plane_class in range(CLASS_COUNT):
        if not segments[plane_class]:
            break
        mask |= 1 << plane_class
    return mask


def _send(state: State, journal: Journal, rows: np.ndarray, freed: list[int]) -> Commit:
    ssd, index = find_ssd(state), state.index
    # A row that only lost a class may be on its way to a new place: nothing is there yet (I7).
    written = np.array([row in journal.written for row in rows.tolist()], bool)
    new = (index.new_segment[rows] != 0) & written[:, None]
    segments = np.where(new, index.new_segment[rows], index.segment[rows])
    pages = np.where(new, index.new_page[rows], index.page[rows])
    journal.segments.update(dict.fromkeys(freed))
    generation = ssd.generation_limit
    if _needs_generations(state):
        generation = state.generation + GENERATIONS
    held = {row: ssd.held.pop(row) for row in rows.tolist() if row in ssd.held}
    batch = CommitBatch(
        ssd.next_batch(), journal, rows, segments, pages, freed, held, generation, state.now_ns
    )
    ssd.commit = batch
    index.cataloged[rows] = True
    trees = [index.trees[tree_id] for tree_id in np.unique(index.tree_id[rows]).tolist()]
    unknown = [tree for tree in trees if tree.digest not in ssd.keyspaces_known]
    journal.trees.update(dict.fromkeys(tree.id for tree in unknown))
    keyspaces = {tree.digest: (tree.keyspace, tree.tenant) for tree in unknown}
    assert all(keyspace is not None for keyspace, _ in keyspaces.values())
    return Commit(
        batch.id,
        row_columns(state, rows, segments, pages),
        row_keys(state, list(journal.dropped)),
        tuple(_record(ssd.segments[s], freed) for s in journal.segments if s in ssd.segments),
        tuple(journal.removed),
        tuple(keyspaces.values()),  # type: ignore[arg-type]
        generation,
        ssd.written,
    )


def _record(segment: Segment, freed: list[int]) -> SegmentRecord:
    recorded, epoch = _STATES.get(segment.life, SegmentState.FULL), segment.epoch
    if segment.life == SegmentLife.RECYCLING:  # Until its head is written it is what it was.
        recorded, epoch = SegmentState.FREE, epoch - 1
    elif segment.id in freed:
        recorded = SegmentState.FREE
    return SegmentRecord(segment.directory, segment.number, segment.plane_class, recorded, epoch)


def on_committed(state: State, event: Committed) -> None:
    ssd = find_ssd(state)
    batch, ssd.commit = ssd.commit, None
    assert batch is not None and batch.id == event.batch
    if event.fault is not None:
        state.counts.ssd_commit_faults[event.fault.kind] += 1
        _take_back(state, batch)
        if event.fault.kind == FaultKind.NO_SPACE and len(batch.rows) > ROWS_LEAST:
            ssd.commit_rows_max = len(batch.rows) // 2
        elif event.fault.kind == FaultKind.NO_SPACE:
            ssd.map_full = event.fault
            ssd.map_retry_ns = state.now_ns + state.config.limits.probe_ns
            for row in list(ssd.journal.written):
                displace(state, row)  # Or dram would be held by what may never be committed.
        else:
            ssd.catalog_fault = event.fault
            ssd.commit_at_ns = state.now_ns + state.config.limits.probe_ns
        return
    if ssd.catalog_fault is not None or ssd.map_full is not None:
        ssd.catalog_fault, ssd.map_full, ssd.refill = None, None, True
    state.counts.ssd_commits[()] += 1
    ssd.commit_rows_max = min(ssd.commit_rows_max + ssd.commit_rows_max // 8 + 1, ROWS_MOST)
    ssd.generation_limit = batch.generation_limit
    for tree_id in batch.journal.trees:
        ssd.keyspaces_known.add(state.index.trees[tree_id].digest)
    for at, row in enumerate(batch.rows.tolist()):
        if row in batch.journal.written:
            _settle_row(state, row, batch.segments[at], batch.pages[at])
    for segments in (*batch.held.values(), batch.journal.released):
        _release(ssd, segments)
    _note_rows(state, batch)
    for segment_id in batch.freed:
        segment = ssd.segments[segment_id]
        ssd.turn(segment, SegmentLife.FREE)
        segment.rows = []
        state.counts.ssd_segments_cleared[()] += 1


def _take_back(state: State, batch: CommitBatch) -> None:
    """Have the next commit tell all of this again: nobody knows how much of it was heard."""
    ssd, index = find_ssd(state), state.index
    newer, older = ssd.journal, batch.journal
    # What was dropped since is not put again: its rows are gone, or of another generation.
    rows = {
        row: generation for row, generation in older.written.items()
        if index.generation[row] == generation and index.saving[row] == Saving.WRITING
    }  # fmt: skip
    newer.written = {**rows, **newer.written}
    newer.changed = {**older.changed, **newer.changed}
    newer.dropped = {**older.dropped, **newer.dropped}
    newer.segments = {**older.segments, **newer.segments}
    newer.removed = {**older.removed, **newer.removed}
    newer.released = older.released + newer.released
    for row, segments in batch.held.items():
        if index.chain[row] is None:
            newer.released += segments  # Its drop is told next.
        else:
            ssd.held[row] = (*segments, *ssd.held.get(row, ()))


def _settle_row(state: State, row: int, segments: np.ndarray, pages: np.ndarray) -> None:
    """The strips of the row that were written are durable now."""
    ssd, index, counts = find_ssd(state), state.index, state.counts
    assert index.saving[row] == Saving.WRITING
    for plane_class in np.flatnonzero(index.new_segment[row]).tolist():
        size = int(index.size[row, plane_class])
        before = int(index.segment[row, plane_class])
        if before:
            ssd.segments[before].live_bytes -= size
        assert index.new_segment[row, plane_class] == segments[plane_class]
        family = counts.ssd_moved_strips if before else counts.ssd_durable_strips
        family[plane_class] += 1
        segment = ssd.segments[int(segments[plane_class])]
        segment.live_bytes += size
        segment.writing -= 1
        index.segment[row, plane_class] = segments[plane_class]
        index.page[row, plane_class] = pages[plane_class]
        index.new_segment[row, plane_class] = index.new_page[row, plane_class] = 0
        if index.slab[row, plane_class]:
            index.copies.add(row * CLASS_COUNT + plane_class)
    index.saving[row] = Saving.NONE
    index.place_frontier(row)
    counts.ssd_durable_chunks[()] += 1


def _note_rows(state: State, batch: CommitBatch) -> None:
    ssd = find_ssd(state)
    for segment_id in np.unique(batch.segments).tolist():
        if segment_id and segment_id in ssd.segments:
            rows = batch.rows[(batch.segments == segment_id).any(axis=1)]
            ssd.segments[segment_id].rows.append(rows)


def _release(ssd: Ssd, segments: tuple[int, ...] | list[int]) -> None:
    for segment_id in segments:
        ssd.segments[segment_id].held -= 1
        assert ssd.segments[segment_id].held >= 0

"""The index after a restart, from the catalog alone: whole columns at once, no segment is read.

What cannot stand is left out and dropped from the catalog: a chunk without its parent, a class
that its parent has not (I6), what lay in a file that is gone. So whatever the crash left, prefixes
have no holes. The catalog is told by commits like any other, again until it hears them.
"""

import numpy as np

from kvd.core.disk_effects import RowColumns
from kvd.core.disk_events import Recovered
from kvd.core.effects import Effect
from kvd.core.index import NO_ROW, Index, Tree
from kvd.core.keyspaces import named_tree
from kvd.core.segments import find_ssd, reopen_segment
from kvd.core.ssd import Segment, Ssd
from kvd.core.state import State
from kvd.core.transitions import SegmentLife
from kvd.limits import PAGE_BYTES, STRIP_BYTES_MAX
from kvd.policy.value import heat_at
from kvd.types import CLASS_COUNT, SegmentState

_DEPTH_ROUNDS_MAX = 32  # Each doubles what is looked at; no chain is longer.
_LIVES = {
    SegmentState.FREE: SegmentLife.FREE,
    SegmentState.OPEN: SegmentLife.OPEN,
    SegmentState.FULL: SegmentLife.FULL,
}


def on_recovered(state: State, event: Recovered) -> list[Effect]:
    """Take in what the catalog held; the state must be that of a daemon that has just begun."""
    ssd, index = find_ssd(state), state.index
    assert not index.row_count and not ssd.segments
    # A row above the mark should not be; but its generation is not given out again (I2).
    state.generation = max(event.generation, int(event.rows.generations.max(initial=0)))
    ssd.written = event.written
    ssd.keyspaces_known = set(event.keyspaces)
    ids = _take_segments(ssd, event)
    rows = event.rows
    trees, tree_of = _take_trees(state, event)
    named = _segment_ids(rows, ids, ssd.config.segment_bytes)
    gone = np.array([ids[name] for name in event.lost], np.uint32)
    segments = np.where(_astray(ssd, rows, named) | np.isin(named, gone), 0, named)
    parents, masks, depths = _stand(rows, trees, tree_of, segments)
    kept = np.flatnonzero(masks & 1)
    _fill(state, event, (tree_of, segments, parents, masks, depths), kept)
    left_out = (named != 0) & ~((masks[:, None] >> np.arange(CLASS_COUNT)) & 1 == 1)
    out = _note_dropped(state, rows, trees, tree_of, kept)
    ssd.journal.released += _hold(ssd, named[out][left_out[out]])
    for row in kept[masks[kept] != _mask(rows.page_counts[kept])].tolist():
        number = int(index.trees[tree_of[row]].rows[rows.keys.chain[row]])
        ssd.journal.changed[number] = int(index.generation[number])
        if held := _hold(ssd, named[row][left_out[row]]):
            ssd.held[number] = tuple(held)
    _count_segments(state)
    _spare_ends(ssd, rows, named)
    state.counts.ssd_recovered_chunks[()] += len(kept)
    state.counts.ssd_left_out_chunks[()] += len(rows.parents) - len(kept)
    return []


def _take_segments(ssd: Ssd, event: Recovered) -> dict[tuple[int, int], int]:
    """Return the id of each segment by directory and number.

    One without a file is full of nothing, so that it is cleared like others once the catalog names
    nothing in it; a free one only has to be removed.
    """
    ids = {}
    ssd.number = event.number
    for record in event.segments:
        ssd.segment_id += 1
        life, lost = _LIVES[record.state], (record.directory, record.segment) in event.lost
        if lost and life == SegmentLife.OPEN:
            life = SegmentLife.FULL
        # A free one may have got the next epoch already, without the catalog having heard of it.
        epoch = record.epoch + (life == SegmentLife.FREE)
        segment = Segment(
            ssd.segment_id, record.directory, record.segment, epoch, record.plane_class, life,
            spoiled=lost and life == SegmentLife.FREE,
        )  # fmt: skip
        ssd.add(segment)
        ssd.spoiled += segment.spoiled
        if life == SegmentLife.OPEN and not reopen_segment(ssd, segment):
            ssd.turn(segment, SegmentLife.FULL)
        ssd.number = max(ssd.number, record.segment)
        ids[record.directory, record.segment] = ssd.segment_id
    return ids


def _take_trees(state: State, event: Recovered) -> tuple[list[Tree | None], np.ndarray]:
    """Return the tree of each name, None where it cannot be, and the tree id of each row."""
    trees: list[Tree | None] = []
    for name in event.rows.keys.names:
        keyspace, tenant = event.keyspaces[name.keyspace]
        trees.append(named_tree(state, name, keyspace, tenant))
    ids = np.array([NO_ROW if tree is None else tree.id for tree in trees], np.int64)
    return trees, ids[event.rows.keys.name_of] if len(ids) else np.zeros(0, np.int64)


def _segment_ids(
    rows: RowColumns, ids: dict[tuple[int, int], int], segment_bytes: int
) -> np.ndarray:
    """Return u32[n, 3]: the core's segment of each strip, 0 where there is none, or no such place.

    What does not lie inside of its file could not be read.
    """
    known = sorted(ids)
    names = np.array([(d << 32) | number for d, number in known], np.uint64)
    numbers = np.array([ids[name] for name in known], np.uint32)
    wanted = (rows.directories.astype(np.uint64) << np.uint64(32)) | rows.segments
    ends = rows.pages.astype(np.int64) + rows.page_counts
    there = (rows.page_counts != 0) & (ends <= segment_bytes // PAGE_BYTES)
    there &= rows.page_counts <= STRIP_BYTES_MAX // PAGE_BYTES
    if not len(names):
        return np.zeros_like(rows.segments)
    at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    return np.where(there & (names[at] == wanted), numbers[at], 0).astype(np.uint32)


def _astray(ssd: Ssd, rows: RowColumns, segments: np.ndarray) -> np.ndarray:
    """Return bool[n, 3]: strips in a segment that is free, or that share a page with another one.

    No commit says so; but of a catalog that does it is not known whose bytes lie there.
    """
    flat = segments.reshape(-1)
    free = [s.id for s in ssd.segments.values() if s.life == SegmentLife.FREE]
    astray = np.isin(flat, free) & (flat != 0)
    [at] = np.nonzero(flat)
    begins = rows.pages.reshape(-1)[at].astype(np.int64)
    at = at[np.lexsort((begins, flat[at]))]
    begins = rows.pages.reshape(-1)[at].astype(np.int64)
    ends = begins + rows.page_counts.reshape(-1)[at]
    same = flat[at][1:] == flat[at][:-1]
    # A strip may cover several behind it: what counts is how far those before it reach.
    lifted = flat[at].astype(np.int64) << 33
    reach = np.maximum.accumulate(ends + lifted) - lifted
    astray[at[1:][same & (begins[1:] < reach[:-1])]] = True
    astray[at[:-1][same & (begins[1:] < ends[:-1])]] = True
    return astray.reshape(segments.shape)


def _mask(segments: np.ndarray) -> np.ndarray:
    """Return u8[n]: the leading classes that are on disk, a bit each."""
    leading = np.logical_and.accumulate(segments != 0, axis=1)
    return (leading << np.arange(CLASS_COUNT)).sum(axis=1).astype(np.uint8)


def _stand(
    rows: RowColumns, trees: list[Tree | None], tree_of: np.ndarray, segments: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return parents i64 by place, masks u8 of what can stand, and depths i32."""
    count, chain = len(rows.parents), rows.keys.chain
    parents = np.full(count, NO_ROW, np.int64)
    masks = np.where(tree_of == NO_ROW, 0, _mask(segments)).astype(np.uint8)
    name_of = rows.keys.name_of
    for name in range(len(trees)):
        [at] = np.nonzero(name_of == name)
        known = {chain[row]: row for row in at.tolist()}
        get = known.get
        above = [rows.parents[row] for row in at.tolist()]
        found = np.array([get(p, NO_ROW) if p else NO_ROW - 1 for p in above], np.int64)
        masks[at[found == NO_ROW]] = 0
        parents[at] = np.maximum(found, NO_ROW)
    ancestor = parents.copy()
    depths = (parents != NO_ROW).astype(np.int32)
    for _ in range(_DEPTH_ROUNDS_MAX):
        [below] = np.nonzero(ancestor != NO_ROW)
        if not len(below):
            break
        above = ancestor[below]
        # From one snapshot: what is above was not changed in this round yet.
        masks[below] &= masks[above]
        depths[below] += depths[above]
        ancestor[below] = ancestor[above]
    else:
        masks[ancestor != NO_ROW] = 0  # A circle: no chain is like that.
    return parents, masks, depths


def _fill(state: State, event: Recovered, found: tuple[np.ndarray, ...], kept: np.ndarray) -> None:
    index, rows = state.index, event.rows
    tree_of, segments, parents, masks, depths = found
    numbers = index.claim_rows(len(kept))
    place = np.full(len(parents) + 1, NO_ROW, np.int64)  # One more, so that NO_ROW maps to itself.
    place[kept] = numbers
    standing = (masks[kept, None] >> np.arange(CLASS_COUNT)) & 1 == 1
    index.tree_id[numbers] = tree_of[kept]
    index.parent[numbers] = place[parents[kept]]
    index.depth[numbers] = depths[kept]
    index.generation[numbers] = rows.generations[kept]
    index.profile[numbers] = rows.profiles[kept]
    index.cataloged[numbers] = True
    index.present[numbers] = standing
    index.segment[numbers] = np.where(standing, segments[kept], 0)
    index.page[numbers] = np.where(standing, rows.pages[kept], 0)
    index.size[numbers] = np.where(standing, rows.page_counts[kept] * PAGE_BYTES, 0)
    index.root[numbers] = np.where(standing, rows.roots[kept], 0)
    heats = rows.heats[kept]
    # The clock began anew: the hottest of all counts as used now.
    newest = heats[np.isfinite(heats)].max(initial=-np.inf)
    index.heat[numbers] = heats - newest + heat_at(state.now_ns) if np.isfinite(newest) else heats
    chain = rows.keys.chain
    for number, at in zip(numbers.tolist(), kept.tolist(), strict=True):
        index.chain[number] = chain[at]
    for tree in index.trees:
        [mine] = np.nonzero(tree_of[kept] == tree.id)
        names = [chain[at] for at in kept[mine].tolist()]
        tree.rows = dict(zip(names, numbers[mine].tolist(), strict=True))
        if len(mine):
            tree.strip_bytes_max = index.size[numbers[mine]].max(axis=0).tolist()
    _link(index, numbers)


def _link(index: Index, numbers: np.ndarray) -> None:
    """Derive children, siblings and their counts from the parents."""
    parents = index.parent[numbers]
    behind = numbers[parents != NO_ROW]
    above = index.parent[behind]
    np.add.at(index.children, above, index.present[behind].astype(index.children.dtype))
    order = np.argsort(above, kind="stable")
    behind, above = behind[order], above[order]
    same = above[1:] == above[:-1]
    index.next_sibling[behind[:-1][same]] = behind[1:][same]
    index.prev_sibling[behind[1:][same]] = behind[:-1][same]
    first = np.concatenate(([True], ~same))[: len(above)]
    index.first_child[above[first]] = behind[first]


def _note_dropped(
    state: State, rows: RowColumns, trees: list[Tree | None], tree_of: np.ndarray, kept: np.ndarray
) -> np.ndarray:
    """Have the catalog forget what was left out, and return bool[n]: which rows that are.

    Those of unknown lanes cannot be named, and stay.
    """
    out = np.ones(len(tree_of), bool)
    out[kept] = False
    out &= tree_of != NO_ROW
    for at in np.flatnonzero(out).tolist():
        find_ssd(state).journal.dropped[int(tree_of[at]), rows.keys.chain[at]] = None
    return out


def _hold(ssd: Ssd, segments: np.ndarray) -> list[int]:
    """Have segments held by strips that the catalog names, and return those that can be."""
    held = [s for s in segments.tolist() if ssd.segments[s].life != SegmentLife.FREE]
    for segment_id in held:
        ssd.segments[segment_id].held += 1
    return held


def _count_segments(state: State) -> None:
    index, ssd = state.index, find_ssd(state)
    strips = np.flatnonzero(index.segment.reshape(-1))
    held_by = index.segment.reshape(-1)[strips]
    strips = strips[np.argsort(held_by, kind="stable")]
    held_by = np.sort(held_by, kind="stable")
    sizes = index.size.reshape(-1)[strips].astype(np.int64)
    by_tree = np.bincount(index.tree_id[strips // CLASS_COUNT], sizes, len(index.trees))
    for tree in index.trees:
        ssd.used[tree.tenant] += int(by_tree[tree.id])
    ends = index.page.reshape(-1)[strips].astype(np.int64) * PAGE_BYTES + sizes
    found, begins = np.unique(held_by, return_index=True)
    parts = np.split(np.arange(len(strips)), begins[1:])
    for segment_id, some in zip(found.tolist(), parts, strict=False):  # One empty part for none.
        segment = ssd.segments[segment_id]
        segment.live_bytes = int(sizes[some].sum())
        segment.rows = [strips[some] // CLASS_COUNT]
        segment.end = int(ends[some].max())


def _spare_ends(ssd: Ssd, rows: RowColumns, segments: np.ndarray) -> None:
    """Append behind what was left out as well: the catalog names it until its next commit (I7)."""
    ends = (rows.pages.astype(np.int64) + rows.page_counts) * PAGE_BYTES
    for segment_id in np.unique(segments[segments != 0]).tolist():
        segment = ssd.segments[segment_id]
        if segment.life in (SegmentLife.OPEN, SegmentLife.FULL):
            segment.end = max(segment.end, int(ends[segments == segment_id].max()))

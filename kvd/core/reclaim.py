"""Room on disk: one segment at a time is cleared, its valuable strips written again elsewhere.

What is dropped goes with everything built on it, from every tier, so that presence stays monotone
along a chain (I6); what anybody holds, and what is hot, moves.
"""

import numpy as np

from kvd.core.admission import sheltered
from kvd.core.drops import closure_of, drop_all
from kvd.core.effects import Effect
from kvd.core.index import Saving
from kvd.core.load import bring
from kvd.core.save import move
from kvd.core.segments import find_ssd, in_use, spare
from kvd.core.ssd import SPARE_SEGMENTS, Clearing, Segment, Ssd
from kvd.core.state import State
from kvd.core.story import Why
from kvd.core.transitions import SegmentLife
from kvd.core.victims import bytes_of, choose_victim, live_rows
from kvd.types import CLASS_COUNT, PlaneClass

HEATS_SAMPLED = 256
HOT_BITS = 1.0  # So much above the median of its class is worth being written again.
HOT_SHARE = 0.25  # Of a segment, at most: the rest is room won, whatever happens.
OUTSIDE_SHARE = 0.5  # Of a segment: what may be dropped elsewhere along with the victim's strips.


def advance(state: State) -> list[Effect]:
    """Clear the segment that is being cleared, or choose one when room is wanted."""
    ssd = find_ssd(state)
    if ssd.broken is not None:
        return []
    clearing = ssd.clearing
    if clearing is not None and ssd.segments[clearing.segment].life == SegmentLife.FREE:
        _unguard(state, clearing, clearing.strips)
        clearing = ssd.clearing = None
    effects: list[Effect] = []
    if clearing is not None:
        effects = _go_on(state, clearing)
        waited_for = ssd.segments[clearing.segment]
        ssd.stuck = bool(waited_for.held) and not waited_for.live_bytes
    elif not _is_room_wanted(ssd):
        ssd.stuck = False
    elif state.now_ns >= ssd.choose_at_ns:  # Else nothing is worth clearing, as was found before.
        effects = _begin(state)
    if ssd.stuck:
        _unstick(state)
    return effects


def _is_room_wanted(ssd: Ssd) -> bool:
    waiting = ssd.lives[SegmentLife.FREE] + ssd.lives[SegmentLife.REMOVING]
    if in_use(ssd) > ssd.segments_max:
        return not waiting
    return spare(ssd) <= SPARE_SEGMENTS or ssd.map_full is not None


def _begin(state: State) -> list[Effect]:
    if not state.capacity_bytes:
        return []  # What moves is read into dram first, and a start has none yet.
    ssd = find_ssd(state)
    segment = choose_victim(state)
    if segment is None:
        return []
    ssd.turn(segment, SegmentLife.CLEARING)
    state.counts.ssd_segments_chosen[()] += 1
    rows = live_rows(state, segment)
    safe = _safe(state, rows)
    kept = _drop_cold(state, segment, rows[~safe])
    moved_bytes = bytes_of(state, np.concatenate((rows[safe], kept)), segment)
    if moved_bytes > ssd.config.segment_bytes // 2:
        # Too much to be written again: what nobody holds goes, whatever hangs on it.
        kept = _drop_each(state, segment, kept, 1 << 62)
    kept = np.concatenate((rows[safe], kept))
    # Some went with the closure of others.
    kept = kept[state.index.segment[kept, segment.plane_class] == segment.id]
    strips = kept * CLASS_COUNT + int(segment.plane_class)
    state.index.reads.reshape(-1)[strips] += 1  # In dram until it is written again.
    ssd.clearing = Clearing(segment.id, strips)
    return _go_on(state, ssd.clearing)


def _safe(state: State, rows: np.ndarray) -> np.ndarray:
    """Return bool: which rows are not dropped for room, as their tenant is within its quota."""
    shelter = sheltered(state)
    if shelter is None:
        return np.zeros(len(rows), bool)
    return shelter[state.index.tree_id[rows]] & ~state.index.condemned[rows]


def _unstick(state: State) -> None:
    """Drop one replaced row whose old places nobody can write over, if nothing else can go on.

    Else writing goes on, with the last spare segment: it ends what replaced rows hold.
    """
    ssd = find_ssd(state)
    if spare(ssd) > 0 or ssd.writes or ssd.commit is not None or ssd.changing:
        return
    for row in ssd.held:
        behind = closure_of(state, row, PlaneClass.ANCHOR)
        if behind is not None:
            drop_all(state, behind, PlaneClass.ANCHOR, Why.RECLAIMED)
            return


def _drop_cold(state: State, segment: Segment, rows: np.ndarray) -> np.ndarray:
    """Drop what is not hot, with what is built on it; return the rows that stay."""
    index, ssd = state.index, find_ssd(state)
    some = state.rng.integers(0, len(index.heat), HEATS_SAMPLED)
    some = some[index.segment[some, segment.plane_class] != 0]
    limit = float(np.median(index.heat[some])) + HOT_BITS if len(some) else np.inf
    by_heat = rows[np.argsort(-index.heat[rows], kind="stable")]
    sizes = np.cumsum(index.size[by_heat, segment.plane_class].astype(np.int64))
    hot = (index.heat[by_heat] > limit) & (sizes <= ssd.config.segment_bytes * HOT_SHARE)
    cold = by_heat[~hot]
    left = _drop_each(state, segment, cold, int(ssd.config.segment_bytes * OUTSIDE_SHARE))
    return np.concatenate((by_heat[hot], left))


def _drop_each(state: State, segment: Segment, rows: np.ndarray, outside: int) -> np.ndarray:
    """Drop the class of each row and of all behind it; return the rows that could not go."""
    index, plane_class = state.index, int(segment.plane_class)
    left = []
    for row in rows[np.argsort(-index.depth[rows], kind="stable")].tolist():
        if index.segment[row, plane_class] != segment.id:
            continue  # It went with one before.
        behind = closure_of(state, row, plane_class)
        if behind is not None:
            elsewhere = index.segment[behind, plane_class] != segment.id
            outside -= int(index.size[behind, plane_class][elsewhere].sum(dtype=np.int64))
        if behind is None or outside < 0:
            left.append(row)
            continue
        drop_all(state, behind, plane_class, Why.RECLAIMED)
    return np.array(left, np.int64)


def _unguard(state: State, clearing: Clearing, strips: np.ndarray) -> None:
    state.index.reads.reshape(-1)[strips] -= 1
    clearing.strips = np.setdiff1d(clearing.strips, strips)


def _go_on(state: State, clearing: Clearing) -> list[Effect]:
    """Have each strip that stays read, if it must be, and written; drop what cannot be read."""
    index = state.index
    if _has_no_room(state, clearing):
        _give_up(state, clearing, clearing.strips)
    moved = index.segment.reshape(-1)[clearing.strips] != clearing.segment
    _unguard(state, clearing, clearing.strips[moved])
    strips = clearing.strips
    rows, classes = np.divmod(strips, CLASS_COUNT)
    here = index.segment[rows, classes] == clearing.segment
    lost = here & (index.slab[rows, classes] == 0)
    effects: list[Effect] = []
    if lost.any():
        effects, gone = bring(state, strips[lost])
        if not state.touching:  # Else there is room for them soon.
            _give_up(state, clearing, gone)
        here &= ~np.isin(strips, gone)
    there = here & (index.slab[rows, classes] != 0) & (index.missing[rows, classes] == 0)
    there &= (index.saving[rows] != Saving.WRITING) & ~index.condemned[rows]
    move(state, np.unique(rows[there]).tolist())
    wrong = here & index.condemned[rows]
    if wrong.any():
        _give_up(state, clearing, strips[wrong])
    return effects


def _has_no_room(state: State, clearing: Clearing) -> bool:
    """Return whether nothing can be written again: the budget shrank below what is there."""
    ssd = find_ssd(state)
    if spare(ssd) > 0:
        return False
    plane_class = ssd.segments[clearing.segment].plane_class
    largest = max((s for t in state.index.trees for s in t.strip_bytes_max), default=0)
    for stripe in range(ssd.stripes):
        opened = ssd.segments.get(ssd.open.get((stripe, plane_class), 0))
        if opened is None:
            continue
        full = opened.end + largest > ssd.config.segment_bytes
        if opened.life != SegmentLife.OPEN or not full:
            return False
    return True


def _give_up(state: State, clearing: Clearing, strips: np.ndarray) -> None:
    """Drop strips that cannot be moved; one that is held is tried again later."""
    for strip in strips.tolist():
        row, plane_class = divmod(strip, CLASS_COUNT)
        if state.index.segment[row, plane_class] != clearing.segment:
            continue
        one = np.array([strip])
        _unguard(state, clearing, one)
        behind = closure_of(state, row, plane_class)
        if behind is not None:
            drop_all(state, behind, plane_class, Why.RECLAIMED)
        else:
            state.index.reads.reshape(-1)[one] += 1
            clearing.strips = np.union1d(clearing.strips, one)

"""From disk to dram: places for what a fetch promises and dram has not, and pieces as they come.

Read class by class, within a class piece by piece over the whole prefix: the first layers of all
anchors are there before anything else. A strip that is being read is read once, whoever waits.
"""

from dataclasses import dataclass

import numpy as np

from kvd.core.columns import strip_columns
from kvd.core.counts import add_by_class
from kvd.core.disk_effects import ReadStrips
from kvd.core.disk_events import ReadReleased, StripsRead
from kvd.core.drops import condemn, extent_of
from kvd.core.effects import Effect, Shortfall
from kvd.core.evict import give_back_strips, place_strips
from kvd.core.index import tenant_of
from kvd.core.leases import set_aside
from kvd.core.segments import degrade_by, find_ssd, suspect
from kvd.core.slabs import own_session
from kvd.core.ssd import ReadBatch
from kvd.core.state import State, move_bytes
from kvd.core.story import Why
from kvd.core.transitions import StripState
from kvd.errors import FaultKind
from kvd.limits import READ_PIECES_MAX
from kvd.pieces import read_piece_bytes
from kvd.types import CLASS_COUNT, Extent

Counts = tuple[int, int, int]
# A strip of these faults will not come right by being read again.
_WRONG_FOR_GOOD = (FaultKind.CHECKSUM, FaultKind.FORMAT)
_ONE = np.uint64(1)


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be promised: `strips` per class i64[chunks, lanes]; `effects` see to it."""

    counts: Counts
    strips: tuple[np.ndarray, ...]
    reason: Shortfall
    effects: list[Effect]


def plan(state: State, tenant: str, lanes: list[np.ndarray], counts: Counts) -> Plan:
    """Find places for what is on disk only, and have it read; promise less where there are none.

    `lanes` are the rows of each lane, the same number in all.
    """
    index = state.index
    rows = np.stack(lanes, axis=1)
    strips = [rows[:count] * CLASS_COUNT + c for c, count in enumerate(counts)]
    held = np.concatenate([each.ravel() for each in strips])
    if index.slab.reshape(-1)[held].all() and not index.failed.reshape(-1)[held].any():
        return Plan(counts, tuple(strips), Shortfall.NONE, [])
    reads = index.reads.reshape(-1)
    reads[held] += 1  # Or making room for one strip of the promise would take another one.
    effects: list[Effect] = []
    fresh: list[np.ndarray] = []
    reason, limit = Shortfall.NONE, counts[0]
    for plane_class in range(CLASS_COUNT):
        limit = min(limit, counts[plane_class])
        wanted = strips[plane_class][:limit]
        sound = _sound_chunks(state, wanted)
        if sound < limit:
            limit, reason = sound, reason or Shortfall.READ_FAILED
        placed, more = _place(state, tenant, wanted[:limit])
        effects += more
        if placed.chunks < limit:
            limit, reason = placed.chunks, reason or Shortfall.NO_ROOM
        strips[plane_class] = wanted[:limit]
        fresh.append(placed.strips)
    reads[held] -= 1
    new_counts = tuple(len(each) for each in strips)
    effects += _read(state, np.concatenate(fresh))
    return Plan(new_counts, tuple(strips), reason, effects)  # type: ignore[arg-type]


def _sound_chunks(state: State, strips: np.ndarray) -> int:
    """Return how many leading chunks have no strip that just failed and is not cleared away yet."""
    failed = state.index.failed.reshape(-1)[strips].any(axis=1)
    bad = np.flatnonzero(failed)
    return int(bad[0]) if len(bad) else len(strips)


@dataclass(frozen=True, slots=True)
class _Placed:
    """`chunks` that have a place now; `strips` of them that are to be read."""

    chunks: int
    strips: np.ndarray


def _place(state: State, tenant: str, strips: np.ndarray) -> tuple[_Placed, list[Effect]]:
    """Give places to the strips [chunks, lanes] of one class that are not in dram."""
    index, ssd = state.index, find_ssd(state)
    flat = strips.ravel()
    at = np.flatnonzero(index.slab.reshape(-1)[flat] == 0)
    if not len(at):
        return _Placed(len(strips), flat[:0]), []
    missing = flat[at]
    sizes = index.size.reshape(-1)[missing]
    room = state.config.limits.reads_in_flight_bytes_max - ssd.reading_bytes
    fits = int(np.searchsorted(np.cumsum(sizes.astype(np.int64)), room, side="right"))
    placement = place_strips(state, own_session(state, tenant), sizes[:fits])
    count, chunks = placement.count, len(strips)
    if count < len(missing):
        chunks = int(at[count]) // strips.shape[1]
        # Whole chunks only: the others lanes' strips of the chunk that did not fit go back.
        count = int(np.searchsorted(at, chunks * strips.shape[1]))
        give_back_strips(state, placement, sizes, count)
    placed = missing[:count]
    ssd.reading_bytes += int(sizes[:count].sum(dtype=np.int64))
    index.slab.reshape(-1)[placed] = placement.slabs[:count]
    index.offset.reshape(-1)[placed] = placement.offsets[:count]
    index.missing.reshape(-1)[placed] = (_ONE << _piece_counts(sizes[:count])) - _ONE
    return _Placed(chunks, placed), placement.effects


def _piece_counts(sizes: np.ndarray) -> np.ndarray:
    """Return u64: in how many pieces strips of these sizes are read."""
    counts = -(-sizes.astype(np.int64) // read_piece_bytes(sizes))
    assert counts.max(initial=0) <= READ_PIECES_MAX
    return counts.astype(np.uint64)


def _read(state: State, strips: np.ndarray) -> list[Effect]:
    """Read placed strips: class by class, piece by piece, chunk by chunk."""
    index, ssd = state.index, find_ssd(state)
    if not len(strips):
        return []
    sizes = index.size.reshape(-1)[strips].astype(np.int64)
    counts = _piece_counts(sizes).astype(np.int64)
    which = np.repeat(np.arange(len(strips)), counts)
    piece = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort((which, piece, strips[which] % CLASS_COUNT))
    which, piece = which[order], piece[order]
    items = strips[which]
    step = read_piece_bytes(sizes)[which]
    begins = piece * step
    lengths = np.minimum(step, sizes[which] - begins)
    index.in_flight.reshape(-1)[strips] += counts.astype(np.int16)
    segments = index.segment.reshape(-1)[items]
    assert segments.all()
    batch = ReadBatch(
        ssd.next_batch(), items, _ONE << piece.astype(np.uint64), lengths, segments,
        np.ones(len(items), bool), len(items),
    )  # fmt: skip
    ssd.reads[batch.id] = batch
    where = segments, index.page.reshape(-1)[items]
    columns = strip_columns(state, items, where, begins.astype(np.uint32), lengths)
    deadline_ns = state.now_ns + state.config.limits.read_ns
    return [ReadStrips(batch.id, columns, deadline_ns)]


# ---- as they come ----


def on_strips_read(state: State, event: StripsRead) -> list[Effect]:
    """Note what came and what failed; a strip is in dram once all its pieces are."""
    index, batch = state.index, find_ssd(state).reads[event.batch]
    strips, bits = batch.strips[event.items], batch.bits[event.items]
    effects: list[Effect] = []
    if event.kinds.any():
        effects = _on_faults(state, event, batch)
        good = event.kinds == 0
        strips, bits = strips[good], bits[good]
    np.bitwise_and.at(index.missing.reshape(-1), strips, ~bits)
    if event.busy:
        _on_hung(state, batch.strips[event.items])
    else:
        effects += _unflight(state, batch, event.items)
    return effects


def on_read_released(state: State, event: ReadReleased) -> list[Effect]:
    return _unflight(state, find_ssd(state).reads[event.batch], event.items)


def _on_faults(state: State, event: StripsRead, batch: ReadBatch) -> list[Effect]:
    """Note what could not be read, and what that says of chunks and directories."""
    ssd, effects = find_ssd(state), []
    ssd.reads_failed = True
    state.index.failed.reshape(-1)[batch.strips[event.items[event.kinds != 0]]] = True
    for kind in np.unique(event.kinds[event.kinds != 0]).tolist():
        items = event.items[event.kinds == kind]
        state.counts.ssd_read_faults[FaultKind(kind)] += len(items)
        if kind in _WRONG_FOR_GOOD:
            for row in np.unique(batch.strips[items] // CLASS_COUNT).tolist():
                condemn(state, row, Why.WRONG_ROOT)
        elif kind == FaultKind.TIMEOUT:
            fault = next(f for f in event.faults if f.kind == kind)
            segments = np.unique(batch.segments[items]).tolist()
            for directory in sorted({ssd.segments[s].directory for s in segments}):
                degrade_by(state, directory, fault, batch.id)
        elif kind != FaultKind.CANCELLED:
            for item in items.tolist():
                segment = ssd.segments[int(batch.segments[item])]
                row = int(batch.strips[item]) // CLASS_COUNT
                effects += suspect(state, segment.directory, row)
    return effects


def _on_hung(state: State, strips: np.ndarray) -> None:
    """Set aside the places of strips that a read which was given up may still write into."""
    index = state.index
    for strip in np.unique(strips).tolist():
        row, plane_class = divmod(strip, CLASS_COUNT)
        if not index.hung[row, plane_class]:
            index.hung[row, plane_class] = True
            extent = extent_of(state, row, plane_class)
            move_bytes(state, extent, StripState.FILLING, StripState.QUARANTINED)


def _unflight(state: State, batch: ReadBatch, items: np.ndarray) -> list[Effect]:
    """These pieces are written by nobody any more; settle the strips of which that is all."""
    index, ssd = state.index, find_ssd(state)
    assert batch.waiting[items].all()
    batch.waiting[items] = False
    batch.left -= len(items)
    if not batch.left:
        del ssd.reads[batch.id]
    ssd.reading_bytes -= int(batch.sizes[items].sum())
    strips = batch.strips[items]
    in_flight = index.in_flight.reshape(-1)
    np.subtract.at(in_flight, strips, 1)
    over = strips[in_flight[strips] == 0]
    effects: list[Effect] = []
    if not len(over):
        return effects
    over = np.unique(over)
    failed = index.failed.reshape(-1)[over]
    _settle_good(state, over[~failed])
    for strip in over[failed].tolist():
        effects += _settle_failed(state, *divmod(strip, CLASS_COUNT))
    return effects


def _settle_good(state: State, strips: np.ndarray) -> None:
    index = state.index
    assert not index.missing.reshape(-1)[strips].any(), "I1: a strip without all its pieces"
    slabs, sizes = index.slab.reshape(-1)[strips], index.size.reshape(-1)[strips]
    for slab in np.unique(slabs).tolist():
        whole = Extent(slab, 0, int(sizes[slabs == slab].sum(dtype=np.int64)))
        move_bytes(state, whole, StripState.FILLING, StripState.READY)
    add_by_class(state.counts.ssd_read_strips, strips % CLASS_COUNT)
    add_by_class(state.counts.ssd_read_bytes, strips % CLASS_COUNT, sizes)
    on_disk = index.segment.reshape(-1)[strips] != 0
    index.copies.add_all(strips[on_disk])


def _settle_failed(state: State, row: int, plane_class: int) -> list[Effect]:
    """Let go of the place of a strip that could not be read; it stays on disk only.

    Some of its pieces may have come, and readers be in the middle of them (I4).
    """
    index, effects = state.index, []
    source = StripState.QUARANTINED if index.hung[row, plane_class] else StripState.FILLING
    extent = extent_of(state, row, plane_class)
    if index.reads[row, plane_class]:
        effects = set_aside(state, tenant_of(index, row), (extent,), source)
    else:
        move_bytes(state, extent, source, StripState.FREE)
    index.slab[row, plane_class] = index.offset[row, plane_class] = 0
    index.missing[row, plane_class] = 0
    index.failed[row, plane_class] = index.hung[row, plane_class] = False
    return effects


def bring(state: State, strips: np.ndarray) -> tuple[list[Effect], np.ndarray]:
    """Have strips read that are on disk only; return those that get no place, or failed before."""
    index = state.index
    gone = [strips[index.condemned[strips // CLASS_COUNT]]]
    strips = strips[~index.condemned[strips // CLASS_COUNT]]
    tenants = [index.trees[t].tenant for t in index.tree_id[strips // CLASS_COUNT].tolist()]
    effects: list[Effect] = []
    for tenant in sorted(set(tenants)):
        theirs = strips[np.array([name == tenant for name in tenants], bool)]
        placed, more = _place(state, tenant, theirs[:, None])
        effects += more + _read(state, placed.strips)
        gone.append(theirs[placed.chunks :])
    return effects, np.concatenate(gone)

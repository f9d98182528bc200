"""Write-back: sealed strips go to disk in batches, parents before what was built on them.

A strip is durable once a commit that names its place is; until then its dram stays as it is (I4).
"""

from dataclasses import dataclass, field

import numpy as np

from kvd.core.admission import admits
from kvd.core.columns import strip_columns
from kvd.core.counts import Shed, add_by_class
from kvd.core.disk_effects import WriteStrips
from kvd.core.disk_events import StripsWritten
from kvd.core.drops import condemn, note
from kvd.core.effects import Effect
from kvd.core.index import NO_ROW, Saving, tenant_of
from kvd.core.segments import (
    degrade_by,
    find_ssd,
    open_segment,
    place_strip,
    provide,
)
from kvd.core.ssd import Ssd, WriteBatch
from kvd.core.state import State
from kvd.core.story import Why
from kvd.core.transitions import SegmentLife
from kvd.errors import FaultKind
from kvd.limits import PAGE_BYTES
from kvd.types import CLASS_COUNT


def enqueue(state: State, rows: list[int], *, first: bool = False) -> None:
    """Have rows written in this order; `first`: before all that waits."""
    ssd, index = find_ssd(state), state.index
    if not ssd.queue:
        ssd.queue_since_ns = state.now_ns
    for row in reversed(rows) if first else rows:
        assert index.saving[row] == Saving.NONE, row
        index.saving[row] = Saving.QUEUED
        ssd.unqueue(row)  # It was written meanwhile, as its segment is cleared.
        size = int(index.size[row][index.segment[row] == 0].sum())
        ssd.queued_bytes += size
        ssd.queue[row] = int(index.generation[row]), size
        if first:
            ssd.queue.move_to_end(row, last=False)


def move(state: State, rows: list[int]) -> None:
    """Have strips in the segment being cleared written elsewhere, before all that is queued."""
    ssd, index = find_ssd(state), state.index
    for row in rows:
        assert index.saving[row] != Saving.WRITING, row
        index.saving[row] = Saving.QUEUED
        ssd.moves[row] = int(index.generation[row])


def on_sealed(state: State, rows: list[int]) -> None:
    """Queue what was just sealed, or leave it in dram only while nothing can be written."""
    ssd = state.ssd
    if ssd is None:
        return
    if ssd.fault is not None:
        state.counts.ssd_shed_chunks[Shed.DEGRADED] += len(rows)
        ssd.refill = True
        return
    enqueue(state, rows)


def refill(state: State) -> None:
    """Queue every chunk that is in dram only, parents first: the tier is well again."""
    ssd, index = find_ssd(state), state.index
    if ssd.fault is None:
        for row in [row for row in ssd.rest if index.saving[row] == Saving.NONE]:
            enqueue(state, [row])
    if not ssd.refill or ssd.fault is not None or _is_spent(ssd):
        return
    ssd.refill = False
    unsaved = (index.slab != 0) & (index.segment == 0) & (index.missing == 0)
    rows = np.flatnonzero(unsaved.any(axis=1) & ~index.condemned & (index.saving == Saving.NONE))
    enqueue(state, rows[np.argsort(index.depth[rows], kind="stable")].tolist())


def on_day(state: State, day: int) -> None:
    """Begin a day; its date is what a clock says, which may be set, and set back.

    What was written counts until a day that never was. A date one day back waits for the day known;
    one further back shows that the day known was wrong, and takes its count along.
    """
    ssd = find_ssd(state)
    known = max(ssd.day, ssd.written[0])
    if day == known - 1:
        day = known
    elif day < known:
        ssd.written = day, ssd.written[1] if ssd.written[0] == known else 0
    ssd.day, ssd.refill = day, True


def is_saved(state: State) -> bool:
    """Return whether nothing waits to become durable that can."""
    ssd = state.ssd
    if ssd is None or ssd.fault is not None:
        return True
    return not (ssd.queue or ssd.moves or ssd.writes or ssd.commit or ssd.journal)


def _is_spent(ssd: Ssd) -> bool:
    limit = ssd.config.daily_write_bytes
    return bool(limit) and ssd.written[0] == ssd.day and ssd.written[1] >= limit


def write_due(state: State) -> list[Effect]:
    """Write batches, as many at once as may be; small ones only after a while, or when awaited."""
    ssd, limits = find_ssd(state), state.config.limits
    effects: list[Effect] = []
    if state.now_ns < ssd.write_at_ns:
        return []
    while ssd.fault is None and len(ssd.writes) < limits.writes_in_flight_max * ssd.stripes:
        if not ssd.queue and not ssd.moves:
            break
        waited_ns = state.now_ns - ssd.queue_since_ns
        hurry = bool(ssd.waits or ssd.moves) or state.draining
        full = ssd.queued_bytes >= limits.write_batch_bytes
        if not (hurry or full or waited_ns >= limits.tick_ns):
            break
        count = len(ssd.writes)
        effects += _make_batch(state)
        if len(ssd.writes) == count:
            break
    return effects


@dataclass(slots=True)
class _Batch:
    """Rows that were placed, and which strips of them: `item_rows` are indices into `rows`."""

    stripe: int
    rows: list[int] = field(default_factory=list)
    item_rows: list[int] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    size_bytes: int = 0


def _make_batch(state: State) -> list[Effect]:
    """Write what fits into the next stripe that has room, and ask for room where there is none."""
    ssd, effects = find_ssd(state), []
    for _ in range(ssd.stripes):
        batch = _Batch(ssd.stripe)
        ssd.stripe = (ssd.stripe + 1) % ssd.stripes
        effects += _fill(state, batch)
        if batch.rows:
            return [*effects, _send(state, batch)]
    return effects


def _fill(state: State, batch: _Batch) -> list[Effect]:
    """Take rows off the queues and place their strips."""
    ssd, limit = find_ssd(state), state.config.limits.write_batch_bytes
    effects: list[Effect] = []
    for row, generation in list(ssd.moves.items()):
        full = batch.size_bytes >= limit
        if full or not _take(state, batch, row, generation, effects, moves=True):
            break
        del ssd.moves[row]
    while ssd.queue and batch.size_bytes < limit:
        row, (generation, _) = next(iter(ssd.queue.items()))
        if not _take(state, batch, row, generation, effects):
            break
        ssd.unqueue(row)
        ssd.queue_since_ns = state.now_ns
    return effects


def _take(
    state: State,
    batch: _Batch,
    row: int,
    generation: int,
    effects: list[Effect],
    *,
    moves: bool = False,
) -> bool:
    """Place the strips of a row that are to be written; False when there is no segment for one.

    Of one that `moves` what is fresh comes behind, where no segment can be had for it: it would
    wait for the room that it keeps from being cleared.
    """
    ssd, index = find_ssd(state), state.index
    wanted = _wanted(state, row, generation)
    missing = _unopened(state, batch.stripe, row, wanted)
    if missing:
        last = ssd.stuck or any(index.segment[row, c] for c in wanted)
        begun = len(effects)
        for plane_class in missing:
            effects += provide(state, batch.stripe, plane_class, last=last)
        coming = len(effects) > begun or any((batch.stripe, c) in ssd.open for c in missing)
        wanted = [c for c in wanted if index.segment[row, c]]
        if not moves or coming or not wanted or not set(missing).isdisjoint(wanted):
            return False
        ssd.rest.add(row)
    if wanted:
        _place(state, batch.stripe, row, wanted)
        batch.item_rows += [len(batch.rows)] * len(wanted)
        batch.classes += wanted
        batch.rows.append(row)
        batch.size_bytes += int(index.size[row, wanted].sum())
    return True


def _wanted(state: State, row: int, generation: int) -> list[int]:
    """Return the classes of a queued row that are to be written; none when it is not any more."""
    ssd, index = find_ssd(state), state.index
    if index.generation[row] != generation or index.saving[row] != Saving.QUEUED:
        return []
    parent = int(index.parent[row])
    founded = parent == NO_ROW or index.segment[parent, 0] or index.saving[parent] != Saving.NONE
    wanted = []
    if not index.condemned[row]:
        for plane_class in range(CLASS_COUNT):
            at = int(index.segment[row, plane_class])
            if at and ssd.segments[at].life != SegmentLife.CLEARING:
                continue
            if not at and not founded:
                break
            fits = index.size[row, plane_class] <= ssd.config.segment_bytes - PAGE_BYTES
            if fits and index.slab[row, plane_class] and not index.missing[row, plane_class]:
                wanted.append(plane_class)
            elif not at:
                break
    fresh = [c for c in wanted if not index.segment[row, c]]
    if fresh and _is_spent(ssd):
        state.counts.ssd_shed_chunks[Shed.DAILY_BOUND] += 1
        ssd.refill = True
        wanted = [c for c in wanted if c not in fresh]
    elif fresh and not admits(state, row, fresh):
        state.counts.ssd_shed_chunks[Shed.QUOTA] += 1
        note(state, row, Why.SSD_QUOTA)
        wanted = [c for c in wanted if c not in fresh]
    if not wanted:
        index.saving[row] = Saving.NONE
        if not fresh and not index.segment[row, 0]:
            why = Shed.TOO_LARGE if founded else Shed.UNFOUNDED
            why = Shed.CONDEMNED if index.condemned[row] else why
            state.counts.ssd_shed_chunks[why] += 1
    return wanted


def _unopened(state: State, stripe: int, row: int, wanted: list[int]) -> list[int]:
    """Return the classes whose strip of this row has no open segment with room."""
    sizes = state.index.size[row]
    return [c for c in wanted if open_segment(state, stripe, c, int(sizes[c])) is None]


def _place(state: State, stripe: int, row: int, wanted: list[int]) -> None:
    ssd, index = find_ssd(state), state.index
    for plane_class in wanted:
        segment = ssd.segments[ssd.open[stripe, plane_class]]
        size = int(index.size[row, plane_class])
        if not index.segment[row, plane_class]:  # Else it only moves.
            ssd.used[tenant_of(index, row)] += size
        index.new_page[row, plane_class] = place_strip(segment, size, ssd.config.segment_bytes)
        index.new_segment[row, plane_class] = segment.id
    index.saving[row] = Saving.WRITING


def _send(state: State, made: _Batch) -> WriteStrips:
    ssd, index = find_ssd(state), state.index
    rows, item_rows, classes = (
        np.array(column) for column in (made.rows, made.item_rows, made.classes)
    )
    strips = rows[item_rows] * CLASS_COUNT + classes
    where = index.new_segment.reshape(-1)[strips], index.new_page.reshape(-1)[strips]
    begins = np.zeros(len(strips), np.uint32)
    sizes = index.size.reshape(-1)[strips]
    batch = WriteBatch(
        ssd.next_batch(), rows, index.generation[rows], item_rows, classes, len(strips),
        np.ones(len(rows), bool), np.zeros(len(rows), bool),
    )  # fmt: skip
    ssd.writes[batch.id] = batch
    today = ssd.written[1] if ssd.written[0] == ssd.day else 0
    ssd.written = ssd.day, today + made.size_bytes
    return WriteStrips(batch.id, strip_columns(state, strips, where, begins, sizes))


def on_strips_written(state: State, event: StripsWritten) -> None:
    ssd, index = find_ssd(state), state.index
    batch = ssd.writes[event.batch]
    batch.unreported -= len(event.items)
    assert batch.unreported >= 0
    bad = event.kinds != 0
    _count_written(state, batch, event.items[~bad])
    for item, kind in zip(event.items[bad].tolist(), event.kinds[bad].tolist(), strict=True):
        at = batch.item_rows[item]
        batch.good[at] = False
        state.counts.ssd_write_faults[FaultKind(kind)] += 1
        if kind == FaultKind.CHECKSUM:
            batch.condemned[at] = True
            continue
        if kind == FaultKind.CANCELLED:
            # The disk may be well. What failed took pages: not at once.
            ssd.write_at_ns = state.now_ns + state.config.limits.probe_ns
            continue
        fault = next(f for f in event.faults if f.kind == kind)
        segment = ssd.segments[int(index.new_segment[batch.rows[at], batch.item_classes[item]])]
        degrade_by(state, segment.directory, fault, batch.id)
    if not batch.unreported:
        del ssd.writes[batch.id]
        _finish(state, batch)


def _count_written(state: State, batch: WriteBatch, items: np.ndarray) -> None:
    classes = batch.item_classes[items]
    sizes = state.index.size[batch.rows[batch.item_rows[items]], classes]
    add_by_class(state.counts.ssd_written_strips, classes)
    add_by_class(state.counts.ssd_written_bytes, classes, sizes)


def _finish(state: State, batch: WriteBatch) -> None:
    """Have the good rows committed, and the others written again once the tier is well."""
    ssd, index = find_ssd(state), state.index
    again = []
    for at, row in enumerate(batch.rows.tolist()):
        assert index.generation[row] == batch.generations[at]
        assert index.saving[row] == Saving.WRITING
        if batch.good[at]:
            ssd.journal.written[row] = int(batch.generations[at])
            continue
        displace(state, row)
        if batch.condemned[at]:
            condemn(state, row, Why.WRONG_ROOT)
        else:
            again.append(row)
    enqueue(state, again, first=True)


def displace(state: State, row: int) -> None:
    """Forget where a row was being written to: those pages hold nothing."""
    ssd, index = find_ssd(state), state.index
    replaced = row in ssd.held  # It is durable by its old strips, and is not to be told of.
    for plane_class in np.flatnonzero(index.new_segment[row]).tolist():
        displace_strip(state, row, plane_class)
    index.saving[row] = Saving.NONE
    ssd.journal.written.pop(row, None)
    if index.cataloged[row] and not replaced:
        ssd.journal.changed[row] = int(index.generation[row])


def displace_strip(state: State, row: int, plane_class: int) -> None:
    ssd, index = find_ssd(state), state.index
    segment = ssd.segments[int(index.new_segment[row, plane_class])]
    if index.cataloged[row]:
        # By a commit that failed the catalog may have heard of it: nobody knows how much it heard.
        # So it is left alone until the catalog hears of the row again (I7).
        ssd.hold(row, segment)
    segment.writing -= 1
    assert segment.writing >= 0
    if not index.segment[row, plane_class]:
        ssd.used[tenant_of(index, row)] -= int(index.size[row, plane_class])
    index.new_segment[row, plane_class] = index.new_page[row, plane_class] = 0

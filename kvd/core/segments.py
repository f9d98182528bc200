"""The life of segments and the health of data directories.

A segment holds strips of one class. Its pages are written over only once a durable commit names
nothing in it any more (I7), and their number never passes what budget and file systems allow (I8).
"""

import itertools

from kvd.clock import NS_PER_S
from kvd.core.disk_effects import (
    MakeSegment,
    MeasureSpace,
    ProbeDirectory,
    RecycleSegment,
    RemoveSegment,
)
from kvd.core.disk_events import Probed, SegmentDone, SpaceSeen
from kvd.core.drops import condemn
from kvd.core.effects import Effect
from kvd.core.ssd import SEGMENTS_LEAST, SPARE_SEGMENTS, Directory, Segment, Ssd
from kvd.core.state import State
from kvd.core.story import Why
from kvd.core.transitions import SegmentLife
from kvd.errors import Fault, FaultKind
from kvd.limits import PAGE_BYTES, SEGMENT_NUMBER_MAX
from kvd.types import PlaneClass

NO_SPACE_RETRY_NS = 5 * NS_PER_S


def find_ssd(state: State) -> Ssd:
    assert state.ssd is not None, "there is no ssd tier"
    return state.ssd


def usable(ssd: Ssd, directory: Directory) -> bool:
    return directory.fault is None and ssd.catalog_fault is None


def in_use(ssd: Ssd) -> int:
    """Return how many segments have a file, or are getting one (I8)."""
    return len(ssd.segments)


def spare(ssd: Ssd) -> int:
    """Return how many segments could be opened now or soon, without clearing one."""
    # A spoiled one is free, or being removed: it is not counted as room twice.
    free = ssd.lives[SegmentLife.FREE] - ssd.spoiled
    return max(0, free) + max(0, ssd.segments_max - in_use(ssd))


# ---- opening ----


def open_segment(state: State, stripe: int, plane_class: int, size: int) -> Segment | None:
    """Return the open segment if `size` more bytes fit; else close it and return None."""
    ssd = find_ssd(state)
    segment = ssd.segments.get(ssd.open.get((stripe, plane_class), 0))
    if segment is None or segment.life != SegmentLife.OPEN:
        return None
    if segment.end + size > ssd.config.segment_bytes:
        close_segment(ssd, segment)
        return None
    return segment


def close_segment(ssd: Ssd, segment: Segment) -> None:
    ssd.turn(segment, SegmentLife.FULL)
    _unassign(ssd, segment)
    ssd.journal.segments[segment.id] = None


def _assign(ssd: Ssd, segment: Segment, stripe: int) -> None:
    assert (stripe, segment.plane_class) not in ssd.open
    segment.stripe = stripe
    ssd.open[stripe, segment.plane_class] = segment.id


def _unassign(ssd: Ssd, segment: Segment) -> None:
    assert ssd.open[segment.stripe, segment.plane_class] == segment.id
    del ssd.open[segment.stripe, segment.plane_class]


def reopen_segment(ssd: Ssd, segment: Segment) -> bool:
    """Go on with a segment that was open before a restart, if there is a stripe for it."""
    for stripe in range(ssd.stripes):
        if (stripe, segment.plane_class) not in ssd.open:
            _assign(ssd, segment, stripe)
            return True
    return False


def place_strip(segment: Segment, size: int, segment_bytes: int) -> int:
    """Give out pages for a strip and return the first."""
    assert size > 0 and size % PAGE_BYTES == 0
    page = segment.end // PAGE_BYTES
    segment.end += size
    segment.writing += 1
    assert segment.end <= segment_bytes, (segment.id, segment.end)
    return page


def provide(state: State, stripe: int, plane_class: int, *, last: bool) -> list[Effect]:
    """Ask for an open segment of the class, if one may be had; with `last` even the last one."""
    ssd = find_ssd(state)
    if (stripe, plane_class) in ssd.open:
        return []  # It is being made, or there.
    if spare(ssd) <= (0 if last else SPARE_SEGMENTS):
        return []
    home = stripe % len(ssd.directories)
    free = [
        s for s in ssd.segments.values()
        if s.life == SegmentLife.FREE and not s.spoiled
        and usable(ssd, ssd.directories[s.directory])
    ] if ssd.lives[SegmentLife.FREE] else []  # fmt: skip
    if free:
        segment = min(free, key=lambda s: (s.directory != home, s.id))
        return _recycle(ssd, segment, stripe, PlaneClass(plane_class))
    directory = _roomiest(state, ssd, home)
    if directory is None or in_use(ssd) >= ssd.segments_max:
        return []
    ssd.segment_id += 1
    segment = Segment(
        ssd.segment_id, directory.number, _fresh_number(ssd), 1, PlaneClass(plane_class),
        SegmentLife.MAKING,
    )  # fmt: skip
    ssd.add(segment)
    _assign(ssd, segment, stripe)
    if directory.free_bytes is not None:
        directory.free_bytes -= ssd.config.segment_bytes
    request = _request(ssd, segment)
    return [MakeSegment(request, directory.number, segment.number, 1, segment.plane_class)]


def _fresh_number(ssd: Ssd) -> int:
    """Return the number of a new file: behind all others, or of a gap when there is none behind."""
    if ssd.number < SEGMENT_NUMBER_MAX:
        ssd.number += 1
        return ssd.number
    taken = {s.number for s in ssd.segments.values()} | {n for _, n in ssd.journal.removed}
    return next(number for number in itertools.count(1) if number not in taken)


def _recycle(ssd: Ssd, segment: Segment, stripe: int, plane_class: PlaneClass) -> list[Effect]:
    assert segment.live_bytes == segment.held == segment.writing == 0
    assert not ssd.is_read(segment.id)
    ssd.turn(segment, SegmentLife.RECYCLING)
    segment.epoch += 1
    segment.plane_class = plane_class
    segment.end, segment.rows = PAGE_BYTES, []
    _assign(ssd, segment, stripe)
    request = _request(ssd, segment)
    return [RecycleSegment(request, segment.directory, segment.number, segment.epoch, plane_class)]


def _roomiest(state: State, ssd: Ssd, home: int) -> Directory | None:
    """Return `home`, or the usable directory with most space, if it has room for a segment."""
    need = ssd.config.segment_bytes + ssd.config.spare_bytes
    able = [
        d for d in ssd.directories
        if usable(ssd, d) and d.stands_still_until_ns <= state.now_ns
        and (d.free_bytes is None or d.free_bytes >= need)
    ]  # fmt: skip
    return max(able, key=lambda d: (d.number == home, d.free_bytes or 0, -d.number), default=None)


def _request(ssd: Ssd, segment: Segment) -> int:
    ssd.request_id += 1
    ssd.changing[ssd.request_id] = segment.id
    return ssd.request_id


def on_segment_done(state: State, event: SegmentDone) -> None:
    ssd = find_ssd(state)
    segment = ssd.segments[ssd.changing.pop(event.request)]
    if segment.life == SegmentLife.REMOVING:
        _on_removed(state, segment, event.fault)
    elif event.fault is None:
        ssd.turn(segment, SegmentLife.OPEN)
        ssd.journal.segments[segment.id] = None
    else:
        _on_not_made(state, segment, event.fault)


def _on_removed(state: State, segment: Segment, fault: Fault | None) -> None:
    ssd = find_ssd(state)
    if fault is None:
        ssd.turn(segment, SegmentLife.GONE)
        ssd.journal.segments.pop(segment.id, None)
        ssd.journal.removed[segment.directory, segment.number] = None
        return
    ssd.turn(segment, SegmentLife.FREE)
    if fault.kind != FaultKind.CANCELLED:
        degrade(state, segment.directory, fault)


def _on_not_made(state: State, segment: Segment, fault: Fault) -> None:
    """Let go of a segment that could not be made, or used again; say whose fault it was."""
    ssd = find_ssd(state)
    _unassign(ssd, segment)
    is_new = segment.life == SegmentLife.MAKING
    # Its file went, or bears a higher epoch: it would be chosen again and again, and never be had.
    lost = not is_new and fault.kind in (FaultKind.GONE, FaultKind.FORMAT)
    segment.spoiled = is_new or lost
    ssd.spoiled += segment.spoiled
    ssd.turn(segment, SegmentLife.FREE)
    if fault.kind == FaultKind.NO_SPACE:
        # No fault of the directory: what is there can still be cleared and written over.
        state.counts.ssd_segments_refused[()] += 1
        directory = ssd.directories[segment.directory]
        directory.stands_still_until_ns = state.now_ns + NO_SPACE_RETRY_NS
        ssd.segments_max = min(ssd.segments_max, max(in_use(ssd), SEGMENTS_LEAST))
    elif fault.kind == FaultKind.CANCELLED:
        ssd.write_at_ns = state.now_ns + state.config.limits.probe_ns  # The host lacks something.
    elif not lost:
        degrade(state, segment.directory, fault)


# ---- space ----


def on_space_seen(state: State, event: SpaceSeen) -> list[Effect]:
    """Fit the number of segments to the space that other programs leave (I8)."""
    ssd = find_ssd(state)
    size, spare_bytes = ssd.config.segment_bytes, ssd.config.spare_bytes
    room = 0
    for device, free_bytes in sorted(set(zip(event.devices, event.free_bytes, strict=True))):
        over = free_bytes - spare_bytes
        room += over // size  # Below zero, too: so many are to go.
        for directory in ssd.directories:
            if event.devices[directory.number] == device:
                directory.free_bytes = free_bytes
    fits = max(0, in_use(ssd) - ssd.lives[SegmentLife.MAKING] + room)
    wanted = min(ssd.config.segments_max, fits)
    if wanted < ssd.segments_max:
        state.counts.ssd_budget_shrinks[()] += 1
    ssd.segments_max = wanted
    return remove_surplus(state)


def remove_surplus(state: State) -> list[Effect]:
    """Remove free segments beyond the budget, and spoiled ones; others are to be cleared first."""
    ssd, effects = find_ssd(state), []
    surplus = in_use(ssd) - ssd.lives[SegmentLife.REMOVING] - ssd.segments_max
    if not ssd.lives[SegmentLife.FREE] or (surplus <= 0 and not ssd.spoiled):
        return []
    free = [s for s in ssd.segments.values() if s.life == SegmentLife.FREE]
    free.sort(key=lambda s: (not s.spoiled, ssd.directories[s.directory].free_bytes or 0))
    for segment in free:
        if not usable(ssd, ssd.directories[segment.directory]):
            continue
        if surplus <= 0 and not segment.spoiled:
            break
        surplus -= 1
        ssd.turn(segment, SegmentLife.REMOVING)
        request = _request(ssd, segment)
        effects.append(RemoveSegment(request, segment.directory, segment.number))
    return effects


# ---- health ----


def degrade(state: State, number: int, fault: Fault) -> None:
    """Write nothing more to a directory until its canary comes back; reads go on."""
    ssd = find_ssd(state)
    directory = ssd.directories[number]
    if directory.fault is None:
        state.counts.ssd_degradations[number] += 1
        directory.probe_at_ns = state.now_ns + state.config.limits.probe_ns
    directory.fault = fault
    for segment in list(ssd.segments.values()):
        if segment.directory == number and segment.life == SegmentLife.OPEN:
            close_segment(ssd, segment)


def degrade_by(state: State, number: int, fault: Fault, batch: int) -> None:
    """Degrade for what failed of a batch, unless the directory came back since that was asked."""
    if batch > find_ssd(state).directories[number].recovered_batch:
        degrade(state, number, fault)


def suspect(state: State, number: int, row: int) -> list[Effect]:
    """Note a strip that could not be read, and ask the canary whose fault it is."""
    directory = find_ssd(state).directories[number]
    directory.suspects[row] = int(state.index.generation[row])
    directory.suspected_ns = state.now_ns
    return [] if directory.probing else [_probe(state, directory)]


def _probe(state: State, directory: Directory) -> ProbeDirectory:
    directory.probing, directory.probed_ns = True, state.now_ns
    return ProbeDirectory(directory.number)


def _judge(state: State, directory: Directory) -> list[Effect]:
    """Condemn what could not be read though the directory is well: a put heals it."""
    if directory.suspected_ns > directory.probed_ns:
        return [_probe(state, directory)]  # What came back was asked for before.
    for row, generation in directory.suspects.items():
        if state.index.generation[row] == generation and state.index.present[row].any():
            condemn(state, row, Why.UNREADABLE)
    directory.suspects.clear()
    return []


def on_probed(state: State, event: Probed) -> list[Effect]:
    ssd = find_ssd(state)
    directory = ssd.directories[event.directory]
    directory.probing = False
    directory.probe_at_ns = state.now_ns + state.config.limits.probe_ns
    if event.fault is not None:
        directory.suspects.clear()
        # Nothing is wrong with one that is full, or has much to do.
        if event.fault.kind not in (FaultKind.NO_SPACE, FaultKind.CANCELLED):
            degrade(state, event.directory, event.fault)
        return []
    if directory.fault is not None:
        state.counts.ssd_recoveries[event.directory] += 1
        directory.fault = None
        directory.recovered_batch = ssd.batch_id
        ssd.refill = True
    return _judge(state, directory) if directory.suspects else []


def on_tick(state: State) -> list[Effect]:
    """Look at the canaries and the free space, each in its turn."""
    ssd, limits, effects = find_ssd(state), state.config.limits, []
    for directory in ssd.directories:
        if directory.probing:
            # It waits behind every write: one that hangs is found by it.
            if state.now_ns - directory.probed_ns >= limits.write_ns and directory.fault is None:
                late = Fault(FaultKind.TIMEOUT, "writes do not come to an end")
                degrade(state, directory.number, late)
        elif directory.probe_at_ns <= state.now_ns:
            effects.append(_probe(state, directory))
    if ssd.space_at_ns <= state.now_ns:
        ssd.space_at_ns = state.now_ns + limits.space_ns
        effects.append(MeasureSpace())
    return effects + remove_surplus(state)

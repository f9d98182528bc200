"""I3, I4, I6 to I10 of the ssd tier, derived again from the ground and compared."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from kvd.core.index import NO_ROW, Saving, tenant_of
from kvd.core.segments import find_ssd
from kvd.core.ssd import Ssd
from kvd.core.state import State
from kvd.core.transitions import SegmentLife
from kvd.limits import PAGE_BYTES
from kvd.types import CLASS_COUNT

_WITH_STRIPS = (SegmentLife.OPEN, SegmentLife.FULL, SegmentLife.CLEARING)
_ASSIGNED = (SegmentLife.MAKING, SegmentLife.RECYCLING, SegmentLife.OPEN)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """What the index says of segments, by their ids, of tenants, and of rows; `places` in bytes."""

    live_bytes: Counter
    writing: Counter
    places: list[tuple[int, int, int]]  # Segment, offset, size.
    used: Counter
    live: frozenset[int]
    by_saving: dict[Saving, set[int]]
    pieces: int  # In flight.


def derive(state: State, live: np.ndarray) -> OnDisk:
    """Sum up what lies where, strip by strip; it follows from the index alone."""
    index, ssd = state.index, find_ssd(state)
    live_bytes, writing = Counter(), Counter()
    places = []
    for segments, pages, durable in (
        (index.segment, index.page, True),
        (index.new_segment, index.new_page, False),
    ):
        strips = np.flatnonzero(segments)
        columns = (column.reshape(-1)[strips].tolist() for column in (segments, pages, index.size))
        for strip, segment, page, size in zip(strips.tolist(), *columns, strict=True):
            assert ssd.segments[segment].plane_class == strip % CLASS_COUNT
            live_bytes[segment] += size * durable
            writing[segment] += not durable
            places.append((segment, page * PAGE_BYTES, size))
    saving = index.saving[live]
    by_saving = {kind: set(live[saving == kind].tolist()) for kind in Saving}
    rows, pieces = frozenset(live.tolist()), int(index.in_flight.sum())
    return OnDisk(live_bytes, writing, sorted(places), _used(state), rows, by_saving, pieces)


def check(state: State, found: OnDisk) -> None:
    """Raise AssertionError naming the invariant that does not hold."""
    _check_segments(state, found)
    _check_reads(state, found)
    _check_writes(state, found)
    _check_waits(state)


def check_rows(state: State, live: np.ndarray) -> None:
    """I6 among what is durable: a restart finds no holes."""
    index = state.index
    durable = index.segment[live] != 0
    assert (durable[:, 1:] <= durable[:, :-1]).all(), "I6: a durable class without the one before"
    parents = index.parent[live]
    # A replaced chunk is durable by its old strips, until its new ones are.
    ssd = find_ssd(state)
    replaced = [*ssd.held, *(ssd.commit.held if ssd.commit is not None else ())]
    founded = parents == NO_ROW
    if replaced:
        founded |= np.isin(parents, replaced)
    holes = (durable > (index.segment[parents] != 0)).any(axis=1) & ~founded
    told = index.cataloged[live] & index.cataloged[parents] & ~index.condemned[parents]
    told &= index.saving[parents] != Saving.WRITING  # Told just now, and durable with it.
    assert not (holes & told).any(), f"I6, I7: durable without their parents: {live[holes & told]}"
    assert (index.cataloged[live] | ~durable[:, 0] | index.condemned[live]).all(), "I7"
    _check_moving(state, live)


def _check_moving(state: State, live: np.ndarray) -> None:
    """I1, I4: what is written has a place in both tiers; what is read has one, and readers."""
    index = state.index
    placed, writing = index.new_segment != 0, live[index.saving[live] == Saving.WRITING]
    assert set(np.flatnonzero(placed.any(axis=1)).tolist()) == set(writing.tolist()), "I4: saving"
    assert (placed <= (index.slab != 0)).all(), "I4: written from no place"
    coming = index.in_flight != 0
    assert (index.in_flight >= 0).all()
    assert ((index.missing != 0) <= coming).all(), "I1: pieces that nobody reads"
    assert (coming <= (index.slab != 0)).all(), "I4: read into no place"
    assert (index.failed <= coming).all() and (index.hung <= index.failed).all()


def _check_segments(state: State, found: OnDisk) -> None:
    """I3 of the tier, I8, and no two strips in one place."""
    ssd = find_ssd(state)
    assert +ssd.used == found.used, f"I3: on disk, by tenant: {ssd.used}"
    held = Counter(segment for segments in ssd.held.values() for segment in segments)
    held.update(ssd.journal.released)
    if ssd.commit is not None:
        held.update(ssd.commit.journal.released)
        held.update(segment for segments in ssd.commit.held.values() for segment in segments)
    for segment in ssd.segments.values():
        assert segment.live_bytes == found.live_bytes[segment.id], f"I3: segment {segment.id}"
        assert segment.writing == found.writing[segment.id], f"I3: written to {segment.id}"
        assert segment.held == held[segment.id], f"I7: held {segment.id}"
        assert segment.live_bytes + PAGE_BYTES <= segment.end <= ssd.config.segment_bytes
        if segment.life not in _WITH_STRIPS:
            users = segment.live_bytes + segment.writing + segment.held
            assert not users and not ssd.is_read(segment.id), (
                f"I7: {segment.id} is {segment.life}, and used"
            )
    _check_places(ssd, found.places)
    for (stripe, plane_class), segment_id in ssd.open.items():
        segment = ssd.segments[segment_id]
        assert (segment.stripe, segment.plane_class) == (stripe, plane_class)
    opened = [s.id for s in ssd.segments.values() if s.life in _ASSIGNED]
    assert sorted(ssd.open.values()) == sorted(opened)
    assert +ssd.lives == Counter(s.life for s in ssd.segments.values())
    assert ssd.spoiled == sum(s.spoiled for s in ssd.segments.values())
    numbers = [(s.directory, s.number) for s in ssd.segments.values()]
    assert len(set(numbers)) == len(numbers)


def _used(state: State) -> Counter:
    """Return the bytes on disk, or on their way there, by tenant."""
    index, used = state.index, Counter()
    on_disk = np.where((index.segment != 0) | (index.new_segment != 0), index.size, 0).sum(axis=1)
    rows = np.flatnonzero(on_disk)
    for row, size in zip(rows.tolist(), on_disk[rows].tolist(), strict=True):
        used[tenant_of(index, row)] += size
    return used


def _check_places(ssd: Ssd, places: list[tuple[int, int, int]]) -> None:
    before_segment, before_end = 0, 0
    for segment, offset, size in places:
        if segment == before_segment:
            assert offset >= before_end, f"I7: two strips in one place of segment {segment}"
        assert offset >= PAGE_BYTES and offset + size <= ssd.segments[segment].end
        before_segment, before_end = segment, offset + size


def _check_reads(state: State, found: OnDisk) -> None:
    """I4, I9: pieces in flight are counted, and their places are not free."""
    ssd = find_ssd(state)
    waiting = sum(int(batch.waiting.sum()) for batch in ssd.reads.values())
    assert waiting == sum(batch.left for batch in ssd.reads.values())
    assert found.pieces == waiting, "I4: pieces in flight"
    assert 0 <= ssd.reading_bytes <= state.config.limits.reads_in_flight_bytes_max, "I9"


def _check_writes(state: State, found: OnDisk) -> None:
    """I4: what is being written stays in dram until its commit; each row is in one place."""
    index, ssd = state.index, find_ssd(state)
    held = [row for batch in ssd.writes.values() for row in batch.rows.tolist()]
    held += list(ssd.journal.written)
    if ssd.commit is not None:
        held += list(ssd.commit.journal.written)
    assert len(held) == len(set(held)), "I4: written twice"
    assert set(held) == found.by_saving[Saving.WRITING], "I4: written by nobody"
    waiting = [(row, generation) for row, (generation, _) in ssd.queue.items()]
    waiting += ssd.moves.items()
    queued = {row for row, generation in waiting if index.generation[row] == generation}
    assert queued >= found.by_saving[Saving.QUEUED], "queued"
    assert ssd.queued_bytes == sum(size for _, size in ssd.queue.values())
    assert found.live.issuperset(ssd.queue), "I9: queued and gone"
    assert len(ssd.writes) <= state.config.limits.writes_in_flight_max * ssd.stripes, "I9"


def _check_waits(state: State) -> None:
    """I10: who waits for durable chunks has a session."""
    for wait in find_ssd(state).waits.values():
        assert wait.request in state.sessions[wait.session].requests, "I10"

"""What the ssd tier must do between the core's effects and its events, on every implementation:
the simulator's, and disk and catalog behind the daemon's hand. Checks are plain functions.
"""

from kvd.core.disk_effects import MeasureSpace, ProbeDirectory, SegmentRecord
from kvd.core.disk_events import Probed, SpaceSeen
from kvd.errors import FaultKind
from kvd.limits import PAGE_BYTES
from kvd.testing.tier_bench import (
    DIRECTORIES,
    GOOD,
    SEGMENT_BYTES,
    SEGMENT_PAGES,
    At,
    Bench,
    Rig,
    Source,
    chunks_of,
    record,
    rows_of,
)
from kvd.types import PlaneClass, SegmentState

ANCHOR, RESIDUAL, EXACT = PlaneClass


def _written(rig: Rig, count: int = 3) -> tuple[Bench, list[Source], list[At]]:
    """Return a tier whose segment 1 holds `count` anchors back to back, of which no row tells."""
    bench = Bench(rig)
    sources = [rig.make_strip(number, ANCHOR, 2) for number in range(count)]
    places = [At(1 + 2 * number) for number in range(count)]
    assert bench.make() is None
    assert bench.write(sources, places) == [GOOD] * count
    return bench, sources, places


def _committed(rig: Rig, count: int = 3) -> tuple[Bench, list[Source], list[At]]:
    bench, sources, places = _written(rig, count)
    strips = list(zip(sources, places, strict=True))
    assert bench.commit(strips, segments=(record(At(0), SegmentState.OPEN),)) is None
    return bench, sources, places


def _two_classes(rig: Rig) -> tuple[Bench, list[tuple[Source, At]], list[SegmentRecord]]:
    """Return a tier that holds one chunk of two classes, each in a directory of its own."""
    bench = Bench(rig)
    places = [At(1, segment=1), At(3, directory=1, segment=2)]
    sources = [rig.make_strip(5, plane_class, 1) for plane_class in (ANCHOR, RESIDUAL)]
    records = []
    for place, plane_class in zip(places, (ANCHOR, RESIDUAL), strict=True):
        assert bench.make(place, plane_class) is None
        records.append(record(place, SegmentState.FULL, plane_class))
    assert bench.write(sources, places) == [GOOD] * 2
    strips = list(zip(sources, places, strict=True))
    assert bench.commit(strips, segments=tuple(records)) is None
    return bench, strips, records


# ---- beginning ----


def check_a_new_tier_holds_nothing(rig: Rig) -> None:
    recovered = rig.recovered
    assert not recovered.rows.parents and not recovered.segments and not recovered.keyspaces
    assert recovered.generation == 0 and recovered.written[1] == 0


def check_a_tier_that_was_told_nothing_holds_nothing_after_a_restart(rig: Rig) -> None:
    check_a_new_tier_holds_nothing(rig)
    rig.restart()
    check_a_new_tier_holds_nothing(rig)


# ---- strips ----


def check_what_is_written_is_read(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    assert bench.read(sources, places) == ([GOOD] * 3, [True] * 3)
    assert bench.read(sources[::-1], places[::-1]) == ([GOOD] * 3, [True] * 3)


def check_a_piece_of_a_strip_is_read_by_itself(rig: Rig) -> None:
    bench = Bench(rig)
    source = rig.make_strip(4, EXACT, 9)
    assert bench.make(plane_class=EXACT) is None
    assert bench.write([source], [At(5)]) == [GOOD]
    assert bench.read([source], [At(5)], begin=4 * PAGE_BYTES) == ([GOOD], [True])


def check_directories_and_segments_are_apart(rig: Rig) -> None:
    bench = Bench(rig)
    places = [At(1, directory, segment) for directory in range(DIRECTORIES) for segment in (1, 7)]
    sources = [rig.make_strip(number, ANCHOR, 2) for number in range(len(places))]
    for place in places:
        assert bench.make(place) is None
    assert bench.write(sources, places) == [GOOD] * len(places)
    assert bench.read(sources, places) == ([GOOD] * len(places), [True] * len(places))


def check_the_last_page_can_be_used(rig: Rig) -> None:
    bench, source = Bench(rig), rig.make_strip(1, ANCHOR, 2)
    assert bench.make() is None and bench.write([source], [At(SEGMENT_PAGES - 2)]) == [GOOD]
    assert bench.read([source], [At(SEGMENT_PAGES - 2)]) == ([GOOD], [True])


def check_a_strip_that_does_not_fit_its_root_is_not_written(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    others = [rig.make_strip(number, ANCHOR, 2, damaged=number == 11) for number in (10, 11, 12)]
    assert bench.write(others, places) == [GOOD, FaultKind.CHECKSUM, GOOD]
    kinds, right = bench.read([others[0], sources[1], others[2]], places)
    assert kinds == [GOOD] * 3 and all(right)


def check_bytes_in_the_wrong_place_are_seen(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    kinds, _ = bench.read(sources, [places[1], places[0], places[2]])
    assert kinds == [FaultKind.CHECKSUM, FaultKind.CHECKSUM, GOOD]


def check_another_epoch_is_stale(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    later = [At(place.page, epoch=2) for place in places]
    assert bench.read(sources, later)[0] == [FaultKind.GONE] * 3
    assert bench.write(sources[:1], later[:1]) == [FaultKind.GONE]
    assert bench.read(sources, places) == ([GOOD] * 3, [True] * 3)


def check_a_missing_segment_is_a_fault_of_its_own(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    kinds, right = bench.read(sources, [places[0], At(1, segment=9), places[2]])
    assert kinds == [GOOD, FaultKind.GONE, GOOD] and right[0] and right[2]


def check_a_read_whose_time_is_over_is_late(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    assert bench.read(sources, places, wait_ns=0)[0] == [FaultKind.TIMEOUT] * 3


# ---- segments ----


def check_recycling_makes_what_was_there_stale(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    assert bench.recycle(At(0, epoch=4), RESIDUAL) is None
    assert bench.read(sources, places)[0] == [FaultKind.GONE] * 3
    later, source = At(1, epoch=4), rig.make_strip(8, RESIDUAL, 3)
    assert bench.write([source], [later]) == [GOOD]
    assert bench.read([source], [later]) == ([GOOD], [True])


def check_an_epoch_is_never_taken_back(rig: Rig) -> None:
    bench, _, _ = _written(rig)
    assert bench.recycle(At(0, epoch=4)) is None
    assert bench.recycle(At(0, epoch=3)).kind == FaultKind.FORMAT
    assert bench.recycle(At(0, epoch=4)) is None  # As after a crash before a commit told of it.


def check_a_removed_segment_is_gone(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    assert bench.remove() is None
    assert bench.read(sources, places)[0] == [FaultKind.GONE] * 3
    assert bench.recycle(At(0, epoch=2)).kind == FaultKind.GONE
    assert bench.remove() is None
    assert bench.make() is None


def check_a_segment_is_made_once(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    assert bench.make(At(0, epoch=2)).kind == FaultKind.FORMAT
    assert bench.read(sources, places) == ([GOOD] * 3, [True] * 3)


# ---- restarts ----


def check_what_was_committed_is_recovered(rig: Rig) -> None:
    bench, sources, places = _committed(rig)
    recovered = bench.restart()
    expected = rows_of(list(zip(sources, places, strict=True)))
    assert chunks_of(recovered.rows) == chunks_of(expected)
    assert recovered.segments == (record(At(0), SegmentState.OPEN),)
    assert list(recovered.keyspaces.values()) == [rig.keyspace]
    assert recovered.keyspaces.keys() == {sources[0].name.keyspace}
    assert recovered.generation == 1000 and recovered.written == (7, 4096)
    assert bench.read(sources, places) == ([GOOD] * 3, [True] * 3)


def check_a_row_has_strips_of_several_classes(rig: Rig) -> None:
    bench, strips, records = _two_classes(rig)
    recovered = bench.restart()
    assert chunks_of(recovered.rows) == chunks_of(rows_of(strips))
    assert sorted(recovered.segments, key=lambda r: r.segment) == records
    sources, places = (list(column) for column in zip(*strips, strict=True))
    assert bench.read(sources, places) == ([GOOD] * 2, [True] * 2)


def check_a_lost_file_is_named_and_its_rows_stay_until_a_commit(rig: Rig) -> None:
    bench, strips, records = _two_classes(rig)
    where = strips[1][1]
    assert bench.remove(where) is None
    for _ in range(2):
        recovered = bench.restart()
        assert recovered.lost == ((where.directory, where.segment),)
        assert chunks_of(recovered.rows) == chunks_of(rows_of(strips))
        assert list(recovered.segments) == records
        assert recovered.number == max(record.segment for record in records)
    assert bench.commit(strips[:1], removed=recovered.lost) is None
    recovered = bench.restart()
    assert chunks_of(recovered.rows) == chunks_of(rows_of(strips[:1]))
    assert list(recovered.segments) == records[:1] and recovered.lost == ()


def check_what_was_not_committed_is_forgotten(rig: Rig) -> None:
    bench, sources, places = _written(rig)
    recovered = bench.restart()
    assert not recovered.rows.parents and not recovered.segments
    assert bench.read(sources, places)[0] == [FaultKind.GONE] * 3
    assert bench.make() is None  # Its file was removed: its space is not lost.


def check_a_dropped_row_is_forgotten(rig: Rig) -> None:
    bench, sources, places = _committed(rig)
    assert bench.commit(dropped=(sources[1],)) is None
    kept = rows_of([(sources[at], places[at]) for at in (0, 2)])
    recovered = chunks_of(bench.restart().rows)
    assert recovered.keys() == chunks_of(kept).keys()


def check_a_row_that_is_dropped_and_put_is_there(rig: Rig) -> None:
    bench, sources, places = _committed(rig)
    assert bench.commit([(sources[1], places[1])], dropped=(sources[1],)) is None
    assert len(bench.restart().rows.parents) == 3


def check_a_row_is_replaced_whole(rig: Rig) -> None:
    bench, sources, _ = _committed(rig)
    later = At(21)
    assert bench.write(sources[:1], [later]) == [GOOD]
    assert bench.commit([(sources[0], later)]) is None
    found = chunks_of(bench.restart().rows)[sources[0].name, sources[0].chain]
    assert found == chunks_of(rows_of([(sources[0], later)]))[sources[0].name, sources[0].chain]


def check_rows_of_another_life_of_a_segment_are_forgotten(rig: Rig) -> None:
    bench, sources, _ = _committed(rig)
    assert bench.recycle(At(0, epoch=2)) is None
    assert bench.commit(dropped=(), segments=(record(At(0, epoch=2), SegmentState.OPEN),)) is None
    recovered = bench.restart()
    assert not recovered.rows.parents
    assert recovered.segments == (record(At(0, epoch=2), SegmentState.OPEN),)
    assert bench.write(sources[:1], [At(1, epoch=2)]) == [GOOD]


def check_a_removed_record_is_forgotten(rig: Rig) -> None:
    bench, sources, _ = _committed(rig)
    assert bench.remove() is None
    assert bench.commit(dropped=tuple(sources), removed=((0, 1),)) is None
    recovered = bench.restart()
    assert not recovered.rows.parents and not recovered.segments
    assert recovered.generation == 1000 and len(recovered.keyspaces) == 1


def check_a_free_segment_is_recovered_and_can_be_recycled(rig: Rig) -> None:
    bench, sources, _ = _committed(rig)
    free = record(At(0), SegmentState.FREE)
    assert bench.commit(dropped=tuple(sources), segments=(free,)) is None
    assert bench.restart().segments == (free,)
    assert bench.recycle(At(0, epoch=2)) is None
    assert bench.write(sources[:1], [At(1, epoch=2)]) == [GOOD]


# ---- health ----


def check_canaries_live(rig: Rig) -> None:
    for directory in range(DIRECTORIES):
        rig.carry_out(ProbeDirectory(directory))
    rig.settle(lambda: sum(isinstance(e, Probed) for e in list(rig.events)) == DIRECTORIES)
    probes = [e for e in rig.events if isinstance(e, Probed)]
    assert sorted(probes, key=lambda p: p.directory) == [Probed(0, None), Probed(1, None)]


def check_space_is_seen(rig: Rig) -> None:
    rig.carry_out(MeasureSpace())
    rig.settle(lambda: any(isinstance(e, SpaceSeen) for e in list(rig.events)))
    [seen] = [e for e in rig.events if isinstance(e, SpaceSeen)]
    assert len(seen.devices) == len(seen.free_bytes) == DIRECTORIES
    assert min(seen.free_bytes) >= SEGMENT_BYTES


CHECKS = tuple(check for name, check in sorted(globals().items()) if name.startswith("check_"))

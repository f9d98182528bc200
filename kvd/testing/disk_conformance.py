"""What any disk must do, run on every implementation: files, devices, and the simulator's.

A rig makes a disk of two directories, lends it memory, and lets its work proceed; checks are
plain functions.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from kvd.disk.contract import (
    Disk,
    DiskReport,
    Names,
    Probed,
    ReadReleased,
    Report,
    SegmentDone,
    SegmentPlace,
    StripsRead,
    StripsWritten,
)
from kvd.errors import Fault, FaultKind
from kvd.limits import PAGE_BYTES
from kvd.testing.disk_strips import At, Strip, make_strip, names_of, places_of
from kvd.types import PlaneClass

DIRECTORIES = 2
SEGMENT_PAGES = 64
SEGMENT_BYTES = SEGMENT_PAGES * PAGE_BYTES
GOOD = 0


class Rig(Protocol):
    def make(self, report: Report) -> Disk:
        """Return a fresh disk of DIRECTORIES directories and SEGMENT_BYTES."""
        ...

    def memory(self, size_bytes: int) -> tuple[int, "Memory"]:
        """Return the address of memory that the disk can use, and a way to its bytes."""
        ...

    def settle(self, done: Callable[[], bool]) -> None:
        """Let the disk's work proceed until `done`; fail after a bounded time."""
        ...

    def now_ns(self) -> int: ...


class Memory(Protocol):
    def put(self, data: bytes) -> None: ...

    def get(self) -> bytes: ...


# ---- a disk at work ----


class Reports:
    """Collects what a disk reports, in order."""

    def __init__(self) -> None:
        self.seen: list[DiskReport] = []

    def __call__(self, report: DiskReport) -> None:
        self.seen.append(report)

    def items(self, kind: type, batch: int) -> list[int]:
        return [i for r in self.of(kind, batch) for i in r.items.tolist()]

    def of(self, kind: type, batch: int) -> list:
        return [r for r in list(self.seen) if type(r) is kind and r.batch == batch]

    def kinds(self, kind: type, batch: int) -> list[int]:
        """Return the kind of each item of a batch, in item order."""
        found: dict[int, int] = {}
        for report in self.of(kind, batch):
            told = dict(zip(report.items.tolist(), report.kinds.tolist(), strict=True))
            assert not found.keys() & told.keys(), "an item was reported twice"
            assert {f.kind for f in report.faults} == {k for k in told.values() if k}
            found |= told
        assert sorted(found) == list(range(len(found)))
        return [found[item] for item in sorted(found)]

    def done(self, kind: type, request: int) -> Fault | None:
        [report] = [r for r in self.seen if type(r) is kind and r.request == request]
        return report.fault


class Bench:
    """A disk under a check, with numbers for what it is asked."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.reports = rig, Reports()
        self.disk = rig.make(self.reports)
        self._number = 0
        self._kept: list[Memory] = []

    def number(self) -> int:
        self._number += 1
        return self._number

    def make(self, segment: int = 1, directory: int = 0, epoch: int = 1) -> Fault | None:
        place = SegmentPlace(directory, segment, epoch, PlaneClass.ANCHOR)
        return self._segment(lambda request: self.disk.make_segment(request, place))

    def recycle(self, epoch: int, segment: int = 1, directory: int = 0) -> Fault | None:
        place = SegmentPlace(directory, segment, epoch, PlaneClass.ANCHOR)
        return self._segment(lambda request: self.disk.recycle_segment(request, place))

    def drop(self, segment: int = 1, directory: int = 0) -> Fault | None:
        return self._segment(lambda request: self.disk.drop_segment(request, directory, segment))

    def write(self, strips: list[Strip], places: list[At], names: Names | None = None) -> list[int]:
        """Write strips and return the kind of each."""
        addresses = []
        for strip in strips:
            address, memory = self.rig.memory(len(strip.data))
            memory.put(strip.data)
            self._kept.append(memory)
            addresses.append(address)
        batch = self.number()
        names = names_of(strips) if names is None else names
        self.disk.write_strips(batch, places_of(places, addresses), names)
        self.rig.settle(lambda: len(self.reports.items(StripsWritten, batch)) == len(strips))
        return self.reports.kinds(StripsWritten, batch)

    def read(
        self, places: list[At], names: Names | None = None, wait_ns: int = 20 * 10**9
    ) -> tuple[list[int], list[bytes]]:
        """Read pieces; return the kind and the memory of each."""
        memories = [self.rig.memory(place.pages * PAGE_BYTES) for place in places]
        batch = self.number()
        columns = places_of(places, [address for address, _ in memories])
        self.disk.read_strips(batch, columns, names, self.rig.now_ns() + wait_ns)
        self.rig.settle(lambda: len(self.reports.items(StripsRead, batch)) == len(places))
        for report in self.reports.of(StripsRead, batch):
            assert not report.busy and not self.reports.of(ReadReleased, batch)
        return self.reports.kinds(StripsRead, batch), [memory.get() for _, memory in memories]

    def probe(self, directory: int) -> Fault | None:
        request = self.number()
        self.disk.probe(request, directory)
        self._settle(Probed, request)
        return self.reports.done(Probed, request)

    def _segment(self, ask: Callable[[int], None]) -> Fault | None:
        request = self.number()
        ask(request)
        self._settle(SegmentDone, request)
        return self.reports.done(SegmentDone, request)

    def _settle(self, kind: type, request: int) -> None:
        def reported() -> bool:
            return any(type(r) is kind and r.request == request for r in list(self.reports.seen))

        self.rig.settle(reported)


def _filled(rig: Rig, count: int = 4) -> tuple[Bench, list[Strip], list[At]]:
    """Return a disk whose segment 1 holds `count` strips back to back."""
    bench = Bench(rig)
    strips = [make_strip(number) for number in range(count)]
    places = [At(1 + 2 * index) for index in range(count)]
    assert bench.make() is None
    assert bench.write(strips, places) == [GOOD] * count
    return bench, strips, places


# ---- the checks ----


def check_what_is_written_is_read(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    kinds, data = bench.read(places, names_of(strips))
    assert kinds == [GOOD] * 4 and data == [strip.data for strip in strips]
    kinds, data = bench.read(places[::-1])
    assert kinds == [GOOD] * 4 and data == [strip.data for strip in strips[::-1]]
    bench.disk.close()


def check_a_part_of_a_strip_is_read_by_itself(rig: Rig) -> None:
    bench = Bench(rig)
    strip = make_strip(7, pages=9)
    assert bench.make() is None and bench.write([strip], [At(3, 9)]) == [GOOD]
    kinds, data = bench.read([At(3 + begin, pages) for begin, pages in ((0, 1), (4, 3), (8, 1))])
    assert kinds == [GOOD] * 3
    pages = (strip.data[:PAGE_BYTES], strip.data[4 * PAGE_BYTES : 7 * PAGE_BYTES])
    assert data == [*pages, strip.data[8 * PAGE_BYTES :]]
    bench.disk.close()


def check_directories_and_segments_are_apart(rig: Rig) -> None:
    bench = Bench(rig)
    places = [At(1, 2, segment, directory) for directory in (0, 1) for segment in (3, 99_999_999)]
    strips = [make_strip(number) for number in range(4)]
    for place in places:
        assert bench.make(place.segment, place.directory) is None
    assert bench.write(strips, places) == [GOOD] * 4
    kinds, data = bench.read(places, names_of(strips))
    assert kinds == [GOOD] * 4 and data == [strip.data for strip in strips]
    bench.disk.close()


def check_a_strip_that_does_not_fit_its_root_is_not_written(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    others = [make_strip(number) for number in range(10, 14)]
    names = names_of(others)
    names.roots[1] ^= np.uint64(1)
    names.generations[2] += np.uint64(1)
    kinds = bench.write(others, places, names)
    assert kinds == [GOOD, FaultKind.CHECKSUM, FaultKind.CHECKSUM, GOOD]
    _, data = bench.read(places)
    assert data == [others[0].data, strips[1].data, strips[2].data, others[3].data]
    bench.disk.close()


def check_a_table_that_is_none_is_not_written(rig: Rig) -> None:
    bench, strips, places = _filled(rig, 1)
    wrong = make_strip(5)
    table = bytearray(wrong.data)
    table[0:4] = (8).to_bytes(4, "little")  # The first cell inside of the table.
    wrong = Strip(wrong.key, wrong.lane, wrong.plane_class, wrong.generation, bytes(table))
    assert bench.write([wrong], places) == [FaultKind.CHECKSUM]
    assert bench.read(places)[1] == [strips[0].data]
    bench.disk.close()


def check_right_bytes_in_a_wrong_place_are_seen(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    kinds, _ = bench.read([places[1], places[0], places[2]], names_of(strips[:3]))
    assert kinds == [FaultKind.CHECKSUM, FaultKind.CHECKSUM, GOOD]
    bench.disk.close()


def check_pieces_without_a_table_are_not_checked(rig: Rig) -> None:
    bench, strips, places = _filled(rig, 2)
    names = names_of(strips[::-1])
    names.cells[0] = 0
    kinds, _ = bench.read(places, names)
    assert kinds == [GOOD, FaultKind.CHECKSUM]
    bench.disk.close()


def check_another_epoch_is_stale(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    later = [At(place.page, epoch=2) for place in places]
    assert bench.read(later)[0] == [FaultKind.GONE] * 4
    assert bench.write(strips[:1], later[:1]) == [FaultKind.GONE]
    kinds, data = bench.read([places[0], later[1]])
    assert kinds == [GOOD, FaultKind.GONE] and data[0] == strips[0].data
    bench.disk.close()


def check_recycling_makes_what_was_there_stale(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    assert bench.recycle(epoch=5) is None
    assert bench.read(places)[0] == [FaultKind.GONE] * 4
    later = [At(place.page, epoch=5) for place in places]
    assert bench.write(strips[:1], later[:1]) == [GOOD]
    assert bench.read(later[:1], names_of(strips[:1])) == ([GOOD], [strips[0].data])
    assert bench.write(strips[:1], places[:1]) == [FaultKind.GONE]
    bench.disk.close()


def check_an_epoch_is_never_taken_back(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    assert bench.recycle(epoch=5) is None
    assert bench.recycle(epoch=4).kind == FaultKind.FORMAT
    assert bench.read(places)[0] == [FaultKind.GONE] * 4
    assert bench.recycle(epoch=5) is None  # As after a crash before the catalog knew of it.
    bench.disk.close()


def check_what_was_dropped_is_gone(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    assert bench.drop() is None
    assert bench.read(places)[0] == [FaultKind.GONE] * 4
    assert bench.write(strips[:1], places[:1]) == [FaultKind.GONE]
    assert bench.recycle(epoch=2).kind == FaultKind.GONE
    assert bench.drop() is None
    assert bench.make(epoch=2) is None
    assert bench.read(places)[0] == [FaultKind.GONE] * 4
    bench.disk.close()


def check_a_segment_is_made_once(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    assert bench.make(epoch=2).kind == FaultKind.FORMAT
    kinds, data = bench.read(places)
    assert kinds == [GOOD] * 4 and data == [strip.data for strip in strips]
    bench.disk.close()


def check_a_place_that_cannot_be_is_a_fault_of_its_own(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    outside = [At(SEGMENT_PAGES - 1, 2), At(SEGMENT_PAGES, 1), At(1 << 31, 1)]
    nowhere = [At(1, directory=DIRECTORIES), At(1, segment=10**8)]
    kinds, data = bench.read([*outside, places[0], *nowhere])
    assert kinds == [FaultKind.FORMAT] * 3 + [GOOD] + [FaultKind.FORMAT] * 2
    assert data[3] == strips[0].data
    assert bench.write(strips[:2], [outside[0], places[1]]) == [FaultKind.FORMAT, GOOD]
    bench.disk.close()


def check_a_missing_segment_is_a_fault_of_its_own(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    kinds, data = bench.read([places[0], At(1, segment=2), places[1]], None)
    assert kinds == [GOOD, FaultKind.GONE, GOOD]
    assert (data[0], data[2]) == (strips[0].data, strips[1].data)
    bench.disk.close()


def check_the_last_page_of_a_segment_can_be_used(rig: Rig) -> None:
    bench = Bench(rig)
    strip = make_strip(1)
    assert bench.make() is None
    assert bench.write([strip], [At(SEGMENT_PAGES - 2)]) == [GOOD]
    assert bench.read([At(SEGMENT_PAGES - 2)], names_of([strip])) == ([GOOD], [strip.data])
    bench.disk.close()


def check_a_read_whose_time_is_over_is_late(rig: Rig) -> None:
    bench, _, places = _filled(rig)
    assert bench.read(places, wait_ns=0)[0] == [FaultKind.TIMEOUT] * 4
    bench.disk.close()


def check_many_pieces_are_each_reported_once(rig: Rig) -> None:
    bench = Bench(rig)
    count = SEGMENT_PAGES // 2 - 1
    strips = [make_strip(number) for number in range(2 * count)]
    places = [At(1 + 2 * (i // 2), directory=i % 2) for i in range(2 * count)]
    assert bench.make() is None and bench.make(directory=1) is None
    assert bench.write(strips, places) == [GOOD] * len(strips)
    kinds, data = bench.read(places * 3)
    assert kinds == [GOOD] * (3 * len(strips)) and data == [strip.data for strip in strips] * 3
    bench.disk.close()


def check_space_counts_segments(rig: Rig) -> None:
    bench = Bench(rig)
    before = bench.disk.space()
    assert len(before) == DIRECTORIES
    assert bench.make(1) is None and bench.make(2) is None
    made = bench.disk.space()
    grown = made[0].allocated_bytes - before[0].allocated_bytes
    assert 2 * SEGMENT_BYTES <= grown <= 2 * SEGMENT_BYTES + 16 * PAGE_BYTES
    assert made[1].allocated_bytes == before[1].allocated_bytes
    assert bench.drop(1) is None and bench.drop(2) is None
    after = bench.disk.space()[0].allocated_bytes
    assert after - before[0].allocated_bytes <= 16 * PAGE_BYTES
    bench.disk.close()


def check_canaries_live(rig: Rig) -> None:
    bench = Bench(rig)
    assert [bench.probe(directory) for directory in (0, 1, 0)] == [None] * 3
    bench.disk.close()


def check_a_closed_disk_answers(rig: Rig) -> None:
    bench, strips, places = _filled(rig)
    bench.disk.close()
    assert bench.read(places)[0] == [FaultKind.CANCELLED] * 4
    assert bench.write(strips, places) == [FaultKind.CANCELLED] * 4
    assert bench.probe(0).kind == bench.make(2).kind == FaultKind.CANCELLED


CHECKS = tuple(check for name, check in sorted(globals().items()) if name.startswith("check_"))

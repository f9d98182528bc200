"""A disk under faults: each becomes a value of what it concerns, and nothing else suffers."""

import errno
import mmap
import os
import shutil
import threading

import numpy as np
import pytest

from kvd.arena.memfd import open_memory
from kvd.disk.contract import SegmentDone, SegmentPlace, StripsRead, StripsWritten
from kvd.disk.files import fault_of
from kvd.errors import FaultKind
from kvd.limits import PAGE_BYTES, DiskBounds
from kvd.testing.disk_conformance import GOOD, SEGMENT_BYTES, Bench
from kvd.testing.disk_strips import At, make_strip, names_of, places_of
from kvd.types import PlaneClass
from tests.unit.disk_double import DEADLINE_S, DiskRig, Elsewhere, Short, at, failure, nothing

STRIPS = [make_strip(number) for number in range(4)]
PLACES = [At(1 + 2 * index) for index in range(4)]
CODES = {
    errno.EIO: FaultKind.IO, errno.ENOSPC: FaultKind.NO_SPACE, errno.EMFILE: FaultKind.CANCELLED,
}  # fmt: skip


@pytest.fixture
def rig(tmp_path):
    return DiskRig(tmp_path)


def filled(rig):
    bench = Bench(rig)
    assert bench.make() is None and bench.write(STRIPS, PLACES) == [GOOD] * 4
    return bench


def data_of(strips):
    return [strip.data for strip in strips]


def life(bench):
    """Do everything that changes a disk, in order; yield the kinds of what came of it."""
    later = [At(place.page, epoch=2) for place in PLACES]
    for change in (
        lambda: bench.make(),
        lambda: bench.write(STRIPS[:2], PLACES[:2]),
        lambda: bench.write(STRIPS[2:], PLACES[2:]),
        lambda: bench.recycle(epoch=2),
        lambda: bench.write(STRIPS[:2], later[2:]),
        lambda: bench.probe(0),
        lambda: bench.drop(),
        lambda: bench.make(epoch=3),
    ):
        answer = change()
        kinds = answer if isinstance(answer, list) else [answer.kind if answer else GOOD]
        yield set(kinds)


@pytest.mark.parametrize("code", CODES)
def test_a_fault_at_any_write_site_is_one_fault_and_it_goes_on(tmp_path, code):
    index, sites = 0, set()
    while True:
        rig = DiskRig(tmp_path / str(index))
        bench = Bench(rig)
        rig.files.plan = plan = at(index, code)
        seen = list(life(bench))
        hit = len(plan.seen) > index
        faults = {kind for kinds in seen for kind in kinds if kind != GOOD}
        if hit:
            sites.add((plan.seen[index].name, plan.seen[index].file))
            # What needed the thing that failed is GONE or stale; the failure itself is named.
            assert CODES[code] in faults and faults <= {
                CODES[code],
                FaultKind.GONE,
                FaultKind.FORMAT,
            }
        else:
            assert not faults
        rig.files.plan = nothing
        again(bench)
        bench.disk.close()
        if not hit:
            break
        index += 1
    assert {name for name, _ in sites} == {"create", "allocate", "pwritev", "sync", "unlink"}
    assert {file for _, file in sites} == {"00000001", "segments", "canary"}


def again(bench):
    """See that a disk works, whatever it went through."""
    assert bench.drop() is None and bench.make(epoch=9) is None
    places = [At(place.page, epoch=9) for place in PLACES]
    assert bench.write(STRIPS, places) == [GOOD] * 4
    assert bench.read(places, names_of(STRIPS)) == ([GOOD] * 4, data_of(STRIPS))
    assert bench.probe(0) is None


def test_a_failed_make_leaves_no_file_behind(rig, tmp_path):
    bench = Bench(rig)
    for name in ("allocate", "pwritev", "sync"):
        rig.files.plan = lambda call, name=name: failure(errno.EIO) if call.name == name else None
        assert bench.make().kind == FaultKind.IO
        assert os.listdir(tmp_path / "0" / "segments") == []
    bench.disk.close()


def test_a_fault_of_one_segment_leaves_the_others_alone(rig):
    bench = Bench(rig)
    assert bench.make(1) is None and bench.make(2) is None
    rig.files.plan = lambda call: (
        failure(errno.EIO) if (call.name, call.file) == ("pwritev", "00000001") else None
    )
    places = [At(1, segment=1), At(1, segment=2), At(3, segment=1), At(3, segment=2)]
    assert bench.write(STRIPS, places) == [FaultKind.IO, GOOD, FaultKind.IO, GOOD]
    [report] = bench.reports.of(StripsWritten, 3)
    assert len(report.faults) == 1 and "00000001" in report.faults[0].message
    kinds, data = bench.read(places[1::2], names_of(STRIPS[1::2]))
    assert kinds == [GOOD, GOOD] and data == data_of(STRIPS[1::2])
    bench.disk.close()


def test_a_failed_sync_is_believed_of_the_whole_segment(rig):
    bench = filled(rig)
    rig.files.plan = lambda call: failure(errno.EIO) if call.name == "sync" else None
    assert bench.write(STRIPS, PLACES) == [FaultKind.IO] * 4
    bench.disk.close()


def test_each_touched_segment_is_synced_once(rig):
    bench = Bench(rig)
    assert bench.make(1) is None and bench.make(2) is None
    rig.files.calls.clear()
    places = [At(1, segment=1), At(1, segment=2), At(3, segment=1), At(3, segment=2)]
    assert bench.write(STRIPS, places) == [GOOD] * 4
    syncs = [call.file for call in rig.files.calls if call.name == "sync"]
    assert sorted(syncs) == ["00000001", "00000002"]
    bench.disk.close()


def test_neighbours_are_written_and_read_in_one_call(rig):
    bench = filled(rig)
    for name, move in (
        ("pwritev", lambda: bench.write(STRIPS, PLACES)),
        ("preadv", lambda: bench.read(PLACES)[0]),
    ):
        rig.files.calls.clear()
        assert move() == [GOOD] * 4
        moved = [call for call in rig.files.calls if call.name == name and call.offset]
        assert [call.offset for call in moved] == [PAGE_BYTES]
    bench.disk.close()


def test_a_way_that_was_refused_once_is_not_tried_again(rig):
    """O_DIRECT, where a file system has none: one look at the start, not one for each read."""
    asked = []

    def plan(call):
        return failure(errno.EINVAL) if call.name == "open" and asked[-1] & os.O_DIRECT else None

    class Noting(type(rig.files)):
        def open(self, path, flags):
            asked.append(flags)
            return super().open(path, flags)

    rig.files = Noting(plan)
    bench = filled(rig)
    refused = sum(flags & os.O_DIRECT != 0 for flags in asked)
    assert 1 <= refused <= 2 and not rig.directories[0].direct
    for _ in range(20):
        assert bench.read(PLACES, names_of(STRIPS)) == ([GOOD] * 4, data_of(STRIPS))
        assert bench.write(STRIPS, PLACES) == [GOOD] * 4
    assert sum(flags & os.O_DIRECT != 0 for flags in asked) == refused
    bench.disk.close()


@pytest.mark.parametrize("size_bytes", [PAGE_BYTES, 3 * PAGE_BYTES, 2 * PAGE_BYTES + 512])
def test_short_reads_and_writes_go_on(rig, size_bytes):
    bench = Bench(rig)
    assert bench.make() is None
    rig.files.plan = lambda call: Short(size_bytes) if call.offset else None
    assert bench.write(STRIPS, PLACES) == [GOOD] * 4
    assert bench.read(PLACES, names_of(STRIPS)) == ([GOOD] * 4, data_of(STRIPS))
    bench.disk.close()


@pytest.mark.parametrize("size_bytes", [0, 512])
def test_what_makes_no_progress_is_a_fault(rig, size_bytes):
    bench = filled(rig)
    rig.files.plan = lambda call: Short(size_bytes) if call.offset > PAGE_BYTES else None
    assert bench.write(STRIPS[2:], PLACES[2:]) == [FaultKind.IO] * 2
    assert bench.read(PLACES[2:])[0] == [FaultKind.IO] * 2
    bench.disk.close()


def test_a_file_that_ends_early_is_a_fault(rig, tmp_path):
    bench = filled(rig)
    os.truncate(tmp_path / "0" / "segments" / "00000001", 4 * PAGE_BYTES)
    kinds, data = bench.read([PLACES[0]])
    assert kinds == [GOOD] and data == [STRIPS[0].data]
    for place in PLACES[1:]:
        assert bench.read([place])[0] == [FaultKind.IO]
    bench.disk.close()


def test_misdirected_reads_and_writes_are_seen(rig):
    bench = filled(rig)
    rig.files.plan = lambda call: Elsewhere(2 * PAGE_BYTES) if call.offset else None
    assert bench.read(PLACES[:1], names_of(STRIPS[:1]))[0] == [FaultKind.CHECKSUM]
    other = make_strip(9)
    assert bench.write([other], PLACES[:1]) == [GOOD]
    rig.files.plan = nothing
    kinds, _ = bench.read(PLACES[:3], names_of([other, *STRIPS[1:3]]))
    assert kinds == [FaultKind.CHECKSUM, FaultKind.CHECKSUM, GOOD]
    bench.disk.close()


def flip(path, offset):
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 0x20]), offset)
        os.fsync(file.fileno())


@pytest.mark.parametrize("offset", [3, 9, 13, 20, 25, 41, 45, 48, 50, 57, 100, PAGE_BYTES - 1])
def test_a_flipped_bit_in_a_head_is_a_fault_of_that_segment(rig, tmp_path, offset):
    bench = filled(rig)
    assert bench.make(2) is None
    assert bench.write(STRIPS[:1], [At(1, segment=2)]) == [GOOD]
    bench.disk.close()
    flip(tmp_path / "0" / "segments" / "00000001", offset)
    bench = Bench(rig)
    assert bench.read(PLACES)[0] == [FaultKind.FORMAT] * 4
    assert bench.write(STRIPS, PLACES) == [FaultKind.FORMAT] * 4
    assert bench.read([At(1, segment=2)])[0] == [GOOD]
    assert bench.recycle(epoch=2) is None
    assert bench.write(STRIPS[:1], [At(1, epoch=2)]) == [GOOD]
    bench.disk.close()


def test_a_segment_under_another_name_is_a_fault(rig, tmp_path):
    bench = filled(rig)
    segments = tmp_path / "0" / "segments"
    shutil.copy(segments / "00000001", segments / "00000002")
    assert bench.read([At(1, segment=2)])[0] == [FaultKind.FORMAT]
    bench.disk.close()


def test_a_flipped_bit_in_a_table_is_seen(rig, tmp_path):
    bench = filled(rig)
    flip(tmp_path / "0" / "segments" / "00000001", 3 * PAGE_BYTES + 17)
    names = names_of(STRIPS)
    assert bench.read(PLACES, names)[0] == [GOOD, FaultKind.CHECKSUM, GOOD, GOOD]
    bench.disk.close()


def test_a_vanished_directory_is_a_fault_and_can_come_back(rig, tmp_path):
    bench = filled(rig)
    (tmp_path / "0").rename(tmp_path / "away")
    assert bench.probe(0).kind == FaultKind.GONE
    assert bench.make(2).kind == FaultKind.GONE
    assert bench.read([At(1, segment=2)])[0] == [FaultKind.GONE]
    (tmp_path / "away").rename(tmp_path / "0")
    assert bench.probe(0) is None
    again(bench)
    bench.disk.close()


def test_a_canary_that_reads_as_something_else_is_a_fault(rig):
    bench = Bench(rig)
    rig.files.plan = lambda call: (
        Elsewhere(PAGE_BYTES) if (call.name, call.file) == ("pwritev", "canary") else None
    )
    assert bench.probe(0).kind == FaultKind.CHECKSUM
    rig.files.plan = nothing
    assert bench.probe(0) is None
    bench.disk.close()


def test_strips_go_from_and_to_shared_memory(rig):
    bench = filled(rig)
    descriptor = open_memory("slab", 8 * PAGE_BYTES)
    with mmap.mmap(descriptor, 8 * PAGE_BYTES) as slab:
        address = np.frombuffer(slab, np.uint8).ctypes.data
        places = places_of(PLACES, [address + 2 * PAGE_BYTES * index for index in range(4)])
        number = bench.number()
        bench.disk.read_strips(number, places, names_of(STRIPS), rig.now_ns() + 20 * 10**9)
        rig.settle(lambda: len(bench.reports.items(StripsRead, number)) == 4)
        assert slab[:] == b"".join(data_of(STRIPS))
        bench.disk.close()
    os.close(descriptor)


# ---- bounds ----


def test_descriptors_keep_to_their_bound_and_none_are_left(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    rig = DiskRig(tmp_path, bounds=DiskBounds(open_segments_max=2))
    bench = Bench(rig)
    opened = len(os.listdir("/proc/self/fd"))
    for segment in range(6):
        assert bench.make(segment) is None
        assert bench.write(STRIPS[:1], [At(1, segment=segment)]) == [GOOD]
    for segment in (0, 5, 3, 0, 1, 4):
        assert bench.read([At(1, segment=segment)]) == ([GOOD], [STRIPS[0].data])
        assert len(os.listdir("/proc/self/fd")) <= opened + 2
    bench.disk.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_changes_beyond_the_bound_are_answered_at_once(tmp_path):
    held, leave = threading.Event(), threading.Event()

    def plan(call):
        if call.name == "allocate" and call.file == "00000001":
            held.set()
            return leave
        return None

    bounds = DiskBounds(write_queue_items_max=2, write_queue_bytes_max=4 * PAGE_BYTES)
    rig = DiskRig(tmp_path, bounds=bounds)
    bench = Bench(rig)
    rig.files.plan = plan
    bench.disk.make_segment(101, SegmentPlace(0, 1, 1, PlaneClass.ANCHOR))
    assert held.wait(DEADLINE_S)
    address, memory = rig.memory(8 * PAGE_BYTES)
    for batch, count in ((1, 1), (2, 2), (3, 1), (4, 1)):
        places = places_of(PLACES[:count], [address] * count)
        bench.disk.write_strips(batch, places, names_of(STRIPS[:count]))
    assert bench.reports.kinds(StripsWritten, 2) == [FaultKind.CANCELLED] * 2  # Too many bytes.
    assert bench.reports.of(StripsWritten, 1) == bench.reports.of(StripsWritten, 3) == []
    assert bench.reports.kinds(StripsWritten, 4) == [FaultKind.CANCELLED]  # Too many items.
    leave.set()
    rig.settle(lambda: len(bench.reports.items(StripsWritten, 3)) == 1)
    assert bench.reports.done(SegmentDone, 101) is None
    bench.disk.close()


def test_space_counts_what_only_a_descriptor_keeps(tmp_path):
    held, leave = threading.Event(), threading.Event()

    def plan(call):
        if call.name == "preadv" and call.offset:
            held.set()
            return leave
        return None

    rig = DiskRig(tmp_path)
    bench = filled(rig)
    with_segment = bench.disk.space()[0].allocated_bytes
    rig.files.plan = plan
    address, memory = rig.memory(2 * PAGE_BYTES)
    bench.disk.read_strips(1001, places_of(PLACES[:1], [address]), None, rig.now_ns() + 20 * 10**9)
    assert held.wait(DEADLINE_S)
    assert bench.drop() is None
    assert bench.disk.space()[0].allocated_bytes >= with_segment
    leave.set()
    rig.settle(lambda: bench.reports.of(StripsRead, 1001))
    assert bench.reports.kinds(StripsRead, 1001) == [FaultKind.GONE]
    assert bench.disk.space()[0].allocated_bytes <= with_segment - SEGMENT_BYTES
    bench.disk.close()


@pytest.mark.parametrize(
    "code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR],
    ids=errno.errorcode.get,
)  # fmt: skip
def test_what_the_host_lacks_is_no_fault_of_the_disk(code):
    fault = fault_of(OSError(code, os.strerror(code)), "segments/00000001")
    assert fault.kind == FaultKind.CANCELLED and os.strerror(code) in fault.message

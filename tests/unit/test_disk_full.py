"""A real file system of a few MiB, full at each site that takes space."""

import os
from dataclasses import replace

import pytest

from kvd.clock import MonotonicClock
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.disk.posix import PosixDisk
from kvd.errors import ErrorKind, FaultKind, KvdError
from kvd.limits import MIB, PAGE_BYTES
from kvd.testing.disk_conformance import GOOD, SEGMENT_BYTES, Bench
from kvd.testing.disk_strips import At, make_strip, names_of
from tests.small import small_file_system
from tests.unit.disk_double import DiskRig

FILE_SYSTEM_BYTES = 2 * MIB
STRIPS = [make_strip(number) for number in range(20)]
PLACES = [At(1 + 2 * index) for index in range(20)]


@pytest.fixture
def small(tmp_path):
    """Yield a tmpfs of a few MiB, or skip."""
    with small_file_system(tmp_path, FILE_SYSTEM_BYTES) as directory:
        yield directory


def fill(directory, free_pages):
    """Leave so many pages, and return the file that takes the others."""
    filler = directory / "filler"
    filler.unlink(missing_ok=True)
    stat = os.statvfs(directory)
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, stat.f_bavail - free_pages) * PAGE_BYTES)
    return filler


def free_bytes(bench):
    return bench.disk.space()[0].free_bytes


class RigWithoutFallocate(DiskRig):
    def disk(self, directories, relay):
        sparse = [replace(each, preallocates=False) for each in directories]
        return PosixDisk(sparse, relay, MonotonicClock())


def test_a_directory_is_not_made_where_there_is_no_room_and_can_be_later(small):
    refusals = 0
    for free_pages in range(8):
        path = small / f"data{free_pages}"
        path.mkdir()
        filler = fill(small, free_pages)
        try:
            [directory] = open_directories([path], SEGMENT_BYTES, OsFiles())
            directory.release()
        except KvdError as error:
            assert error.kind == ErrorKind.UNAVAILABLE and "No space left" in error.message
            refusals += 1
        filler.unlink()
        [directory] = open_directories([path], SEGMENT_BYTES, OsFiles())
        assert directory.notes == ()
        directory.release()
    assert 0 < refusals < 8


def test_an_old_directory_opens_and_reads_where_there_is_no_room(small):
    bench = Bench(DiskRig(small))
    assert bench.make() is None and bench.write(STRIPS[:2], PLACES[:2]) == [GOOD] * 2
    bench.disk.close()
    fill(small, 0)
    rig = DiskRig(small)
    bench = Bench(rig)
    assert rig.directories[0].direct and rig.directories[0].notes == ()
    assert bench.read(PLACES[:2], names_of(STRIPS[:2]))[0] == [GOOD] * 2
    assert bench.probe(0) is None
    bench.disk.close()


def test_segments_that_exist_have_their_room(small):
    bench = Bench(DiskRig(small))
    assert bench.make(1) is None
    filler = fill(small, 0)
    assert bench.make(2).kind == FaultKind.NO_SPACE
    assert bench.write(STRIPS, PLACES) == [GOOD] * 20
    assert bench.recycle(epoch=2) is None
    assert free_bytes(bench) == 0
    filler.unlink()
    assert bench.make(2) is None
    bench.disk.close()


def test_a_segment_takes_all_its_room_or_none(small):
    bench = Bench(DiskRig(small))
    segment_pages = SEGMENT_BYTES // PAGE_BYTES
    for free_pages in (0, 1, 2, segment_pages // 2, segment_pages - 1):
        filler = fill(small, free_pages)
        left = free_bytes(bench)
        assert bench.make(1).kind == FaultKind.NO_SPACE
        assert free_bytes(bench) == left
        filler.unlink()
    assert bench.make(1) is None
    bench.disk.close()


def test_without_fallocate_a_strip_is_whole_or_a_fault(small):
    for free_pages in (0, 1, 2, 3, 8, 17):
        bench = Bench(RigWithoutFallocate(small / str(free_pages)))
        made = bench.make()
        assert made is None
        filler = fill(small, free_pages)
        kinds = bench.write(STRIPS, PLACES)
        assert set(kinds) <= {GOOD, FaultKind.NO_SPACE} and FaultKind.NO_SPACE in kinds
        good = [index for index, kind in enumerate(kinds) if kind == GOOD]
        found = bench.read([PLACES[i] for i in good], names_of([STRIPS[i] for i in good]))
        assert found == ([GOOD] * len(good), [STRIPS[i].data for i in good])
        filler.unlink()
        assert bench.write(STRIPS, PLACES) == [GOOD] * 20
        assert bench.read(PLACES, names_of(STRIPS))[0] == [GOOD] * 20
        bench.drop()
        bench.disk.close()

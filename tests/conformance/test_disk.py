"""Every disk passes the suite that kvd ships."""

import ctypes
import mmap
import threading

import pytest

from kvd.clock import MonotonicClock
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.disk.posix import PosixDisk
from kvd.testing.disk_conformance import CHECKS, DIRECTORIES, SEGMENT_BYTES

DEADLINE_S = 30.0


class HostMemory:
    def __init__(self, size_bytes):
        self._mapping = mmap.mmap(-1, size_bytes)
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._mapping))

    def put(self, data):
        self._mapping[:] = data

    def get(self):
        return self._mapping[:]


class Rig:
    """Waits for the disk's threads by the reports they make."""

    def __init__(self, directory):
        self._directory, self._moved = directory, threading.Condition()

    def make(self, report):
        def relay(told):
            with self._moved:
                report(told)
                self._moved.notify()

        paths = [self._directory / str(number) for number in range(DIRECTORIES)]
        return self.disk(open_directories(paths, SEGMENT_BYTES, OsFiles()), relay)

    def disk(self, directories, relay):
        return PosixDisk(directories, relay, MonotonicClock())

    def memory(self, size_bytes):
        memory = HostMemory(size_bytes)
        return memory.address, memory

    def settle(self, done):
        with self._moved:
            assert self._moved.wait_for(done, DEADLINE_S)

    def now_ns(self):
        return MonotonicClock().now_ns()


class BufferedRig(Rig):
    def disk(self, directories, relay):
        from dataclasses import replace

        buffered = [replace(each, direct=False, preallocates=False) for each in directories]
        return PosixDisk(buffered, relay, MonotonicClock())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("rig", [Rig, BufferedRig])
def test_posix_disk(check, rig, tmp_path):
    check(rig(tmp_path))

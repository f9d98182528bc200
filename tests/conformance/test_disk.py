"""Every disk passes the suite that kvd ships."""

from dataclasses import replace

import pytest

from kvd.clock import MonotonicClock
from kvd.disk.device import device_problem, open_device_disk
from kvd.disk.posix import PosixDisk
from kvd.limits import PAGE_BYTES
from kvd.testing.disk_conformance import CHECKS, DIRECTORIES
from tests.unit.disk_double import DiskRig

NO_DEVICE = device_problem()


class BufferedRig(DiskRig):
    """As where there is neither O_DIRECT nor fallocate."""

    def disk(self, directories, relay):
        poor = [replace(each, direct=False, preallocates=False) for each in directories]
        return PosixDisk(poor, relay, MonotonicClock())


class DeviceMemory:
    def __init__(self, size_bytes):
        import cupy

        whole = cupy.zeros(size_bytes + PAGE_BYTES, cupy.uint8)
        begin = -whole.data.ptr % PAGE_BYTES
        self._bytes = whole[begin : begin + size_bytes]
        self.address = self._bytes.data.ptr

    def put(self, data):
        import cupy
        import numpy

        self._bytes[:] = cupy.asarray(numpy.frombuffer(data, numpy.uint8))
        cupy.cuda.Device().synchronize()

    def get(self):
        return self._bytes.get().tobytes()


class DeviceRig(DiskRig):
    def disk(self, directories, relay):
        return open_device_disk(directories, relay, MonotonicClock())

    def memory(self, size_bytes):
        memory = DeviceMemory(size_bytes)
        return memory.address, memory


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("rig", [DiskRig, BufferedRig])
def test_posix_disk(check, rig, tmp_path):
    check(rig(tmp_path, count=DIRECTORIES))


@pytest.mark.skipif(bool(NO_DEVICE), reason=NO_DEVICE or "there is a device")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_device_disk(check, tmp_path):
    check(DeviceRig(tmp_path, count=DIRECTORIES))

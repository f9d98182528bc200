"""The carrier of device memory, with a stand-in for kvikio that moves host memory."""

import ctypes
import errno
import os
import subprocess
import sys

import pytest

from kvd.clock import MonotonicClock
from kvd.disk.device import DeviceCarrier, device_problem
from kvd.disk.files import OsFiles, copy_memory
from kvd.disk.posix import PosixDisk
from kvd.errors import FaultKind
from kvd.testing.disk_conformance import CHECKS, DIRECTORIES, GOOD, Bench
from kvd.testing.disk_strips import At, make_strip
from tests.unit.disk_double import DiskRig


class Future:
    def __init__(self, action):
        self._action = action

    def get(self):
        return self._action()


class StandIn:
    """Answers like kvikio.CuFile, late and with RuntimeErrors."""

    failing = False

    def __init__(self, path):
        self._descriptor = os.open(path, os.O_RDWR)

    def pread(self, buf, size, file_offset):
        def read():
            data = os.pread(self._descriptor, size, file_offset)
            if len(data) < size or self.failing:
                raise RuntimeError("Operation not permitted\nand a second line")
            ctypes.memmove(self._address(buf, size), data, size)
            return size

        return Future(read)

    def pwrite(self, buf, size, file_offset):
        data = copy_memory(self._address(buf, size), size)
        return Future(lambda: os.pwrite(self._descriptor, data, file_offset))

    def close(self):
        os.close(self._descriptor)

    @staticmethod
    def _address(buf, size):
        interface = buf.__cuda_array_interface__
        assert interface["shape"] == (size,) and interface["typestr"] == "|u1"
        address, read_only = interface["data"]
        assert not read_only
        return address


class HostCopier:
    def copy_out(self, address, size_bytes):
        return copy_memory(address, size_bytes)


class DeviceRig(DiskRig):
    def disk(self, directories, relay):
        means = (OsFiles(), DeviceCarrier(StandIn, HostCopier()))
        return PosixDisk(directories, relay, MonotonicClock(), None, means)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(check, tmp_path):
    check(DeviceRig(tmp_path, count=DIRECTORIES))


def test_errors_are_faults_of_what_they_concern(tmp_path, monkeypatch):
    bench = Bench(DeviceRig(tmp_path))
    strip = make_strip(1)
    assert bench.make() is None and bench.write([strip], [At(1)]) == [GOOD]
    monkeypatch.setattr(StandIn, "failing", True)
    assert bench.read([At(1)])[0] == [FaultKind.IO]
    monkeypatch.setattr(StandIn, "failing", False)
    assert bench.read([At(1)]) == ([GOOD], [strip.data])
    bench.disk.close()


def test_a_failed_part_is_told_only_when_all_parts_have_ended():
    ended = []

    class File:
        def pread(self, buf, size, file_offset):
            def read():
                ended.append(file_offset)
                if file_offset == 0:
                    raise RuntimeError("first")
                return size - (file_offset == 8192)

            if file_offset > 8192:
                raise RuntimeError("not begun")
            return Future(read)

    with pytest.raises(OSError, match="4095 of 4096 bytes") as caught:
        DeviceCarrier(None, None).read(File(), [(4096 * i, 4096) for i in range(4)], 0)
    assert caught.value.errno == errno.EIO and ended == [0, 4096, 8192]


def test_the_room_imports_without_kvikio_and_says_what_is_missing():
    code = (
        "import sys; import kvd.disk.device as device; assert 'kvikio' not in sys.modules;"
        "sys.modules['kvikio'] = None; print(device.device_problem())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "kvikio is not installed" in done.stdout
    assert isinstance(device_problem(), str)

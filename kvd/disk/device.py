"""The disk of device memory: kvikio moves strips, everything else is as for host memory.

Chosen by probe: kvikio imports everywhere, and fails at the first buffer where there is no driver.
"""

import ctypes
import errno
from collections.abc import Callable, Sequence
from typing import Protocol

from kvd.clock import Clock
from kvd.disk.contract import Report
from kvd.disk.directories import DataDirectory
from kvd.disk.files import OsFiles, Spans
from kvd.disk.posix import PosixDisk
from kvd.limits import DiskBounds

_DRIVER_NAME = "libcuda.so.1"
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.


def device_problem() -> str:
    """Return why strips cannot go to and from device memory here, or nothing."""
    try:
        import kvikio
    except ImportError as error:
        return f"kvikio is not installed ({error}); install kvd[gpu]"
    assert kvikio is not None
    return Driver.problem()


def open_device_disk(
    directories: Sequence[DataDirectory],
    report: Report,
    clock: Clock,
    bounds: DiskBounds | None = None,
) -> PosixDisk:
    """Return a disk whose addresses are device pointers; only where there is no problem."""
    assert not device_problem()
    import kvikio

    carrier = DeviceCarrier(lambda path: kvikio.CuFile(path, "r+"), Driver())
    return PosixDisk(directories, report, clock, bounds, (OsFiles(), carrier))


class Pending(Protocol):
    def get(self) -> int: ...


class CuFile(Protocol):
    """What is used of kvikio's class of this name. Its errors are RuntimeErrors with a text."""

    def pread(self, buf: object, size: int, file_offset: int) -> Pending: ...

    def pwrite(self, buf: object, size: int, file_offset: int) -> Pending: ...

    def close(self) -> None: ...


class Copier(Protocol):
    def copy_out(self, address: int, size_bytes: int) -> bytes:
        """Return a copy of device memory; raise OSError."""
        ...


class DeviceCarrier:
    def __init__(self, open_file: Callable[[str], CuFile], driver: Copier) -> None:
        self._open_file, self._driver = open_file, driver

    def open(self, path: str, descriptor: int) -> CuFile:
        try:
            return self._open_file(path)
        except RuntimeError as error:
            raise _io_error(error) from None

    def close(self, handle: CuFile) -> None:
        handle.close()

    def read(self, handle: CuFile, spans: Spans, offset: int) -> None:
        _move(handle.pread, spans, offset)

    def write(self, handle: CuFile, spans: Spans, offset: int) -> None:
        _move(handle.pwrite, spans, offset)

    def copy_out(self, address: int, size_bytes: int) -> bytes:
        return self._driver.copy_out(address, size_bytes)


class _Buffer:
    """Device memory by address, as libraries recognise it."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }


def _move(step: Callable[..., Pending], spans: Spans, offset: int) -> None:
    """Have all of the memory moved; every part has ended when this returns or raises."""
    pending, failure = [], None
    try:
        for address, size in spans:
            pending.append((step(_Buffer(address, size), size, offset), size))
            offset += size
    except RuntimeError as error:
        failure = error
    for future, size in pending:
        try:
            done = future.get()
        except RuntimeError as error:
            failure = error
            continue
        if done != size:
            failure = RuntimeError(f"{done} of {size} bytes")
    if failure is not None:
        raise _io_error(failure)


def _io_error(error: RuntimeError) -> OSError:
    lines = str(error).strip().splitlines()
    return OSError(errno.EIO, lines[0] if lines else "kvikio failed")


class Driver:
    """The few calls of the CUDA driver that a check of tables needs."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL(_DRIVER_NAME)
        self._cuda.cuMemcpyDtoH_v2.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t)
        self._contexts: dict[int, ctypes.c_void_p] = {}

    @staticmethod
    def problem() -> str:
        """Return why there is no device to use, or nothing."""
        try:
            cuda = ctypes.CDLL(_DRIVER_NAME)
        except OSError:
            return "there is no NVIDIA driver"
        code = cuda.cuInit(0)
        if code:
            return f"the NVIDIA driver does not start: error {code}"
        count = ctypes.c_int()
        code = cuda.cuDeviceGetCount(ctypes.byref(count))
        return "" if code == 0 and count.value else "there is no GPU"

    def copy_out(self, address: int, size_bytes: int) -> bytes:
        out = ctypes.create_string_buffer(size_bytes)
        self._enter_context_of(address)
        _check(self._cuda.cuMemcpyDtoH_v2(out, address, size_bytes), "cuMemcpyDtoH")
        return out.raw

    def _enter_context_of(self, address: int) -> None:
        """Make the primary context of the memory's device the calling thread's."""
        ordinal = ctypes.c_int()
        pointer = ctypes.c_uint64(address)
        attribute = self._cuda.cuPointerGetAttribute
        _check(attribute(ctypes.byref(ordinal), _DEVICE_ORDINAL, pointer), "cuPointerGetAttribute")
        if ordinal.value not in self._contexts:
            context = ctypes.c_void_p()
            retain = self._cuda.cuDevicePrimaryCtxRetain
            _check(retain(ctypes.byref(context), ordinal), "cuDevicePrimaryCtxRetain")
            self._contexts[ordinal.value] = context
        _check(self._cuda.cuCtxSetCurrent(self._contexts[ordinal.value]), "cuCtxSetCurrent")


def _check(code: int, name: str) -> None:
    if code:
        raise OSError(errno.EIO, f"{name} answers {code}")

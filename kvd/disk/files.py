"""The calls that reach the file system, behind one seam, so that tests can make any of them fail.

Memory is named by address and size. A transfer here is whole or an OSError, never in between.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from typing import Protocol

from kvd.errors import Fault, FaultKind
from kvd.limits import PAGE_BYTES

Spans = Sequence[tuple[int, int]]  # Address and size of each piece of memory, in file order.
SPANS_MAX = 512  # The kernel takes 1024.
NEW_FILE_MODE = 0o600

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_memoryview = ctypes.pythonapi.PyMemoryView_FromMemory
_memoryview.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_memoryview.restype = ctypes.py_object
_READ, _WRITE = 0x100, 0x200
# What a host runs out of, or interrupts: nothing is known of the disk then.
_OF_THE_HOST = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)


class Files(Protocol):
    """All raise OSError. `preadv` and `pwritev` may do less than asked for, and say how much."""

    def open(self, path: str, flags: int) -> int: ...

    def preadv(self, descriptor: int, spans: Spans, offset: int) -> int: ...

    def pwritev(self, descriptor: int, spans: Spans, offset: int) -> int: ...

    def sync(self, descriptor: int) -> None:
        """Have data, and what it takes to find it, on the medium."""
        ...

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Give a file its size and its blocks, none of them written."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...


class OsFiles:
    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, NEW_FILE_MODE)

    def preadv(self, descriptor: int, spans: Spans, offset: int) -> int:
        views = [_memoryview(address, size, _WRITE) for address, size in spans]
        return os.preadv(descriptor, views, offset)

    def pwritev(self, descriptor: int, spans: Spans, offset: int) -> int:
        views = [_memoryview(address, size, _READ) for address, size in spans]
        return os.pwritev(descriptor, views, offset)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        # Not posix_fallocate: glibc would write into every block where the call is not supported.
        if _libc.fallocate(descriptor, 0, 0, size_bytes):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)


def _page() -> tuple[mmap.mmap, Spans]:
    """Return a page of memory where O_DIRECT can use it; it lives as long as the mapping."""
    mapping = mmap.mmap(-1, PAGE_BYTES)
    return mapping, [(ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping)), PAGE_BYTES)]


def read_page(files: Files, descriptor: int) -> bytes:
    """Return the first page of a file, or what there is of it; raise OSError."""
    mapping, spans = _page()
    return mapping[: files.preadv(descriptor, spans, 0)]


def write_page(files: Files, descriptor: int, data: bytes) -> None:
    """Write the first page of a file and sync it; raise OSError."""
    mapping, spans = _page()
    mapping[:] = data
    done = files.pwritev(descriptor, spans, 0)
    if done != PAGE_BYTES:
        message = f"{os.strerror(errno.EIO)}: {done} of {PAGE_BYTES} bytes were written"
        raise OSError(errno.EIO, message)
    files.sync(descriptor)


def copy_memory(address: int, size_bytes: int) -> bytes:
    return ctypes.string_at(address, size_bytes)


def behind(spans: Spans, size_bytes: int) -> Spans:
    """Return what is left of spans behind their first bytes."""
    for index, (address, size) in enumerate(spans):
        if size_bytes < size:
            return [(address + size_bytes, size - size_bytes), *spans[index + 1 :]]
        size_bytes -= size
    assert size_bytes == 0, size_bytes
    return []


def sync_directory(files: Files, path: str) -> None:
    """Have a directory's entries on the medium."""
    descriptor = files.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        files.sync(descriptor)
    finally:
        os.close(descriptor)


def fault_of(error: OSError, what: str) -> Fault:
    """Return the fault for an error of the system, about `what`; CANCELLED if the disk has none."""
    match error.errno:
        case code if code in _OF_THE_HOST:
            kind = FaultKind.CANCELLED
        case errno.ENOSPC | errno.EDQUOT:
            kind = FaultKind.NO_SPACE
        case errno.ENOENT | errno.ESTALE | errno.ENOTDIR:
            kind = FaultKind.GONE
        case errno.ENODEV | errno.ENXIO:
            kind = FaultKind.DEVICE
        case _:
            kind = FaultKind.IO
    return Fault(kind, f"{what}: {error.strerror or error}")

"""Descriptors of shared memory: who may write through them, and for how long their size holds.

Every rule here answers something that was tried (docs/architecture.md, sessions and slabs).
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import weakref
from dataclasses import dataclass

import numpy as np

# Not in Python 3.11's fcntl module.
F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SEAL = 0x01
F_SEAL_SHRINK = 0x02
F_SEAL_GROW = 0x04
F_SEAL_FUTURE_WRITE = 0x10

MADV_HUGEPAGE = 14
MADV_DONTDUMP = 16
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23

_LOCK = struct.Struct("hhxxxxqqixxxx")  # A lock of fcntl: type, whence, start, length, pid.

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p
_MAP_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Of one slab: `writing` for its owner, `reading` for everyone else."""

    writing: int
    reading: int

    def close(self) -> None:
        os.close(self.writing)
        os.close(self.reading)


def open_memory(name: str, size_bytes: int) -> int:
    """Return a new memfd of a fixed size, close-on-exec; raise OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_slab(name: str, size_bytes: int) -> Descriptors:
    """Return both descriptors of a new slab that others can neither resize nor seal.

    A reader could open /proc/self/fd/N again for writing if the mode allowed it; so the reading
    descriptor is opened first and then the mode is taken away, which no open descriptor minds.
    """
    writing = open_memory(name, size_bytes)
    try:
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        os.close(writing)
        raise
    os.fchmod(writing, 0)
    fcntl.fcntl(writing, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
    return Descriptors(writing, reading)


def adopt_slab(writing: int, size_bytes: int) -> Descriptors:
    """Return both descriptors of a slab that another process made and left; raise OSError.

    `writing` is the new owner's, also when this raises. The mode is there only for as long as its
    owner opens it, who could give it back at any time.
    """
    seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
    if fcntl.fcntl(writing, F_GET_SEALS) & seals != seals:
        raise OSError(errno.EPERM, "it is not sealed as slabs are")
    if os.fstat(writing).st_size != size_bytes:
        raise OSError(errno.EINVAL, f"it has not the {size_bytes} bytes of a slab")
    os.set_inheritable(writing, False)
    os.fchmod(writing, stat.S_IRUSR)
    try:
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.fchmod(writing, 0)
    return Descriptors(writing, reading)


def lend(writing: int, loan: int) -> int:
    """Return a writing descriptor for another process, the caller's to close; raise OSError.

    It is an open file of its own, with a lock on byte `loan`. All that dup, fork, SCM_RIGHTS and
    mmap make of it, in whatever process, is the same open file; the kernel drops the lock with the
    last of them.
    """
    os.fchmod(writing, stat.S_IRUSR | stat.S_IWUSR)  # For as long as `adopt_slab` needs it.
    try:
        lent = os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.fchmod(writing, 0)
    try:
        fcntl.fcntl(lent, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, loan))
    except OSError:
        os.close(lent)
        raise
    return lent


def is_lent(descriptor: int, loan: int) -> bool:
    """Return whether any process has what `lend` made open or mapped; by any other descriptor."""
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock(fcntl.F_RDLCK, loan))
    return _LOCK.unpack(found)[0] != fcntl.F_UNLCK


def _lock(kind: int, byte: int) -> bytes:
    return _LOCK.pack(kind, os.SEEK_SET, byte, 1, 0)


def seal_for_readers(descriptor: int) -> None:
    """Leave existing mappings as the only way to write, in one call."""
    seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL
    fcntl.fcntl(descriptor, F_ADD_SEALS, seals)


def map_memory(descriptor: int, size_bytes: int, *, writable: bool) -> np.ndarray:
    """Map a memfd as u8[size_bytes]; views keep the mapping, the last one gone ends it.

    Unlike `mmap.mmap`, which keeps a duplicate of the descriptor for as long as it is mapped.
    Raise OSError.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    address = _libc.mmap(None, size_bytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        raise _last_error()
    # In vain where the host does not allow it (kvd.arena.pages) or knows no such advice.
    _libc.madvise(address, size_bytes, MADV_HUGEPAGE)
    owner = (ctypes.c_ubyte * size_bytes).from_address(address)
    # Not at exit: views may be in use until the process ends, which unmaps anyway.
    weakref.finalize(owner, _libc.munmap, address, size_bytes).atexit = False
    view = np.frombuffer(owner, np.uint8)
    view.flags.writeable = writable
    return view


def advise(address: int, size_bytes: int, advice: int) -> None:
    """Call madvise without the interpreter's lock, which `mmap.madvise` holds; raise OSError."""
    if _libc.madvise(address, size_bytes, advice):
        raise _last_error()


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))

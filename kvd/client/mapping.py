"""Memory mappings of the SDK: shared ones made from a descriptor, and recycled private staging.

Owns addresses and their life. The descriptor is closed by the caller after mapping: Python's own
mmap would keep a duplicate of it, so the C library is called.
"""

import ctypes
import fcntl
import mmap
import os
import threading

import numpy as np

from kvd.client.pinning import Unpin, pin
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB, PAGE_BYTES

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
for _name, _arguments in (("munmap", 2), ("madvise", 3), ("mprotect", 3)):
    _types = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][:_arguments]
    getattr(_libc, _name).argtypes = _types
_MAP_FAILED = ctypes.c_void_p(-1).value
_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2
_MADV_POPULATE_WRITE = 23


class Mapping:
    """A shared mapping of a sealed memfd; unmapped when the last view of it is gone.

    A forked child has no such memory (MADV_DONTFORK), so that it keeps no slab alive.
    """

    __slots__ = ("address", "size", "_owner", "_unpin", "_pinned", "__weakref__")

    def __init__(self, fd: int, size: int, writable: bool) -> None:
        """Map `size` bytes; raise OSError. The descriptor stays the caller's, to be closed."""
        self.address = 0
        self._unpin: Unpin | None = None
        self._pinned = False
        if not 0 < size <= os.fstat(fd).st_size:
            raise OSError(f"{size} bytes are announced of memory of {os.fstat(fd).st_size}")
        if not fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK:
            raise OSError(
                "the memory is not sealed against shrinking, which would kill its readers"
            )
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.address, self.size, self._owner = address, size, os.getpid()
        _call("madvise", address, size, mmap.MADV_DONTFORK)
        _libc.madvise(address, size, mmap.MADV_HUGEPAGE)  # In vain where the host forbids it.

    def make_readonly(self) -> None:
        """Give up writing, at the same address; readers of it go on."""
        _call("mprotect", self.address, self.size, mmap.PROT_READ)

    def pin(self, *, writable: bool) -> bool:
        """Pin it for the GPU, once; return whether it is pinned."""
        if not self._pinned:
            self._pinned = True
            self._unpin = pin(self.address, self.size, writable=writable)
        return self._unpin is not None

    def populate(self, offset: int, size: int) -> None:
        """Make pages present for writing; a kernel that cannot (before 5.14) faults later."""
        _libc.madvise(self.address + offset, size, _MADV_POPULATE_WRITE)

    def head(self, size: int) -> bytes:
        assert size <= self.size
        return ctypes.string_at(self.address, size)

    def words(self) -> np.ndarray:
        """Return all of it as u32; the mapping is to outlive the array."""
        assert self.size % 4 == 0
        memory = (ctypes.c_uint32 * (self.size // 4)).from_address(self.address)
        return np.ctypeslib.as_array(memory)

    def word(self, offset: int) -> int:
        """Return the aligned u64 at offset as it is now."""
        assert offset % 8 == 0 and offset + 8 <= self.size
        return ctypes.c_uint64.from_address(self.address + offset).value

    def __del__(self) -> None:
        # In a child the range may belong to something else by now.
        if self.address and os.getpid() == self._owner:
            if self._unpin is not None:
                self._unpin()
            _libc.munmap(self.address, self.size)


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Buffer:
    """Page-aligned private memory of `size` bytes; `data` is u8[size]."""

    __slots__ = ("address", "data", "size", "_memory")

    def __init__(self, size: int) -> None:
        assert size > 0 and size % PAGE_BYTES == 0
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.data = np.frombuffer(self._memory, np.uint8)
        self.address, self.size = self.data.ctypes.data, size
        assert self.address % PAGE_BYTES == 0


class Pool:
    """Recycles buffers, since fresh memory costs 15 to 50 times a copy; keeps a bounded amount.

    A buffer that serves what a kept one served takes its place: about as many are kept as are out
    at a time, not one of every size that was ever wanted.
    """

    def __init__(self, kept_bytes_max: int = 1024 * MIB) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept: list[Buffer] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Buffer:
        """Return a buffer of at least size bytes; what is in it is anything.

        Raise OVERLOADED where this process gets no memory: to go without harms nobody else.
        """
        wanted = -(-size // MIB) * MIB
        with self._lock:
            fits = [b for b in self._kept if wanted <= b.size <= _largest_for(wanted)]
            if fits:
                best = min(fits, key=lambda b: b.size)
                self._kept.remove(best)
                return best
            outgrown = [b for b in self._kept if b.size < wanted <= _largest_for(b.size)]
            if outgrown:
                self._kept.remove(max(outgrown, key=lambda b: b.size))
        try:
            return Buffer(wanted)
        except (OSError, MemoryError) as error:
            remedy = "ask for less at once, or give the process more (ulimit -v, its cgroup)"
            message = f"no {wanted // MIB} MiB of memory for the cache's bytes: {error}; {remedy}"
            raise KvdError(ErrorKind.OVERLOADED, message) from None

    def give(self, buffer: Buffer) -> None:
        """Take back a buffer that nobody reads or writes any more."""
        with self._lock:
            # Kept twice it would be handed to two, and one's bytes sealed as the other's.
            assert not any(b is buffer for b in self._kept), "a buffer given back twice"
            self._kept.append(buffer)
            while sum(b.size for b in self._kept) > self._kept_bytes_max:
                self._kept.pop(0)

    def after_fork(self) -> None:
        """Forget the buffers: the parent's, copied on write."""
        self._kept, self._lock = [], threading.Lock()


def _largest_for(size: int) -> int:
    """Return the size of the largest buffer that is given to who wants `size` bytes."""
    return 2 * size + 16 * MIB

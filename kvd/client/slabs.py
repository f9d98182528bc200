"""The slabs that the daemon has given this session: mapped once, kept, given back on recall.

Owns the table of mappings. Lives on the I/O thread, but for `begin_write` and `end_write`, which
putting threads call.
"""

import asyncio
import errno
import functools
import resource
import threading
from collections.abc import Callable

import numpy as np

from kvd.client.mapping import Mapping
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB

_POPULATED_BYTES = 2 * MIB

Answer = Callable[[int], None]  # Tells the daemon that the slab of this number is detached.


class Slab:
    """One mapped slab. Whoever holds it holds the mapping."""

    __slots__ = (
        "address", "size", "mapping", "writable", "_lock", "_writers", "_on_idle", "_populated",
    )  # fmt: skip

    def __init__(self, mapping: Mapping, writable: bool) -> None:
        self.mapping, self.address, self.size = mapping, mapping.address, mapping.size
        self.writable = writable
        self._lock = threading.Lock()
        self._writers = 0
        self._on_idle: Callable[[], None] | None = None
        self._populated = np.zeros(-(-self.size // _POPULATED_BYTES), np.bool_)

    def populate(self, offsets: np.ndarray, sizes: np.ndarray) -> None:
        """Enter the pages of places that are about to be written, the first time they are.

        A fault for every page costs more than writing it; this costs half, once.
        """
        first = offsets // np.uint64(_POPULATED_BYTES)
        last = (offsets + sizes - np.uint64(1)) // np.uint64(_POPULATED_BYTES)
        wanted = np.zeros(len(self._populated) + 1, np.int64)
        np.add.at(wanted, first, 1)
        np.add.at(wanted, last + np.uint64(1), -1)
        fresh = (np.cumsum(wanted)[:-1] > 0) & ~self._populated
        for block in np.flatnonzero(fresh).tolist():
            begin = block * _POPULATED_BYTES
            self.mapping.populate(begin, min(_POPULATED_BYTES, self.size - begin))
        self._populated |= fresh

    def begin_write(self) -> bool:
        """Return whether it may be written; if so, `end_write` must follow."""
        with self._lock:
            if not self.writable:
                return False
            self._writers += 1
            return True

    def end_write(self) -> None:
        with self._lock:
            self._writers -= 1
            if self._writers or self._on_idle is None:
                return
            on_idle, self._on_idle = self._on_idle, None
        self.mapping.make_readonly()
        on_idle()

    def recall(self, on_detached: Callable[[], None]) -> None:
        """Let no further write begin; call back when those that run have ended."""
        with self._lock:
            self.writable = False
            if self._writers:
                self._on_idle = on_detached
                return
        self.mapping.make_readonly()
        on_detached()


class SlabTable:
    """Slabs by number. A promise may name a slab before its descriptor has come: `get` waits."""

    def __init__(self, detached: Answer) -> None:
        self._slabs: dict[int, Slab] = {}
        self._failed: dict[int, str] = {}
        self.lacks_descriptors = False  # Was so, and what was missed will not be given again.
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._detached = detached

    @property
    def failure(self) -> str:
        """Return why some slab could not be mapped, or nothing."""
        return next(iter(self._failed.values()), "")

    def give(self, number: int, fd: int | None, size: int, *, writable: bool) -> None:
        """Map what came with a SlabGiven message, and close its descriptor elsewhere."""
        known = self._slabs.get(number)
        if known is not None and not (writable and not known.writable):
            return  # What is mapped serves as well, and views of it live.
        self._failed.pop(number, None)
        try:
            if fd is None:
                raise OSError(errno.EMFILE, "its descriptor did not arrive")
            self._slabs[number] = Slab(Mapping(fd, size, writable), writable)
        except OSError as error:
            self.lacks_descriptors |= error.errno in (errno.EMFILE, errno.ENFILE)
            self._failed[number] = f"slab {number} could not be mapped: {_explained(error)}"
        for future in self._waiting.pop(number, ()):
            if not future.done():
                future.set_result(None)

    def recall(self, number: int) -> None:
        slab = self._slabs.get(number)
        if slab is None:
            self._detached(number)
        else:
            slab.recall(functools.partial(self._detached, number))

    def drop(self, number: int) -> None:
        """Forget a slab; it is unmapped when nobody reads in it any more."""
        self._slabs.pop(number, None)
        self._failed.pop(number, None)

    def detach_all(self) -> None:
        """Give back what this session alone may write, as a client does that ends well."""
        for number, slab in self._slabs.items():
            if slab.writable:
                slab.recall(functools.partial(self._detached, number))

    def clear(self) -> None:
        self._slabs.clear()
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_result(None)
        self._waiting.clear()

    def find(self, number: int) -> Slab | None:
        return self._slabs.get(number)

    async def get(self, number: int, deadline_s: float, *, writable: bool = False) -> Slab:
        """Return the slab, awaited until `deadline_s` of the loop's clock; else raise KvdError."""
        while True:
            slab = self._slabs.get(number)
            if slab is not None and (slab.writable or not writable):
                return slab
            if number in self._failed:
                raise KvdError(ErrorKind.UNAVAILABLE, self._failed[number])
            future = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(number, []).append(future)
            await _until(future, deadline_s, number)


async def _until(future: "asyncio.Future[None]", deadline_s: float, number: int) -> None:
    try:
        async with asyncio.timeout_at(deadline_s):
            await future
    except TimeoutError:
        message = f"slab {number} was promised, but its descriptor did not come in time"
        raise KvdError(ErrorKind.LATE, message) from None


def _explained(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{error.strerror}; this process may open {limit} files (raise ulimit -n)"
    return error.strerror or str(error)

"""Slabs as memfds: made at once, touched once and unmapped by a thread, mapped for reading only."""

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from kvd.arena.contract import ControlPage, Report
from kvd.arena.control_page import make_page
from kvd.arena.memfd import (
    MADV_DONTDUMP,
    MADV_POPULATE_READ,
    MADV_POPULATE_WRITE,
    Descriptors,
    adopt_slab,
    advise,
    is_lent,
    lend,
    map_memory,
    open_slab,
)
from kvd.errors import Fault, FaultKind
from kvd.limits import MIB, PAGE_BYTES

LOAN_BITS, LOAN_BYTES = 32, 3  # Of a count, behind random bytes: a lock's place, below 2^63.
TOUCH_BYTES = 4 * MIB  # Between two looks at whether to stop; tens of milliseconds at the worst.
CLOSE_SECONDS_MAX = 1.0

# (address, size in bytes): make the pages of a writable mapping present; raise OSError.
Touch = Callable[[int, int], None]


def populate(address: int, size_bytes: int) -> None:
    advise(address, size_bytes, MADV_POPULATE_WRITE)


@dataclass(frozen=True, slots=True)
class _Slab:
    descriptors: Descriptors
    reading: np.ndarray


@dataclass(frozen=True, slots=True)
class _Untouched:
    slab: int
    made: _Slab
    writing: np.ndarray


class _Spare:
    """A descriptor that is kept for the moment in which one is needed and none is to be had."""

    def __init__(self) -> None:
        self._descriptor = -1
        self.keep()

    def keep(self) -> None:
        if self._descriptor < 0:
            with contextlib.suppress(OSError):  # Tried again when the next one was needed.
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def give_up(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class MemfdArena:
    """Host memory. Its methods are called by one thread; touching and unmapping have their own.

    Unmapping a GiB takes a tenth of a second. It comes in the order asked for: a slab that is made
    in the place of another one is touched when that one's memory is free.
    """

    def __init__(self, report: Report, slabs_max: int, touch: Touch = populate) -> None:
        """`slabs_max` leaves descriptors to those who connect: a slab holds two."""
        self._report, self._slabs_max = report, slabs_max
        self._touch = touch
        # Behind those of any daemon before, whose loans may last in slabs that are adopted.
        self._loan = int.from_bytes(os.urandom(LOAN_BYTES), "little") << LOAN_BITS
        self._spare = _Spare()
        self._slabs: dict[int, _Slab] = {}
        self._lock = threading.Lock()  # Orders a report and a destroy of the same slab.
        self._queue: SimpleQueue[_Untouched | list[np.ndarray] | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="touch", daemon=True)
        self._thread.start()

    def create_slab(self, slab: int, size_bytes: int) -> None:
        assert slab not in self._slabs and size_bytes % PAGE_BYTES == 0, (slab, size_bytes)
        try:
            if len(self._slabs) >= self._slabs_max:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            untouched = _make(slab, size_bytes)
        except OSError as error:
            self._report(slab, _fault(size_bytes, error))
            return
        self._slabs[slab] = untouched.made
        self._queue.put(untouched)

    def adopt_slab(self, slab: int, descriptor: int, size_bytes: int) -> None:
        """Take over a slab with what is in it; raise OSError, having closed the descriptor."""
        assert slab not in self._slabs, slab
        try:
            if len(self._slabs) >= self._slabs_max:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            descriptors = adopt_slab(descriptor, size_bytes)
        except OSError:
            os.close(descriptor)
            raise
        self._slabs[slab] = _Slab(descriptors, _map_for_reading(descriptors, size_bytes))

    def destroy_slab(self, slab: int) -> None:
        with self._lock:
            # While it is mapped, closing frees nothing and so takes no time.
            self._slabs[slab].descriptors.close()
            self.let_go([self._slabs.pop(slab).reading])

    def let_go(self, mappings: list[np.ndarray]) -> None:
        self._queue.put(mappings)

    def slab_descriptor(self, slab: int, *, writable: bool) -> int:
        descriptors = self._slabs[slab].descriptors
        return descriptors.writing if writable else descriptors.reading

    @contextlib.contextmanager
    def lend_slab(self, slab: int) -> Iterator[tuple[int, int]]:
        self._loan += 1
        self._spare.give_up()
        lent = lend(self._slabs[slab].descriptors.writing, self._loan)
        try:
            yield lent, self._loan
        finally:
            os.close(lent)
            self._spare.keep()

    def is_lent(self, slab: int, loan: int) -> bool:
        return is_lent(self._slabs[slab].descriptors.reading, loan)

    def view_slab(self, slab: int) -> memoryview:
        return self._slabs[slab].reading.data

    def create_page(self, epoch: int) -> tuple[ControlPage, int]:
        return make_page(epoch)

    def close(self) -> None:
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS_MAX)
        self._spare.give_up()
        while self._slabs:
            self._slabs.popitem()[1].descriptors.close()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None and not self._stopping.is_set():
            if isinstance(work, list):
                work.clear()
                continue
            fault = None
            try:
                self._touch_all(work)
            except OSError as error:
                fault = _fault(work.writing.size, error)
            self._finish(work, fault)
            del work  # With it goes the writable mapping, before the wait for the next.

    def _touch_all(self, untouched: _Untouched) -> None:
        begin, size_bytes = untouched.writing.ctypes.data, untouched.writing.size
        for offset in range(0, size_bytes, TOUCH_BYTES):
            if self._stopping.is_set():
                return
            self._touch(begin + offset, min(TOUCH_BYTES, size_bytes - offset))
        # The pages are there; this only enters them in the table of the mapping that delivers.
        advise(untouched.made.reading.ctypes.data, size_bytes, MADV_POPULATE_READ)

    def _finish(self, untouched: _Untouched, fault: Fault | None) -> None:
        slab = untouched.slab
        with self._lock:
            if self._stopping.is_set() or self._slabs.get(slab) is not untouched.made:
                return  # Destroyed meanwhile: nobody waits for it.
            if fault is not None:
                self._slabs.pop(slab).descriptors.close()
            self._report(slab, fault)


def _make(slab: int, size_bytes: int) -> _Untouched:
    descriptors = open_slab(f"kvd-slab-{slab}", size_bytes)
    try:
        writing = map_memory(descriptors.writing, size_bytes, writable=True)
    except OSError:
        descriptors.close()
        raise
    reading = _map_for_reading(descriptors, size_bytes)
    return _Untouched(slab, _Slab(descriptors, reading), writing)


def _map_for_reading(descriptors: Descriptors, size_bytes: int) -> np.ndarray:
    """Return the mapping that delivers; raise OSError, having closed the descriptors."""
    try:
        reading = map_memory(descriptors.reading, size_bytes, writable=False)
        advise(reading.ctypes.data, size_bytes, MADV_DONTDUMP)  # Tenants' bytes, no core file's.
    except OSError:
        descriptors.close()
        raise
    return reading


def _fault(size_bytes: int, error: OSError) -> Fault:
    what = f"a slab of {size_bytes} bytes"
    match error.errno:
        case errno.EMFILE | errno.ENFILE:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            remedy = (
                f"it needs 2 descriptors, and its share of the {limit} of RLIMIT_NOFILE is in use; "
                "raise LimitNOFILE, or lower dram"
            )
        case errno.ENOSPC | errno.ENOMEM | errno.EFAULT:
            remedy = "there is no more memory for it; lower dram or free memory"
        case errno.EFBIG:
            limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            remedy = (
                f"RLIMIT_FSIZE is {limit}, and a slab is a file to the kernel; "
                "set LimitFSIZE=infinity, or lower limits.slab_bytes"
            )
        case _:
            remedy = os.strerror(error.errno)
            return Fault(FaultKind.DEVICE, f"{what} could not be made: {remedy}")
    return Fault(FaultKind.NO_SPACE, f"{what} could not be made: {remedy}")

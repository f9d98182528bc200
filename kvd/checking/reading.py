"""Reads strips and has them checked: several at once, with one bounded buffer for each thread.

Nothing is raised for what a disk does: a strip that cannot be read has that verdict. It counts as
lost only where its medium says so, twice, and gives something else of the same directory.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from kvd.checking.holdings import Holdings
from kvd.checking.verifying import Verdict, Verdicts, Verifier, wrong_cells
from kvd.limits import MIB, PAGE_BYTES
from kvd.table import LENGTH_MASK, TABLE_ENTRY, table_bytes

THREADS = 4
BUFFER_BYTES = 8 * MIB  # Of each thread. Only a cell or a table that is longer makes it longer.
_GAP_BYTES_MAX = 64 * 1024  # Read along with its neighbours, as that costs less than another read.
# What a medium says of bytes that it lost; all else is the host's, or of more than these bytes.
_OF_THE_MEDIUM = (errno.EIO, errno.ENODATA)
Told = Callable[[int, int], None]  # Bytes done, and of how many.


@dataclass(frozen=True, slots=True)
class Places:
    """Of each strip the path of its file, and whether its directory `answers` now.

    `all_needed`: the first strip that is UNREAD ends the reading.
    """

    path_of: Callable[[int], str]
    answers: Callable[[int], bool]
    all_needed: bool = False


def read_strips(holdings: Holdings, places: Places, told: Told) -> Verdicts:
    """Check all strips that are readable."""
    wanted = holdings.readable
    reader = _Reader(holdings, places, told)
    files = holdings.strips.files
    bounds = np.flatnonzero(np.diff(files, prepend=-1, append=-1))  # None where there are none.
    tasks = (
        (places.path_of(int(begin)), begin + np.flatnonzero(wanted[begin:end]))
        for begin, end in zip(bounds, bounds[1:], strict=False)
        if wanted[begin:end].any()
    )
    with ThreadPoolExecutor(THREADS, "check") as pool:
        workers = [pool.submit(reader.work, tasks) for _ in range(THREADS)]
        try:
            for worker in workers:
                worker.result()
        finally:
            reader.stopped = True
    return reader.verdicts


class _Reader:
    def __init__(self, holdings: Holdings, places: Places, told: Told) -> None:
        strips, self._places = holdings.strips, places
        self._begins = strips.pages * PAGE_BYTES
        self._ends = self._begins + strips.counts * PAGE_BYTES
        self._total_bytes = int(strips.counts[holdings.readable].sum()) * PAGE_BYTES
        self._told = told
        self.verdicts = Verdicts.of(len(strips))
        self._verifier = Verifier(holdings, self.verdicts)
        self._lock = threading.Lock()
        self.stopped = False

    def work(self, tasks: Iterator[tuple[str, np.ndarray]]) -> None:
        """Take one file after the other, until there are no more."""
        buffer = _Buffer()
        while not self.stopped:
            with self._lock:
                task = next(tasks, None)
            if task is None:
                return
            self._read_file(*task, buffer)

    def _read_file(self, path: str, wanted: np.ndarray, buffer: "_Buffer") -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            self._unread(wanted, error, Verdict.UNREAD)
            return
        try:
            with suppress(OSError):  # So that the medium is read, not what memory still has of it.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for group in self._groups(wanted):
                if self.stopped:
                    return
                self._read_group(descriptor, group, buffer)
        finally:
            os.close(descriptor)

    def _groups(self, wanted: np.ndarray) -> Iterator[np.ndarray]:
        """Yield neighbours that fit the buffer together; a larger strip comes alone.

        One may lie inside of another, as what shares pages is read too.
        """
        begins, ends = self._begins[wanted].tolist(), self._ends[wanted].tolist()
        first, reach = 0, ends[0]
        for at in range(1, len(wanted)):
            gap, reach = begins[at] - reach, max(reach, ends[at])
            if reach - begins[first] > BUFFER_BYTES or gap > _GAP_BYTES_MAX:
                yield wanted[first:at]
                first, reach = at, ends[at]
        yield wanted[first:]

    def _read_group(self, descriptor: int, group: np.ndarray, buffer: "_Buffer") -> None:
        try:
            cells = self._check(descriptor, group, buffer)
        except OSError:
            for strip in group:  # So that each is judged alone, and by no single failure.
                self._read_again(descriptor, np.array([strip]), buffer)
            return
        self._done(group, cells)

    def _read_again(self, descriptor: int, group: np.ndarray, buffer: "_Buffer") -> None:
        """Read one strip that could not be read.

        A drive that is away for a moment loses nothing, so its directory has to answer before and
        after.
        """
        answered = self._places.answers(int(group[0]))
        try:
            cells = self._check(descriptor, group, buffer)
        except OSError as error:
            by_medium = answered and error.errno in _OF_THE_MEDIUM
            lost = by_medium and self._places.answers(int(group[0]))
            self._unread(group, error, Verdict.LOST if lost else Verdict.UNREAD)
            return
        self._done(group, cells)

    def _check(self, descriptor: int, group: np.ndarray, buffer: "_Buffer") -> int:
        """Return how many cells were checked; raise OSError."""
        begin, end = int(self._begins[group[0]]), int(self._ends[group].max())
        if end - begin > BUFFER_BYTES:
            return self._check_large(descriptor, int(group[0]), buffer)
        data = buffer.read(descriptor, begin, end - begin)
        return self._verifier.check(group, data, begin)

    def _check_large(self, descriptor: int, strip: int, buffer: "_Buffer") -> int:
        """Check a strip that does not fit the buffer: its table, then cells as many as do."""
        verifier, group = self._verifier, np.array([strip])
        begin, end, count = int(self._begins[strip]), int(self._ends[strip]), verifier.cells[strip]
        if end - begin < table_bytes(count):
            self.verdicts.say(group, Verdict.SHORT)
            return 0
        # A copy: the buffer is wanted for the cells.
        table = buffer.read(descriptor, begin, table_bytes(count)).copy().view(TABLE_ENTRY)
        if not verifier.fit(group, table[None])[0]:
            return 0
        first, wrong = 0, [np.empty(0, np.int64)]
        begins = table["offset"].astype(np.int64)
        ends = begins + (table["length"] & LENGTH_MASK)
        while first < count and not self.stopped:
            fits = int(np.searchsorted(ends, begins[first] + BUFFER_BYTES, "right"))
            last = max(fits, first + 1)
            at = int(begins[first])
            data = buffer.read(descriptor, begin + at, int(ends[last - 1]) - at)
            places = (begins[first:last] - at).astype(np.uint64)
            wrong.append(first + wrong_cells(table[first:last], places, data))
            first = last
        cells = np.concatenate(wrong)
        if len(cells):
            verifier.tell_cells(strip, cells)
        return int(count)

    def _unread(self, group: np.ndarray, error: OSError, verdict: Verdict) -> None:
        self.verdicts.say(group, verdict, error.errno or 0)
        if self._places.all_needed and verdict == Verdict.UNREAD:
            self.stopped = True
        self._done(group, 0)

    def _done(self, group: np.ndarray, cells: int) -> None:
        size_bytes = int((self._ends[group] - self._begins[group]).sum())
        with self._lock:
            self.verdicts.strips += len(group)
            self.verdicts.cells += cells
            self.verdicts.size_bytes += size_bytes
            self._told(self.verdicts.size_bytes, self._total_bytes)


class _Buffer:
    """Memory of one thread, read into again and again."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def read(self, descriptor: int, offset: int, size: int) -> np.ndarray:
        """Return `size` bytes of a file, which the next call writes over; raise OSError."""
        if len(self._memory) < size:
            self._memory = np.empty(max(size, BUFFER_BYTES), np.uint8)
        done, view = 0, memoryview(self._memory)
        while done < size:
            more = os.preadv(descriptor, [view[done:size]], offset + done)
            if not more:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += more
        return self._memory[:size]

"""Bytes between segments and memory, whole or not at all; host memory here, devices in `device`."""

import errno
import os
from collections.abc import Callable
from typing import Protocol

from kvd.disk.files import Files, Spans, behind, copy_memory
from kvd.limits import PAGE_BYTES

Step = Callable[[Spans, int], int]


class Carrier(Protocol):
    """Moves between files and one kind of memory. All raise OSError."""

    def open(self, path: str, descriptor: int) -> object:
        """Return what `read` and `write` take for a file that is open as `descriptor`."""
        ...

    def close(self, handle: object) -> None: ...

    def read(self, handle: object, spans: Spans, offset: int) -> None:
        """Fill all of the memory, or raise."""
        ...

    def write(self, handle: object, spans: Spans, offset: int) -> None: ...

    def copy_out(self, address: int, size_bytes: int) -> bytes:
        """Return a copy of memory that others cannot change under a check."""
        ...


class HostCarrier:
    def __init__(self, files: Files) -> None:
        self._files = files

    def open(self, path: str, descriptor: int) -> int:
        return descriptor

    def close(self, handle: object) -> None:
        pass  # The descriptor is its opener's.

    def read(self, handle: int, spans: Spans, offset: int) -> None:
        _finish(lambda left, at: self._files.preadv(handle, left, at), spans, offset)

    def write(self, handle: int, spans: Spans, offset: int) -> None:
        _finish(lambda left, at: self._files.pwritev(handle, left, at), spans, offset)

    def copy_out(self, address: int, size_bytes: int) -> bytes:
        return copy_memory(address, size_bytes)


def _finish(step: Step, spans: Spans, offset: int) -> None:
    """Go on after short steps until all is done; raise EIO when there is no more to be had.

    What ends inside a page is done again from the page's begin: O_DIRECT cannot go on from there.
    """
    left = sum(size for _, size in spans)
    while left:
        done = step(spans, offset)
        whole = done - done % PAGE_BYTES
        if whole == left:
            return
        if whole == 0:
            message = f"{os.strerror(errno.EIO)}: {done} of {left} bytes at {offset}"
            raise OSError(errno.EIO, message)
        spans, offset, left = behind(spans, whole), offset + whole, left - whole

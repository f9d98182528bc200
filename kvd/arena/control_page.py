"""The control page of one session: its daemon's epoch and its revoke counter."""

import mmap
import os

import numpy as np

from kvd.arena.memfd import open_memory, seal_for_readers
from kvd.limits import PAGE_BYTES
from kvd.wire import CONTROL_MAGIC, CONTROL_PAGE, REVOKE_OFFSET


class MemfdControlPage:
    def __init__(self, mapping: mmap.mmap) -> None:
        # `struct` stores byte by byte; a numpy element is one aligned store.
        self._counter = np.frombuffer(mapping, "<u8", count=1, offset=REVOKE_OFFSET)

    def revoke(self, counter: int) -> None:
        assert counter > self._counter[0], (counter, self._counter[0])
        self._counter[0] = counter


def make_page(epoch: int) -> tuple[MemfdControlPage, int]:
    """Return a page that only its own mapping can write, and a descriptor; raise OSError."""
    descriptor = open_memory("kvd-control", PAGE_BYTES)
    try:
        mapping = mmap.mmap(descriptor, PAGE_BYTES, mmap.MAP_SHARED)
        CONTROL_PAGE.pack_into(mapping, 0, CONTROL_MAGIC, epoch, 0)
        seal_for_readers(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return MemfdControlPage(mapping), descriptor

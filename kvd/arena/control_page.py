"""The control page of one session: its daemon's epoch and its revoke counter."""

import os

import numpy as np

from kvd.arena.memfd import map_memory, open_memory, seal_for_readers
from kvd.limits import PAGE_BYTES
from kvd.wire import CONTROL_MAGIC, CONTROL_PAGE, REVOKE_OFFSET


class MemfdControlPage:
    def __init__(self, page: np.ndarray) -> None:
        # `struct` stores byte by byte; a numpy element is one aligned store.
        self._counter = page[REVOKE_OFFSET : REVOKE_OFFSET + 8].view("<u8")

    def revoke(self, counter: int) -> None:
        assert counter > self._counter[0], (counter, self._counter[0])
        self._counter[0] = counter


def make_page(epoch: int) -> tuple[MemfdControlPage, int]:
    """Return a page that only its own mapping can write, and a descriptor; raise OSError."""
    descriptor = open_memory("kvd-control", PAGE_BYTES)
    try:
        page = map_memory(descriptor, PAGE_BYTES, writable=True)
        CONTROL_PAGE.pack_into(page, 0, CONTROL_MAGIC, epoch, 0)
        seal_for_readers(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return MemfdControlPage(page), descriptor

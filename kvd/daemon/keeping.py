"""At a daemon's end: its dram goes to the service manager's descriptor store.

Everybody who could still read under a lease was told before. What is stored says whose it is, and
can be taken out once.
"""

import logging
import os

import numpy as np

from kvd.arena.contract import Arena
from kvd.arena.memfd import open_memory
from kvd.core.dram import LeftDram
from kvd.daemon.handover import INDEX_NAME, SLABS_NAME, FileKey, Whose, handover_of
from kvd.daemon.notify import Notifier
from kvd.format.handover import pack_handover

_log = logging.getLogger("kvd.service")


def keep_dram(left: LeftDram, whose: Whose, arena: Arena, notifier: Notifier) -> bool:
    """Give the store all of it, the slabs that hold most first; return whether it was heard."""
    files, writing = {}, {}
    for slab in _by_use(left):
        writing[slab] = arena.slab_descriptor(slab, writable=True)
        files[slab] = file_key(writing[slab])
    data = pack_handover(handover_of(left, whose, files))
    try:
        index = _index(data)
    except OSError as error:
        _log.warning("dram is not kept for the next start: %s", error.strerror)
        return False
    # First, so that a store which is too small still has use.
    kept = notifier.keep(INDEX_NAME, [index]) and notifier.keep(SLABS_NAME, list(writing.values()))
    heard = kept and notifier.wait_heard()
    os.close(index)
    if not heard:
        _log.warning("dram is not kept for the next start: the service manager does not answer")
    return heard


def file_key(descriptor: int) -> FileKey:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _by_use(left: LeftDram) -> list[int]:
    slabs, sizes = left.rows.slabs.ravel(), left.rows.sizes.ravel()
    held = np.bincount(slabs, sizes, max((s.slab for s in left.slabs), default=0) + 1)
    return sorted((s.slab for s in left.slabs), key=lambda slab: (-held[slab], slab))


def _index(data: bytes) -> int:
    """Return a memfd of these bytes; raise OSError. It is not sealed: its adopter cuts it."""
    descriptor = open_memory(INDEX_NAME, len(data))
    try:
        at = 0
        while at < len(data):
            at += os.pwrite(descriptor, data[at:], at)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor

"""Where slabs lie in this process, for the disk: which writes from them, and reads into them.

A disk gets addresses only. So whatever it may still use is held here until it says that it is done,
and a slab that is destroyed meanwhile stays mapped for as long.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kvd.arena.contract import Arena
from kvd.arena.memfd import MADV_DONTDUMP, advise, map_memory


class Use(IntEnum):
    """What the disk does with memory; batches of each have numbers of their own."""

    WRITE = 0
    READ = 1


@dataclass(slots=True)
class _Held:
    mappings: list[np.ndarray]
    items: int


class SlabMemory:
    """Used on the loop's thread, but for `release`, which any thread may call."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._writable: dict[int, np.ndarray] = {}
        self._held: dict[tuple[Use, int], _Held] = {}
        self._lock = threading.Lock()

    def map_slabs(self, slabs: Iterable[int], use: Use) -> dict[int, np.ndarray]:
        """Return the bytes of slabs; raise KeyError, OSError. Their mappings last as long."""
        view = self._for_reading if use == Use.WRITE else self._for_writing
        return {slab: view(slab) for slab in slabs}

    def hold(self, use: Use, batch: int, mappings: Iterable[np.ndarray], items: int) -> None:
        """Keep mappings until `items` of a batch are released."""
        with self._lock:
            assert (use, batch) not in self._held, (use, batch)
            self._held[use, batch] = _Held(list(mappings), items)

    def release(self, use: Use, batch: int, items: int) -> None:
        """Say that the disk is done with so many items of a batch."""
        with self._lock:
            held = self._held[use, batch]
            held.items -= items
            assert held.items >= 0, (use, batch)
            if held.items == 0:
                del self._held[use, batch]
        del held  # Unmapping takes a while, so not with the lock held.

    def holds(self, use: Use, batch: int) -> bool:
        with self._lock:
            return (use, batch) in self._held

    def forget(self, slab: int) -> None:
        """Have a slab's mapping go once nobody holds it."""
        if slab in self._writable:
            self._arena.let_go([self._writable.pop(slab)])

    def _for_reading(self, slab: int) -> np.ndarray:
        return np.frombuffer(self._arena.view_slab(slab), np.uint8)

    def _for_writing(self, slab: int) -> np.ndarray:
        mapping = self._writable.get(slab)
        if mapping is None:
            size_bytes = self._arena.view_slab(slab).nbytes
            descriptor = self._arena.slab_descriptor(slab, writable=True)
            mapping = map_memory(descriptor, size_bytes, writable=True)
            advise(mapping.ctypes.data, size_bytes, MADV_DONTDUMP)  # As in the arena.
            self._writable[slab] = mapping
        return mapping

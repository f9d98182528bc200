"""Mapped strips that are still read from disk: from ready pieces to layers that have arrived.

On the I/O thread. A layer's end is looked up in tables that nobody has checked yet; whatever they
say, what is decoded is checked against the roots, and a strip that is whole needs no table here.
"""

import numpy as np

from kvd.client.arrivals import Arrivals
from kvd.client.messages import Promised, Triple
from kvd.client.outcomes import Arrival
from kvd.client.slabs import Slab
from kvd.limits import READ_PIECES_MAX
from kvd.pieces import read_piece_bytes
from kvd.shape import CellGrid
from kvd.table import LENGTH_MASK, TABLE_ENTRY, table_bytes
from kvd.types import CLASS_COUNT, PlaneClass
from kvd.wire import WHOLE

_WORD_BYTES = 4
_ENTRY_WORDS = TABLE_ENTRY.itemsize // _WORD_BYTES


class Readiness:
    """What is there of one promise; `arrivals` are the layers that every promised chunk has."""

    def __init__(self, grid: CellGrid, promised: Promised) -> None:
        self.arrivals = Arrivals()
        self.there_bytes = 0
        self._grid, self._promised = grid, promised
        self._table_bytes = table_bytes(grid.cell_count)
        self._sizes = [sizes.astype(np.int64) for sizes in promised.sizes]
        self._pieces = [read_piece_bytes(sizes) for sizes in promised.sizes]
        self._slabs: dict[int, Slab] = {}
        self._layer_ends: list[np.ndarray | None] = [None] * CLASS_COUNT
        self._ready = promised.ready

    def place(self, slabs: dict[int, Slab]) -> None:
        """Take the slabs that the promise names, in which each strip lies inside."""
        self._slabs = slabs
        self._look()

    def advance(self, ready: Triple) -> None:
        """Take the number of leading pieces that are there of each strip, per class."""
        self._ready = ready
        if self._slabs:
            self._look()

    def complete(self, counts: Triple) -> None:
        """Everything of the leading `counts` chunks is there, and nothing more comes."""
        for plane_class in PlaneClass:
            if counts[plane_class]:
                self._tell(plane_class, self._grid.layers)
        self.arrivals.end()

    def _look(self) -> None:
        there = [
            np.minimum(sizes, pieces * (READ_PIECES_MAX if ready == WHOLE else ready))
            for sizes, pieces, ready in zip(self._sizes, self._pieces, self._ready, strict=True)
        ]
        self.there_bytes = sum(int(sizes.sum()) for sizes in there)
        layers = self._grid.layers
        for plane_class in PlaneClass:
            if len(there[plane_class]):
                # Reads may overtake each other; without the classes before it is of no use yet.
                layers = min(layers, self._layers(plane_class, there[plane_class]))
                self._tell(plane_class, layers)

    def _layers(self, plane_class: PlaneClass, there: np.ndarray) -> int:
        """Return how many leading layers all strips have, `there` i64[n] bytes of each."""
        if (there == self._sizes[plane_class]).all():
            return self._grid.layers
        if there.min() < self._table_bytes:
            return 0
        missing = (self._ends(plane_class) > there[:, None]).any(axis=0)
        return int(missing.argmax()) if missing.any() else self._grid.layers

    def _ends(self, plane_class: PlaneClass) -> np.ndarray:
        """Return i64[n, layers]: where each layer ends in each strip, as its table says.

        In a sound table no cell ends behind a later one, so the last of a layer stands for all.
        """
        known = self._layer_ends[plane_class]
        if known is not None:
            return known
        layers, row = self._grid.layers, len(self._grid.row)
        last = (np.arange(1, layers + 1) * row - 1) * _ENTRY_WORDS
        names, offsets = self._promised.slabs[plane_class], self._promised.offsets[plane_class]
        ends = np.empty((len(names), layers), np.int64)
        for name in np.unique(names).tolist():
            here = names == name
            words = self._slabs[name].mapping.words()
            entries = (offsets[here] // _WORD_BYTES).astype(np.int64)[:, None] + last
            ends[here] = words[entries].astype(np.int64) + (words[entries + 1] & LENGTH_MASK)
        self._layer_ends[plane_class] = ends
        return ends

    def _tell(self, plane_class: PlaneClass, layer_end: int) -> None:
        told = self.arrivals.layer_ends[plane_class]
        if layer_end > told and not self.arrivals.ended:
            self.arrivals.add(Arrival(plane_class, told, layer_end))

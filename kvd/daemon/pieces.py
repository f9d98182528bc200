"""What byte delivery sends, in order: class, layer band, lane, chunk. Reads slabs, sends nothing.

A band is so many layers that a piece is worth its head; it is the same for all chunks of a lane,
so that a band is complete for the whole prefix before the next one begins.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from kvd.core.effects import Deliver
from kvd.daemon.inbox import Place
from kvd.format.strip import parse_table
from kvd.limits import KIB
from kvd.table import LENGTH_MASK, table_bytes
from kvd.types import PlaneClass

PIECE_BYTES_MIN = 32 * KIB  # Below it the cost for each piece outweighs the cost of its bytes.

ViewSlab = Callable[[int], memoryview]
Piece = tuple[Place, memoryview]


class BrokenStrip(Exception):
    """A promised strip, of a lane and a chunk, has no table that can be one."""

    def __init__(self, what: str, lane: int, chunk: int) -> None:
        super().__init__(what)
        self.place = lane, chunk


class _LaneStrips:
    """The strips of one class of one lane, and where their bands lie once they are looked at."""

    def __init__(
        self, deliver: Deliver, lane: int, plane_class: int, view_slab: ViewSlab, piece_max: int
    ) -> None:
        columns = deliver.lanes[lane]
        self.lane, self.plane_class = lane, plane_class
        self._view_slab, self._piece_max = view_slab, piece_max
        self.count = deliver.counts[plane_class]
        self._slabs = columns.slabs[plane_class].tolist()
        self._offsets = columns.offsets[plane_class].tolist()
        self._sizes = columns.sizes[plane_class].tolist()
        self._row_cells = deliver.cells_per_layer[lane]
        layers = deliver.layers[lane]
        self._cells = layers * self._row_cells
        begin, end = min(deliver.layer_begin, layers), min(deliver.layer_end, layers)
        step = _band_layers(sum(self._sizes), self.count, layers)
        firsts = np.arange(begin, end, step)
        self._first_cells = firsts * self._row_cells
        self._last_cells = np.minimum(firsts + step, end) * self._row_cells - 1
        self.band_count = len(firsts)
        self._edges = np.zeros((self.count, self.band_count, 2), np.uint32)

    def pieces(self, band: int) -> Iterator[Piece]:
        for chunk in range(self.count):
            if band == 0:
                yield from self._first_pieces(chunk)
                continue
            begin, end = self._edges[chunk, band].tolist()
            yield from self._cut(chunk, begin, end)

    def _first_pieces(self, chunk: int) -> Iterator[Piece]:
        """Begin a strip: its table, and with it the first band if that lies right behind."""
        self._find_bands(chunk)
        begin, end = self._edges[chunk, 0].tolist()
        if self._first_cells[0] == 0:
            yield from self._cut(chunk, 0, end)
            return
        yield from self._cut(chunk, 0, table_bytes(self._cells))
        yield from self._cut(chunk, begin, end)

    def _find_bands(self, chunk: int) -> None:
        size, head = self._sizes[chunk], table_bytes(self._cells)
        strip = np.frombuffer(self._strip(chunk, 0, min(size, head)), np.uint8)
        # A copy: the session that wrote this slab can still write it, and what was checked must
        # be what is used.
        table = parse_table(strip.copy(), self._cells, size)
        if table is None:
            raise BrokenStrip(
                f"the {PlaneClass(self.plane_class).name.lower()} strip of chunk {chunk} "
                f"has no table of {self._cells} cells",
                self.lane,
                chunk,
            )
        last = table[self._last_cells]
        self._edges[chunk, :, 0] = table["offset"][self._first_cells]
        self._edges[chunk, :, 1] = last["offset"] + (last["length"] & LENGTH_MASK)

    def _cut(self, chunk: int, begin: int, end: int) -> Iterator[Piece]:
        for offset in range(begin, end, self._piece_max):
            place = Place(self.plane_class, self.lane, chunk, offset)
            yield place, self._strip(chunk, offset, min(end, offset + self._piece_max))

    def _strip(self, chunk: int, begin: int, end: int) -> memoryview:
        at = self._offsets[chunk]
        assert end <= self._sizes[chunk]
        return self._view_slab(self._slabs[chunk])[at + begin : at + end]


def _band_layers(strips_bytes: int, count: int, layers: int) -> int:
    """Return the fewest layers whose bytes, in the mean over the strips, fill a piece."""
    layer_bytes = max(1, strips_bytes // max(1, count * layers))
    return max(1, min(layers, -(-PIECE_BYTES_MIN // layer_bytes)))


def class_pieces(
    deliver: Deliver, plane_class: PlaneClass, view_slab: ViewSlab, piece_max: int
) -> Iterator[Piece]:
    """Yield a delivery's pieces of one class, of `piece_max` bytes at most; raise BrokenStrip.

    No strip is looked at before its piece is asked for.
    """
    lanes = [
        _LaneStrips(deliver, lane, plane_class, view_slab, piece_max)
        for lane in range(len(deliver.lanes))
    ]
    bands = range(max(lane.band_count for lane in lanes))
    for band, lane in itertools.product(bands, lanes):
        if band < lane.band_count:
            yield from lane.pieces(band)

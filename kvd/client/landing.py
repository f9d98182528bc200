"""Byte delivery's end: pieces land in staging memory, and layers that are complete are told.

Owns one staging buffer, taken from the pool for as long as the fetch lives. On the I/O thread.
Trusts nothing that it finds in a table: what lands is checked when it is decoded.
"""

from collections.abc import Callable

import numpy as np

from kvd.client.arrivals import Arrivals
from kvd.client.mapping import Buffer
from kvd.client.messages import Promised
from kvd.client.outcomes import Arrival
from kvd.limits import MIB
from kvd.shape import CellGrid
from kvd.table import LENGTH_MASK, TABLE_ENTRY, table_bytes
from kvd.types import CLASS_COUNT, PlaneClass

WINDOW_BYTES = 16 * MIB  # Of pieces on their way: enough for any link, little to wade through.

Credit = Callable[[int], None]


def staging_bytes(promised: Promised) -> int:
    return sum(int(sizes.sum(dtype=np.int64)) for sizes in promised.sizes)


class Landing:
    """A stream's sink for one fetch. `addresses` u64 per class, of strips in the staging buffer."""

    def __init__(
        self, grid: CellGrid, layers: tuple[int, int], promised: Promised, staging: Buffer
    ) -> None:
        """`layers` are what was asked for: [begin, end)."""
        self.staging = staging
        self.arrivals = Arrivals()
        self.delivered_bytes = 0
        self.on_progress: Callable[[], None] = _nothing
        self.give_credit: Credit = _no_credit
        self._grid, self._layers = grid, layers
        self._table_bytes = table_bytes(grid.cell_count)
        self._sizes = promised.sizes
        flat = np.concatenate(promised.sizes).astype(np.int64)
        begins = np.cumsum(flat) - flat
        cuts = np.cumsum(promised.counts)[:-1]
        self._begins = np.split(begins, cuts)
        self.addresses = tuple((part + staging.address).astype(np.uint64) for part in self._begins)
        self._memory = memoryview(staging.data)
        self._received = [[0] * count for count in promised.counts]
        self._layer_ends: dict[tuple[int, int], list[int]] = {}
        self._done = [[layers[0]] * count for count in promised.counts]  # Layers complete so far.
        self._open = [
            dict.fromkeys(range(*layers), count) for count in promised.counts
        ]  # Per layer: strips that lack it.
        self._told = [layers[0]] * CLASS_COUNT
        self._uncredited = 0

    @property
    def complete(self) -> bool:
        counts = (len(received) for received in self._received)
        told = zip(self._told, counts, strict=True)
        return all(layer == self._layers[1] or count == 0 for layer, count in told)

    def place(
        self, plane_class: int, lane: int, chunk: int, offset: int, size: int
    ) -> memoryview | None:
        """Return where a piece belongs, or None when it does not belong to anything promised."""
        if lane != 0 or plane_class >= CLASS_COUNT:
            return None
        received = self._received[plane_class]
        if chunk >= len(received) or offset < received[chunk]:
            return None
        if offset + size > int(self._sizes[plane_class][chunk]):
            return None
        begin = int(self._begins[plane_class][chunk]) + offset
        return self._memory[begin : begin + size]

    def landed(self, plane_class: int, chunk: int, offset: int, size: int) -> None:
        self.delivered_bytes += size
        self._received[plane_class][chunk] = offset + size
        self._count(plane_class, chunk)
        self.on_progress()
        self._uncredited += size
        if self._uncredited >= WINDOW_BYTES // 4:
            self.give_credit(self._uncredited)
            self._uncredited = 0

    def _count(self, plane_class: int, chunk: int) -> None:
        """Tell the layers that this strip was the last to complete."""
        received = self._received[plane_class][chunk]
        if received < self._table_bytes:
            return
        ends = self._ends(plane_class, chunk)
        done = self._done[plane_class][chunk]
        missing = self._open[plane_class]
        while done < self._layers[1] and ends[done] <= received:
            missing[done] -= 1
            done += 1
        self._done[plane_class][chunk] = done
        first = last = self._told[plane_class]
        while last < self._layers[1] and missing[last] == 0:
            last += 1
        if last > first:
            self._told[plane_class] = last
            self.arrivals.add(Arrival(PlaneClass(plane_class), first, last))

    def _ends(self, plane_class: int, chunk: int) -> list[int]:
        """Return where each layer ends in a strip, as its table says."""
        ends = self._layer_ends.get((plane_class, chunk))
        if ends is None:
            begin = int(self._begins[plane_class][chunk])
            table = self.staging.data[begin : begin + self._table_bytes].view(TABLE_ENTRY)
            lengths = (table["length"] & LENGTH_MASK).astype(np.int64)
            # A layer without bytes of its own is complete with the one before.
            stops = np.where(lengths > 0, table["offset"] + lengths, 0)
            of_layers = stops.reshape(self._grid.layers, -1).max(axis=1)
            ends = np.maximum.accumulate(of_layers).tolist()
            self._layer_ends[plane_class, chunk] = ends
        return ends


def _nothing() -> None:
    pass


def _no_credit(size: int) -> None:
    pass

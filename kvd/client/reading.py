"""Strips on the way out: roots and tables checked once, cells checked each time, then decoded.

Owns what is known about the strips of one fetch. Works on any thread; whether the memory was
still the lease's is for the caller to find out afterwards.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvd.checksum import strip_root
from kvd.client.arrays import CellViews
from kvd.client.messages import Counts, Promised
from kvd.codec import (
    EXACT,
    PROFILES,
    CellColumns,
    CellSpec,
    CodecProfile,
    cell_specs,
    check_cells,
    decode_cells,
)
from kvd.format.strip import sound_tables
from kvd.shape import CellGrid
from kvd.table import LENGTH_MASK, RAW_FLAG, TABLE_ENTRY
from kvd.types import CLASS_COUNT, Lane, PlaneClass

_DECODED_AT_ONCE = 4096  # Cells, few enough to find much of them in the cache again.
_CHECKED_AT_ONCE = 8192  # Cells, so that their columns stay in the cache.


@dataclass(frozen=True, slots=True)
class Area:
    """Layers [layer_begin, layer_end) of chunks [chunk_begin, chunk_end)."""

    layer_begin: int
    layer_end: int
    chunk_begin: int
    chunk_end: int


def classes_needed(grid: CellGrid, profiles: Sequence[CodecProfile], planes: int) -> int:
    """Return how many classes reading `planes` planes takes."""
    if planes == EXACT:
        return CLASS_COUNT
    widths = [p.code_of(t.role).anchor_planes for p in profiles for t in grid.tensors]
    return 1 if planes <= min(widths) else 2


class Strips:
    """The strips of one lane: `addresses` u64 per class, the rest as they were promised."""

    def __init__(
        self,
        shape: tuple[CellGrid, int, Lane],
        keys: Callable[[], list[bytes]],
        promised: Promised,
        addresses: tuple[np.ndarray, ...],
    ) -> None:
        """`shape` is grid, tokens of a chunk, lane; `keys` returns the chunk keys."""
        self.grid, self.chunk_tokens, self.lane = shape
        self.corrupt: set[int] = set()
        self.counts = promised.counts  # Chunks behind them were promised and did not come.
        self._keys, self._promised, self._addresses = keys, promised, addresses
        self._lock = threading.Lock()
        self._tables: list[np.ndarray | None] = [None] * CLASS_COUNT
        self._sound_until = [0] * CLASS_COUNT
        self._profile_ids = promised.profiles.tolist()
        self.profiles = [PROFILES[number] for number in set(self._profile_ids)]

    @property
    def promised(self) -> Promised:
        return self._promised

    def table(self, plane_class: PlaneClass) -> np.ndarray:
        """Return the tables [chunks, cells] of a class that was checked before."""
        table = self._tables[plane_class]
        assert table is not None
        return table

    @property
    def class_bytes(self) -> tuple[int, int, int]:
        """Bytes of all strips per class."""
        a, r, e = (int(sizes.sum(dtype=np.int64)) for sizes in self._promised.sizes)
        return a, r, e

    def shrink(self, counts: Counts) -> None:
        """Leave out what did not come; whoever found it bad has found nothing wrong."""
        promised, self.counts = self.counts, counts
        for kept, of in zip(counts, promised, strict=True):
            self.corrupt.difference_update(range(kept, of))

    def check(self, area: Area, class_count: int) -> int:
        """Check everything in an area in place; return the end of its good leading chunks."""
        end = self._trusted(area, class_count)
        step = max(1, _CHECKED_AT_ONCE // self._cells(area))
        for begin in range(area.chunk_begin, end, step):
            block = Area(area.layer_begin, area.layer_end, begin, min(begin + step, end))
            good = self._check_block(block, class_count)[0]
            if good < block.chunk_end:
                return good
        return end

    def decode(
        self, area: Area, planes: int, class_count: int, views: CellViews, token: int
    ) -> int:
        """Decode an area, chunk 0 of the sequence lying at `token` of the views.

        Return the end of its good leading chunks; targets behind it are unspecified.
        """
        end = self._trusted(area, class_count)
        step = max(1, _DECODED_AT_ONCE // self._cells(area))
        for begin in range(area.chunk_begin, end, step):
            block = Area(area.layer_begin, area.layer_end, begin, min(begin + step, end))
            good = self._decode_block(block, planes, class_count, views, token)
            if good < block.chunk_end:
                return good
        return end

    def _cells(self, area: Area) -> int:
        return (area.layer_end - area.layer_begin) * len(self.grid.row)

    def _decode_block(
        self, area: Area, planes: int, class_count: int, views: CellViews, token: int
    ) -> int:
        good, strings, tables = self._check_block(area, class_count)
        count = good - area.chunk_begin
        if count == 0:
            return good
        cells = self._cells(area)
        lengths = np.zeros((CLASS_COUNT, count * cells), np.uint32)
        for index in range(class_count):
            lengths[index] = (tables[index]["length"][:count] & LENGTH_MASK).reshape(-1)
        raw = (tables[0]["length"][:count] & RAW_FLAG != 0).reshape(-1)
        addresses = [np.ascontiguousarray(s[:count]).reshape(-1) for s in strings]
        optional = [*addresses, None, None]
        specs, index = self._specs(area.chunk_begin, good, cells)
        columns = CellColumns(index, optional[0], optional[1], optional[2], lengths, raw)
        first = token + area.chunk_begin * self.chunk_tokens
        targets = views.at_tokens(first, self.chunk_tokens, count)
        malformed = decode_cells(specs, columns, targets, np.tile(views.strides, count), planes)
        return self._without(malformed, area, cells, good)

    def _check_block(
        self, area: Area, class_count: int
    ) -> tuple[int, list[np.ndarray], list[np.ndarray]]:
        """Return the end of good chunks, and per class the cells' addresses and table entries."""
        row = len(self.grid.row)
        chunks = slice(area.chunk_begin, area.chunk_end)
        good, cells = area.chunk_end, self._cells(area)
        strings, tables = [], []
        for index in range(class_count):
            whole = self._tables[index]
            assert whole is not None
            table = whole[chunks, area.layer_begin * row : area.layer_end * row]
            homes = self._addresses[index][chunks, None] + table["offset"]
            lengths = (table["length"] & LENGTH_MASK).reshape(-1)
            sums = np.ascontiguousarray(table["checksum"]).reshape(-1)
            wrong = check_cells(0, homes.reshape(-1), lengths, sums)
            good = min(good, self._without(wrong, area, cells, good))
            strings.append(homes)
            tables.append(table)
        return good, strings, tables

    def _without(self, wrong: np.ndarray, area: Area, cells: int, end: int) -> int:
        """Count chunks with wrong cells as corrupt; return the end of those before the first."""
        if not len(wrong):
            return end
        chunks = {int(cell) // cells + area.chunk_begin for cell in wrong}
        self.corrupt.update(chunks)
        return min(end, *chunks)

    def _specs(self, begin: int, end: int, cells: int) -> tuple[tuple[CellSpec, ...], np.ndarray]:
        """Return the specs of all cells of some chunks, and u8 indices into them."""
        specs: tuple[CellSpec, ...] = ()
        index = np.empty((end - begin, cells), np.uint8)
        names = self._profile_ids[begin:end] if begin else [None, *self._profile_ids[1:end]]
        for name in dict.fromkeys(names):
            number = self._profile_ids[0] if name is None else name
            its_specs, of_strip = cell_specs(
                PROFILES[number], self.grid, self.chunk_tokens, name is None
            )
            # The same for every layer, so the first ones stand for any.
            index[[at == name for at in names]] = of_strip[:cells] + np.uint8(len(specs))
            specs += its_specs
        return specs, index.reshape(-1)

    # ---- tables and roots ----

    def _trusted(self, area: Area, class_count: int) -> int:
        """Return the end of an area's leading chunks whose tables are what their writer made."""
        end = area.chunk_end
        for index in range(class_count):
            with self._lock:
                if self._tables[index] is None:
                    self._open(index)
            end = min(end, max(area.chunk_begin, self._sound_until[index]))
        return end

    def _open(self, index: int) -> None:
        """Copy the tables of a class, then check the copies, which nobody can change any more."""
        promised, count = self._promised, self.counts[index]
        homes = self._addresses[index][:count].tolist()
        tables = np.empty((len(homes), self.grid.cell_count), TABLE_ENTRY)
        heads = tables.view(np.uint8).reshape(len(homes), -1)
        size, address = heads.shape[1], heads.ctypes.data
        for place, home in enumerate(homes):
            ctypes.memmove(address + place * size, home, size)
        named = zip(
            self._keys(), promised.generations.tolist(), self._profile_ids, heads, strict=False
        )
        lane, plane_class = self.lane, PlaneClass(index)
        roots = [
            strip_root(key, lane, plane_class, generation, profile, head)
            for key, generation, profile, head in named
        ]
        sound = np.array(roots, np.uint64) == promised.roots[index][:count]
        sound &= sound_tables(tables, promised.sizes[index][:count])
        wrong = np.flatnonzero(~sound)
        self.corrupt.update(wrong.tolist())
        self._sound_until[index] = int(wrong[0]) if len(wrong) else len(homes)
        self._tables[index] = tables

"""Pieces of a batch: which may go together, what became of each, whether a table fits its root."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvd.checksum import strip_root
from kvd.disk.carrier import Carrier
from kvd.disk.contract import Names, Places
from kvd.disk.files import SPANS_MAX
from kvd.errors import Fault
from kvd.format.strip import sound_tables
from kvd.limits import CHUNK_KEY_BYTES
from kvd.table import TABLE_ENTRY, table_bytes
from kvd.types import PlaneClass


@dataclass(slots=True)
class Run:
    """Pieces that follow each other in one segment; `items` are their places in the batch."""

    items: list[int]
    segment: int
    epoch: int
    offset: int
    size_bytes: int
    spans: list[tuple[int, int]]


class Verdicts:
    """What became of some items of a batch."""

    def __init__(self, items: list[int]) -> None:
        self.items = items
        self._faults: dict[int, Fault] = {}

    def fail(self, items: list[int], fault: Fault) -> None:
        """Say what went wrong; the first thing said of an item stays."""
        for item in items:
            self._faults.setdefault(item, fault)

    def failed(self, item: int) -> bool:
        return item in self._faults

    def kinds(self) -> np.ndarray:
        """Return u8 by place in `items`: 0 or a FaultKind."""
        if not self._faults:
            return np.zeros(len(self.items), np.uint8)
        found = (self._faults.get(item) for item in self.items)
        return np.array([0 if fault is None else fault.kind for fault in found], np.uint8)

    def columns(self) -> tuple[np.ndarray, np.ndarray, tuple[Fault, ...]]:
        """Return items, kinds and faults as reports carry them."""
        return np.array(self.items, np.int64), self.kinds(), self.faults()

    def faults(self) -> tuple[Fault, ...]:
        return tuple(dict.fromkeys(self._faults.values()))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Places as lists of numbers: element access of arrays costs more than the call it is for."""

    segments: list[int]
    epochs: list[int]
    offsets: list[int]
    sizes: list[int]
    addresses: list[int]

    @staticmethod
    def of(places: Places) -> "Pieces":
        columns = (places.segments, places.epochs, places.offsets, places.sizes, places.addresses)
        return Pieces(*(column.tolist() for column in columns))

    def runs(self, items: list[int], bytes_max: int) -> Iterator[Run]:
        """Yield `items` in their order, neighbours together where they are in the file as well."""
        run: Run | None = None
        for item in items:
            segment, epoch, offset = self.segments[item], self.epochs[item], self.offsets[item]
            size, address = self.sizes[item], self.addresses[item]
            if run is None:
                run = Run([item], segment, epoch, offset, size, [(address, size)])
            elif (
                run.offset + run.size_bytes == offset
                and run.segment == segment
                and run.epoch == epoch
                and run.size_bytes + size <= bytes_max
                and len(run.spans) < SPANS_MAX
            ):
                run.items.append(item)
                run.spans.append((address, size))
                run.size_bytes += size
            else:
                yield run
                run = Run([item], segment, epoch, offset, size, [(address, size)])
        if run is not None:
            yield run


class Roots:
    """Compares tables in memory with what names say."""

    def __init__(self, names: Names, carrier: Carrier) -> None:
        self._names, self._carrier = names, carrier
        self._keys = names.keys.tobytes()
        self.cells: list[int] = names.cells.tolist()

    def unfit(self, items: list[int], pieces: Pieces) -> list[int]:
        """Return the items whose table is not there whole or has not the root of their strip."""
        return [i for i in items if not self._fits(i, self._table(i, pieces))]

    def unfit_strips(self, items: list[int], pieces: Pieces) -> list[int]:
        """Return the items that are no strips: as `unfit`, or whose table no reader would take."""
        tables = {item: self._table(item, pieces) for item in items}
        wrong = {item for item, table in tables.items() if not self._fits(item, table)}
        by_cells: dict[int, list[int]] = {}
        for item in items:
            if item not in wrong:
                by_cells.setdefault(self.cells[item], []).append(item)
        for cells, some in by_cells.items():
            joined = np.frombuffer(b"".join(tables[item] for item in some), TABLE_ENTRY)
            sizes = np.array([pieces.sizes[item] for item in some])
            sound = sound_tables(joined.reshape(len(some), cells), sizes)
            wrong.update(item for item, good in zip(some, sound.tolist(), strict=True) if not good)
        return sorted(wrong)

    def _table(self, item: int, pieces: Pieces) -> bytes:
        """Return a copy of a table, empty when the piece is too short for it."""
        size = table_bytes(self.cells[item])
        if not 0 < size <= pieces.sizes[item]:
            return b""
        return self._carrier.copy_out(pieces.addresses[item], size)

    def _fits(self, item: int, table: bytes) -> bool:
        names = self._names
        root = strip_root(
            self._keys[item * CHUNK_KEY_BYTES : (item + 1) * CHUNK_KEY_BYTES],
            names.lanes[names.lane_of[item]],
            PlaneClass(int(names.classes[item])),
            int(names.generations[item]),
            int(names.profiles[item]),
            table,
        )
        return bool(table) and root == int(names.roots[item])

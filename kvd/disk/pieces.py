"""Pieces of a batch: which may go together, what became of each, whether a table fits its root."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvd.checksum import strip_root
from kvd.disk.carrier import Carrier
from kvd.disk.contract import Names, Places
from kvd.disk.files import SPANS_MAX
from kvd.errors import Fault
from kvd.format.strip import parse_table, table_bytes
from kvd.types import PlaneClass


@dataclass(frozen=True, slots=True)
class Run:
    """Pieces that follow each other in one segment; `items` are their places in the batch."""

    items: list[int]
    segment: int
    epoch: int
    offset: int
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
        size_bytes = 0
        for item in items:
            segment, epoch, offset = self.segments[item], self.epochs[item], self.offsets[item]
            size = self.sizes[item]
            if (
                run is not None
                and (run.segment, run.epoch) == (segment, epoch)
                and run.offset + size_bytes == offset
                and size_bytes + size <= bytes_max
                and len(run.spans) < SPANS_MAX
            ):
                run.items.append(item)
                run.spans.append((self.addresses[item], size))
                size_bytes += size
                continue
            if run is not None:
                yield run
            run = Run([item], segment, epoch, offset, [(self.addresses[item], size)])
            size_bytes = size
        if run is not None:
            yield run


@dataclass(frozen=True, slots=True)
class Roots:
    """Compares tables in memory with what names say."""

    names: Names
    carrier: Carrier

    def fit(self, item: int, address: int, size_bytes: int, *, whole: bool) -> bool:
        """Return whether the table at `address` has the root of `item`; `whole`: it is a strip."""
        names = self.names
        cells = int(names.cells[item])
        head = table_bytes(cells)
        if head > size_bytes:
            return False
        table = self.carrier.copy_out(address, head)
        if whole and parse_table(np.frombuffer(table, np.uint8), cells, size_bytes) is None:
            return False
        root = strip_root(
            names.keys[item].tobytes(),
            names.lanes[names.lane_of[item]],
            PlaneClass(int(names.classes[item])),
            int(names.generations[item]),
            int(names.profiles[item]),
            table,
        )
        return root == int(names.roots[item])

"""What every catalog promises: changes committed as one, in order, durably, and reported.

A catalog carries out; what is worth keeping is decided elsewhere. It knows no files of strips.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from kvd.errors import Fault
from kvd.format.records import SEGMENT, Meta
from kvd.format.rows import ROW, ROW_KEY
from kvd.identity import Keyspace
from kvd.limits import MIB, PAGE_BYTES

DATA_NAME = "data.mdb"  # LMDB chooses it.
DAMAGED_NAME = "damaged"  # Beside it: what reads it finds nothing, and it is not written any more.


_BUDGET_PARTS = 64
_MAP_BYTES_MIN = 4 * MIB


def map_bytes_of(budget_bytes: int) -> int:
    """Return the size of the catalog's file for an ssd budget, of which it is a part.

    A chunk takes about 370 bytes of it, so it is full before the segments only where the three
    strips of a chunk have less than 27 KiB together.
    """
    return max(_MAP_BYTES_MIN, budget_bytes // _BUDGET_PARTS // PAGE_BYTES * PAGE_BYTES)


class Table(StrEnum):
    META = "meta"
    KEYSPACES = "keyspaces"
    ROWS = "rows"
    SEGMENTS = "segments"


def _none(dtype: np.dtype) -> np.ndarray:
    return np.empty(0, dtype)


@dataclass(frozen=True, slots=True)
class Changes:
    """One transaction: what is dropped goes first, then what is put replaces what was there.

    `rows` and `segments` are sealed; `keyspaces` are digest and bytes, as `pack_keyspace` makes
    them; `dropped` names anything by its table and key. `generation` and `directories` change the
    meta record where they are not empty, `written` (day, bytes) where it is not None.
    """

    rows: np.ndarray = field(default_factory=lambda: _none(ROW))
    segments: np.ndarray = field(default_factory=lambda: _none(SEGMENT))
    keyspaces: tuple[tuple[bytes, bytes], ...] = ()
    dropped_rows: np.ndarray = field(default_factory=lambda: _none(ROW_KEY))
    dropped: tuple[tuple[Table, bytes], ...] = ()
    generation: int = 0
    directories: tuple[bytes, ...] = ()
    written: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        assert self.rows.dtype == ROW and self.dropped_rows.dtype == ROW_KEY
        assert self.segments.dtype == SEGMENT

    @property
    def items(self) -> int:
        puts = len(self.rows) + len(self.segments) + len(self.keyspaces)
        return puts + len(self.dropped_rows) + len(self.dropped)


@dataclass(frozen=True, slots=True)
class Committed:
    """These batches are durable, all of them; or none is known to be, and `fault` says why.

    After a fault a batch may be found after a crash all the same; one of drops only may be in part.
    """

    batches: tuple[int, ...]
    fault: Fault | None


# Called from the catalog's thread, once for each batch; must not block.
Report = Callable[[Committed], None]


class Refusal(StrEnum):
    DAMAGED = "damaged"
    NO_KEYSPACE = "of no known keyspace"
    NO_SEGMENT = "in no known segment"


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a catalog holds and that can be believed.

    `rows` are in the order of their keys; they may refer to memory that is given back with them.
    `refused` counts what was left out, and `purge` drops it. `number` is the highest of a segment
    that anything in it names, refused or not: as long as the catalog does, it means that file.
    """

    meta: Meta
    keyspaces: dict[bytes, tuple[Keyspace, str]]
    rows: np.ndarray
    segments: np.ndarray
    refused: dict[Refusal, int]
    purge: Changes
    number: int = 0


class Catalog(Protocol):
    def commit(self, batch: int, changes: Changes) -> None:
        """Make changes durable, with what else waits; answered by Committed, in the order given.

        NO_SPACE: the map is full. Batches of drops only go through, so that there is a way out.
        """
        ...

    def close(self) -> bool:
        """Answer what waits CANCELLED, and stop within the bound; return whether it did.

        Else something may be written yet, until the process ends.
        """
        ...

"""All strips that a catalog names, in the order of their places, and what it says of their chunks.

Columns only: a catalog may have a million strips.
"""

from dataclasses import dataclass, field

import numpy as np

from kvd.catalog.contract import Contents
from kvd.codec import PROFILES
from kvd.errors import KvdError
from kvd.format.rows import lane_of, lane_starts
from kvd.shape import cell_grid
from kvd.types import CLASS_COUNT, Lane, PlaneClass

NO_CELLS = 0  # Of a lane that its keyspace's block shape does not have.


@dataclass(frozen=True, slots=True)
class Strips:
    """n strips by directory, segment, page: `rows` i64, `classes`, `directories` u8,

    `segments`, `pages` (the first one in the file) and `counts` (of pages) i64.
    """

    rows: np.ndarray
    classes: np.ndarray
    directories: np.ndarray
    segments: np.ndarray
    pages: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def files(self) -> np.ndarray:
        """Return i64[n]: a number for the file of each strip, ascending."""
        return (self.directories.astype(np.int64) << 32) | self.segments


@dataclass(slots=True)
class Holdings:
    """`lane_of` u32[n] into `lanes` (keyspace digest, lane, cells of a strip) for each row.

    `kept` u8[n]: how many classes of each row were not found wrong so far. `readable` bool by
    strip: it has cells, and a place that can be.
    """

    rows: np.ndarray
    lanes: list[tuple[bytes, Lane, int]]
    lane_of: np.ndarray
    strips: Strips
    kept: np.ndarray = field(init=False)
    readable: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.kept = self.present.copy()
        self.readable = self.cells()[self.strips.rows] != NO_CELLS

    @property
    def present(self) -> np.ndarray:
        """Return u8[n]: how many classes each row has."""
        return (self.rows["pages"] != 0).sum(axis=1).astype(np.uint8)

    def lose(self, strips: np.ndarray) -> None:
        """Take strips (by number), and the less significant ones of their rows, for lost."""
        np.minimum.at(self.kept, self.strips.rows[strips], self.strips.classes[strips])

    def cells(self) -> np.ndarray:
        """Return i64 by row: how many cells each of its strips has."""
        return np.array([cells for *_, cells in self.lanes], np.int64)[self.lane_of]

    def name(self, row: int) -> str:
        """Return the chunk of a row in words."""
        chain = self.rows["chain"][row, :8].tobytes().hex()
        return f"chunk {chain} (generation {self.rows['generation'][row]})"

    def name_strip(self, strip: int) -> str:
        plane_class = PlaneClass(int(self.strips.classes[strip])).name.lower()
        return f"the {plane_class} strip of {self.name(int(self.strips.rows[strip]))}"


def holdings_of(contents: Contents) -> Holdings:
    starts = lane_starts(contents.rows)
    lanes = []
    for at in starts.tolist():
        digest, lane = contents.rows["keyspace"][at].tobytes(), lane_of(contents.rows[at])
        keyspace, _ = contents.keyspaces[digest]
        try:
            cells = cell_grid(keyspace.shape, lane).cell_count
        except KvdError:
            cells = NO_CELLS
        lanes.append((digest, lane, cells))
    ends = np.append(starts, len(contents.rows))
    numbers = np.repeat(np.arange(len(lanes), dtype=np.uint32), np.diff(ends))
    return Holdings(contents.rows, lanes, numbers, _strips_of(contents.rows))


def unknown_profiles(rows: np.ndarray) -> np.ndarray:
    """Return i64: the rows whose codec profile this version does not know."""
    known = np.array(sorted(PROFILES), np.uint64)
    return np.flatnonzero(~np.isin(rows["profile"], known))


def _strips_of(rows: np.ndarray) -> Strips:
    found = [np.flatnonzero(rows["pages"][:, c]) for c in range(CLASS_COUNT)]
    at = np.concatenate(found)
    classes = np.repeat(np.arange(CLASS_COUNT, dtype=np.uint8), [len(some) for some in found])
    directories, segments, pages, counts = (
        rows[name][at, classes] for name in ("directory", "segment", "page", "pages")
    )
    order = np.lexsort((pages, segments, directories))
    return Strips(
        at[order], classes[order], directories[order], segments[order].astype(np.int64),
        pages[order].astype(np.int64), counts[order].astype(np.int64),
    )  # fmt: skip


def overlapping(strips: Strips) -> np.ndarray:
    """Return i64: the strips that share a page with another one."""
    if len(strips) < 2:
        return np.empty(0, np.int64)
    files, ends = strips.files, strips.pages + strips.counts
    begins_file = np.append(True, files[1:] != files[:-1])
    # A strip may cover several behind it, so what counts is the furthest end so far in its file.
    number = np.cumsum(begins_file) - 1
    reach = np.maximum.accumulate(ends + (number << 33)) - (number << 33)
    under = np.append(False, ~begins_file[1:] & (strips.pages[1:] < reach[:-1]))
    over = np.append(~begins_file[1:] & (ends[:-1] > strips.pages[1:]), False)
    return np.flatnonzero(under | over)

"""Whether strips in memory are what the catalog says of them: root, table, every cell."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kvd.checking.holdings import Holdings
from kvd.checksum import strip_root
from kvd.codec import check_cells
from kvd.format.strip import sound_tables
from kvd.identity import chunk_key
from kvd.limits import PAGE_BYTES
from kvd.table import LENGTH_MASK, TABLE_ENTRY, table_bytes
from kvd.types import PlaneClass


class Verdict(IntEnum):
    """What became of a strip; the detail is an errno, or the first wrong cell.

    UNREAD says nothing of its bytes; LOST is what the medium gives no more.
    """

    GOOD = 0
    UNREAD = 1
    SHORT = 2  # It ends inside its table.
    ROOT = 3
    TABLE = 4
    CELL = 5
    LOST = 6


@dataclass(slots=True)
class Verdicts:
    """By strip: `kinds` u8, `details` u32, `wrong_cells` u32; and how much was read in all."""

    kinds: np.ndarray
    details: np.ndarray
    wrong_cells: np.ndarray
    strips: int = 0
    cells: int = 0
    size_bytes: int = 0

    @staticmethod
    def of(count: int) -> "Verdicts":
        kinds, *others = (np.zeros(count, dtype) for dtype in (np.uint8, np.uint32, np.uint32))
        return Verdicts(kinds, *others)

    def say(self, group: np.ndarray, verdict: Verdict, detail: int = 0) -> None:
        self.kinds[group] = verdict
        self.details[group] = detail


class Verifier:
    """For several threads at once, each with strips of its own."""

    def __init__(self, holdings: Holdings, verdicts: Verdicts) -> None:
        self._holdings, self._verdicts = holdings, verdicts
        strips = holdings.strips
        self.cells = holdings.cells()[strips.rows]
        self._sizes = strips.counts * PAGE_BYTES

    def check(self, group: np.ndarray, data: np.ndarray, begin: int) -> int:
        """Check strips that lie in `data`, the file's bytes from `begin` on; count their cells."""
        cells, sizes = self.cells[group], self._sizes[group]
        offsets = self._holdings.strips.pages[group] * PAGE_BYTES - begin
        checked = 0
        for count in np.unique(cells).tolist():
            long = sizes >= table_bytes(count)
            self._verdicts.say(group[(cells == count) & ~long], Verdict.SHORT)
            some = np.flatnonzero((cells == count) & long)
            if not len(some):
                continue
            tables = np.empty((len(some), table_bytes(count)), np.uint8)
            for at, offset in enumerate(offsets[some].tolist()):
                tables[at] = data[offset : offset + tables.shape[1]]
            entries = tables.view(TABLE_ENTRY)
            good = self.fit(group[some], entries)
            self._check_cells(group[some[good]], entries[good], data, offsets[some[good]])
            checked += count * int(good.sum())
        return checked

    def fit(self, group: np.ndarray, tables: np.ndarray) -> np.ndarray:
        """Return bool by strip: its table [cells] has its root, and no reader would refuse it."""
        pairs = zip(group.tolist(), tables, strict=True)
        rooted = np.array([self._has_root(strip, table) for strip, table in pairs], bool)
        self._verdicts.say(group[~rooted], Verdict.ROOT)
        sound = sound_tables(tables, self._sizes[group])
        self._verdicts.say(group[rooted & ~sound], Verdict.TABLE)
        return rooted & sound

    def _has_root(self, strip: int, table: np.ndarray) -> bool:
        holdings, number = self._holdings, self._holdings.strips.rows[strip]
        row = holdings.rows[number]
        digest, lane, _ = holdings.lanes[holdings.lane_of[number]]
        plane_class = PlaneClass(int(holdings.strips.classes[strip]))
        key = chunk_key(digest, row["chain"].tobytes())
        generation, profile = int(row["generation"]), int(row["profile"])
        root = strip_root(key, lane, plane_class, generation, profile, table.tobytes())
        return root == int(row["root"][plane_class])

    def _check_cells(
        self, group: np.ndarray, tables: np.ndarray, data: np.ndarray, offsets: np.ndarray
    ) -> None:
        if not len(group):
            return
        begins = tables["offset"].astype(np.uint64) + offsets.astype(np.uint64)[:, None]
        wrong = wrong_cells(tables.reshape(-1), begins.reshape(-1), data)
        which, cells = np.divmod(wrong, tables.shape[1])
        for at in np.unique(which).tolist():
            self.tell_cells(int(group[at]), cells[which == at])

    def tell_cells(self, strip: int, cells: np.ndarray) -> None:
        """Say that these cells of a strip, ascending, have wrong bytes."""
        self._verdicts.say(np.array([strip]), Verdict.CELL, int(cells[0]))
        self._verdicts.wrong_cells[strip] = len(cells)


def wrong_cells(table: np.ndarray, begins: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return i64: which cells, of table entries, that begin at u64 `begins` of data are wrong."""
    lengths, sums = table["length"] & LENGTH_MASK, np.ascontiguousarray(table["checksum"])
    return check_cells(data, begins, lengths, sums)

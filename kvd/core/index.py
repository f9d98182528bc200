"""Which chunk of which lane lies where: rows in columns, one tree of prefixes per lane.

Presence is monotone: a row has a class only if it has the classes before it, and only if its
parent has that class (I6). So the longest prefix is found by bisection, and whoever holds one row
holds its ancestors.
"""

from dataclasses import dataclass, field

import numpy as np

from kvd.limits import DIGEST_BYTES
from kvd.shape import CellGrid
from kvd.types import CLASS_COUNT, Lane

NO_ROW = -1
ROWS_AT_START = 1024


@dataclass(slots=True)
class Tree:
    """All chunks of one lane of one keyspace, by chain digest. The digest covers the tenant."""

    id: int
    digest: bytes
    tenant: str
    lane: Lane
    grid: CellGrid
    rows: dict[bytes, int] = field(default_factory=dict)
    # Largest strip seen per class: bounds what a lease of n chunks can hold, without a walk.
    strip_bytes_max: list[int] = field(default_factory=lambda: [0] * CLASS_COUNT)


_COLUMNS = {
    "tree_id": (np.int32, ()),
    "parent": (np.int64, ()),
    "generation": (np.uint64, ()),
    "profile": (np.uint64, ()),
    "condemned": (np.bool_, ()),  # A reader found wrong bytes: not offered, replaced by a put.
    "heat": (np.float64, ()),
    "frontier_at": (np.int64, ()),
    "slab": (np.uint32, (CLASS_COUNT,)),  # 0: the class is absent.
    "offset": (np.uint64, (CLASS_COUNT,)),
    "size": (np.uint32, (CLASS_COUNT,)),
    "root": (np.uint64, (CLASS_COUNT,)),
    "children": (np.int32, (CLASS_COUNT,)),  # How many children have the class.
    "pins": (np.int32, (CLASS_COUNT,)),  # Leases and reservations that name the row.
}


class Index:
    """Columns by row number; `frontier` lists the rows whose top class nobody builds on."""

    __slots__ = (*_COLUMNS, "trees", "trees_by_key", "chain", "free_rows", "frontier", "row_count")

    def __init__(self) -> None:
        for name, (dtype, shape) in _COLUMNS.items():
            setattr(self, name, np.zeros((ROWS_AT_START, *shape), dtype))
        self.frontier_at[:] = NO_ROW
        self.chain: list[bytes | None] = [None] * ROWS_AT_START
        self.free_rows = list(range(ROWS_AT_START - 1, -1, -1))
        self.frontier: list[int] = []
        self.row_count = 0
        self.trees: list[Tree] = []
        self.trees_by_key: dict[tuple[bytes, Lane], Tree] = {}

    def adopt(self, tree: Tree) -> None:
        """Take a tree in, now that something is to be put in it."""
        if tree.id == NO_ROW:
            assert (tree.digest, tree.lane) not in self.trees_by_key
            tree.id = len(self.trees)
            self.trees.append(tree)
            self.trees_by_key[tree.digest, tree.lane] = tree

    def new_rows(self, tree: Tree, chain: list[bytes], parent: int) -> np.ndarray:
        """Return empty rows for digests that the tree does not know, each behind the one before."""
        while len(self.free_rows) < len(chain):
            self._grow()
        rows = [self.free_rows.pop() for _ in chain]
        for row, digest in zip(rows, chain, strict=True):
            assert len(digest) == DIGEST_BYTES and digest not in tree.rows
            self.chain[row] = digest
            tree.rows[digest] = row
        self.row_count += len(rows)
        columns = np.array(rows, np.int64)
        assert not self.slab[columns].any() and not self.children[columns].any()
        assert not self.pins[columns].any() and (self.frontier_at[columns] == NO_ROW).all()
        assert not self.condemned[columns].any()
        self.tree_id[columns] = tree.id
        self.parent[columns] = [parent, *rows[:-1]]
        self.heat[columns] = -np.inf
        return columns

    def forget_row(self, row: int) -> None:
        """Take an empty row out of its tree."""
        assert not self.slab[row].any() and not self.pins[row].any()
        assert not self.children[row].any()
        self._leave_frontier(row)
        del self.trees[self.tree_id[row]].rows[self.chain[row]]
        self.chain[row] = None
        self.condemned[row] = False
        self.free_rows.append(row)
        self.row_count -= 1

    def count(self, tree: Tree, chain: bytes, plane_class: int) -> int:
        """Return how many leading chunks of `chain` have the class, by bisection."""
        rows, slab = tree.rows, self.slab
        low, high = 0, len(chain) // DIGEST_BYTES
        while low < high:
            middle = (low + high + 1) // 2
            row = rows.get(chain[(middle - 1) * DIGEST_BYTES : middle * DIGEST_BYTES])
            if row is not None and slab[row, plane_class]:
                low = middle
            else:
                high = middle - 1
        return low

    def rows_of(self, tree: Tree, chain: bytes, count: int) -> np.ndarray:
        """Return the rows of the first `count` chunks, cut where they do not follow each other.

        Bisection trusts the chain; whoever names places walks it: a chain that was never stored
        as such, or runs over a condemned chunk, is cut there.
        """
        get = tree.rows.get
        found = [get(chain[at : at + DIGEST_BYTES], NO_ROW) for at in _digest_starts(count)]
        rows = np.array(found, np.int64)
        if not count:
            return rows
        good = rows != NO_ROW
        good &= ~self.condemned[rows]
        before = np.concatenate(([NO_ROW], rows[:-1]))
        good &= self.parent[rows] == before
        bad = np.flatnonzero(~good)
        return rows[: bad[0]] if len(bad) else rows

    def top_class(self, row: int) -> int:
        """Return the least significant class that the row has, or NO_ROW."""
        slab = self.slab[row]
        for plane_class in range(CLASS_COUNT - 1, -1, -1):
            if slab[plane_class]:
                return plane_class
        return NO_ROW

    def complete(self, row: int) -> bool:
        return bool(self.slab[row, CLASS_COUNT - 1]) and not self.condemned[row]

    def place_frontier(self, row: int) -> None:
        """Put the row on the frontier, or off it, as its classes and children say now."""
        top = self.top_class(row)
        if top != NO_ROW and not self.children[row, top]:
            if self.frontier_at[row] == NO_ROW:
                self.frontier_at[row] = len(self.frontier)
                self.frontier.append(row)
        else:
            self._leave_frontier(row)

    def _leave_frontier(self, row: int) -> None:
        at = int(self.frontier_at[row])
        if at == NO_ROW:
            return
        last = self.frontier.pop()
        if last != row:
            self.frontier[at] = last
            self.frontier_at[last] = at
        self.frontier_at[row] = NO_ROW

    def _grow(self) -> None:
        old = len(self.parent)
        for name, (dtype, shape) in _COLUMNS.items():
            grown = np.zeros((2 * old, *shape), dtype)
            grown[:old] = getattr(self, name)
            setattr(self, name, grown)
        self.frontier_at[old:] = NO_ROW
        self.chain += [None] * old
        self.free_rows += range(2 * old - 1, old - 1, -1)


def _digest_starts(count: int) -> range:
    return range(0, count * DIGEST_BYTES, DIGEST_BYTES)

"""Which chunk of which lane lies where: rows in columns, one tree of prefixes per lane.

A strip, numbered 3 x row + class, is present while it is in dram or on disk. Presence is monotone:
a row has a class only if it has the classes before it, and its parent has that class (I6). So the
longest prefix is found by bisection, and whoever holds one row holds its ancestors."""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from kvd.core.bag import Bag
from kvd.identity import Keyspace
from kvd.limits import DIGEST_BYTES
from kvd.shape import CellGrid
from kvd.types import CLASS_COUNT, Lane

NO_ROW = -1
ROWS_AT_START = 64


@dataclass(slots=True)
class Tree:
    """All chunks of one lane of one keyspace, by chain digest. The digest covers the tenant."""

    id: int
    digest: bytes
    tenant: str
    lane: Lane
    grid: CellGrid
    rows: dict[bytes, int] = field(default_factory=dict)
    keyspace: Keyspace | None = None  # None only where nothing is ever saved.
    # Largest strip seen per class: bounds what a lease of n chunks can hold, without a walk.
    strip_bytes_max: list[int] = field(default_factory=lambda: [0] * CLASS_COUNT)


COLUMNS = {
    "tree_id": (np.int32, ()),
    "parent": (np.int64, ()),
    "first_child": (np.int64, ()),  # Children of a row are linked both ways, in no order.
    "next_sibling": (np.int64, ()),
    "prev_sibling": (np.int64, ()),
    "depth": (np.int32, ()),  # How many chunks come before.
    "generation": (np.uint64, ()),
    "sealed_at": (np.uint64, ()),  # Which seal of this life; 0: found at the start.
    "profile": (np.uint64, ()),
    "condemned": (np.bool_, ()),  # A reader found wrong bytes: not offered, replaced by a put.
    "heat": (np.float64, ()),
    "saving": (np.uint8, ()),
    "cataloged": (np.bool_, ()),  # The catalog may know the row: it has to be told of its end.
    "present": (np.bool_, (CLASS_COUNT,)),  # In dram or on disk.
    "slab": (np.uint32, (CLASS_COUNT,)),  # 0: not in dram.
    "offset": (np.uint64, (CLASS_COUNT,)),
    "size": (np.uint32, (CLASS_COUNT,)),
    "root": (np.uint64, (CLASS_COUNT,)),
    "segment": (np.uint32, (CLASS_COUNT,)),  # 0: not durable. Number of the core, not of the file.
    "page": (np.uint32, (CLASS_COUNT,)),
    "new_segment": (np.uint32, (CLASS_COUNT,)),  # Where it is being written to; durable later.
    "new_page": (np.uint32, (CLASS_COUNT,)),
    "missing": (np.uint64, (CLASS_COUNT,)),  # Pieces not read yet, a bit each; in dram when 0.
    "in_flight": (np.int16, (CLASS_COUNT,)),  # Pieces that the disk may still write into dram.
    "failed": (np.bool_, (CLASS_COUNT,)),  # A piece could not be read.
    "hung": (np.bool_, (CLASS_COUNT,)),  # Given up, while a read may still write into it.
    "children": (np.int32, (CLASS_COUNT,)),  # How many children have the class.
    "pins": (np.int32, (CLASS_COUNT,)),  # Leases and reservations that name the row.
    "reads": (np.int32, (CLASS_COUNT,)),  # Leases whose promise names the strip's place in dram.
}
# What is nothing of a row that is gone.
OF_LIVE_ROWS = (
    "present", "slab", "segment", "new_segment", "missing", "in_flight", "failed", "hung", "saving",
    "cataloged", "condemned",
)  # fmt: skip
_LINKS = ("first_child", "next_sibling", "prev_sibling")


class Saving(IntEnum):
    """What is under way for a row between dram and disk."""

    NONE = 0
    QUEUED = 1
    WRITING = 2  # Its dram must stay as it is until the commit.


class Index:
    """Columns by row number.

    `frontier`: rows whose top class is in dram only, and nobody builds on. `copies`: strips in
    dram that are on disk too.
    """

    __slots__ = (
        *COLUMNS, "trees", "trees_by_key", "chain", "free_rows", "frontier", "copies", "row_count",
    )  # fmt: skip

    def __init__(self) -> None:
        for name, (dtype, shape) in COLUMNS.items():
            setattr(self, name, np.zeros((ROWS_AT_START, *shape), dtype))
        for name in _LINKS:
            getattr(self, name)[:] = NO_ROW
        self.frontier = Bag(ROWS_AT_START)
        self.copies = Bag(ROWS_AT_START * CLASS_COUNT)
        self.chain: list[bytes | None] = [None] * ROWS_AT_START
        self.free_rows = list(range(ROWS_AT_START - 1, -1, -1))
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
        assert not self.present[columns].any() and not self.children[columns].any()
        assert not self.pins[columns].any() and not self.reads[columns].any()
        assert not self.condemned[columns].any() and not self.cataloged[columns].any()
        self.tree_id[columns] = tree.id
        self.parent[columns] = [parent, *rows[:-1]]
        self.heat[columns] = -np.inf
        first_depth = 0 if parent == NO_ROW else int(self.depth[parent]) + 1
        self.depth[columns] = np.arange(first_depth, first_depth + len(rows))
        self.first_child[columns[:-1]] = columns[1:]
        self.first_child[columns[-1]] = NO_ROW
        self.next_sibling[columns] = self.prev_sibling[columns] = NO_ROW
        self.link(rows[0], parent)
        return columns

    def link(self, row: int, parent: int) -> None:
        """Put a row that has no siblings yet among the children of its parent."""
        if parent == NO_ROW:
            return
        second = int(self.first_child[parent])
        self.next_sibling[row] = second
        if second != NO_ROW:
            self.prev_sibling[second] = row
        self.first_child[parent] = row

    def _unlink(self, row: int) -> None:
        before, behind = int(self.prev_sibling[row]), int(self.next_sibling[row])
        if before != NO_ROW:
            self.next_sibling[before] = behind
        elif self.parent[row] != NO_ROW:
            self.first_child[self.parent[row]] = behind
        if behind != NO_ROW:
            self.prev_sibling[behind] = before

    def children_of(self, row: int, most: int = 1 << 62) -> list[int]:
        found, child = [], int(self.first_child[row])
        while child != NO_ROW and len(found) < most:
            found.append(child)
            child = int(self.next_sibling[child])
        return found

    def claim_rows(self, count: int) -> np.ndarray:
        """Return i64: numbers of `count` empty rows, for the caller to fill as a whole."""
        while len(self.free_rows) < count:
            self._grow()
        numbers = np.array(self.free_rows[len(self.free_rows) - count :][::-1], np.int64)
        del self.free_rows[len(self.free_rows) - count :]
        self.row_count += count
        return numbers

    def forget_row(self, row: int) -> None:
        """Take an empty row out of its tree."""
        assert not self.present[row].any() and not self.pins[row].any()
        assert not self.slab[row].any() and not self.segment[row].any()
        assert not self.children[row].any() and not self.reads[row].any()
        assert self.first_child[row] == NO_ROW and self.saving[row] != Saving.WRITING
        self.frontier.discard(row)
        self._unlink(row)
        self.saving[row] = Saving.NONE
        self.cataloged[row] = False
        del self.trees[self.tree_id[row]].rows[self.chain[row]]
        self.chain[row] = None
        self.condemned[row] = False
        self.free_rows.append(row)
        self.row_count -= 1

    def count(self, tree: Tree, chain: bytes, plane_class: int) -> int:
        """Return how many leading chunks of `chain` have the class, by bisection."""
        rows, present = tree.rows, self.present
        low, high = 0, len(chain) // DIGEST_BYTES
        while low < high:
            middle = (low + high + 1) // 2
            row = rows.get(chain[(middle - 1) * DIGEST_BYTES : middle * DIGEST_BYTES])
            if row is not None and present[row, plane_class]:
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
        present = self.present[row]
        for plane_class in range(CLASS_COUNT - 1, -1, -1):
            if present[plane_class]:
                return plane_class
        return NO_ROW

    def complete(self, row: int) -> bool:
        return bool(self.present[row, CLASS_COUNT - 1]) and not self.condemned[row]

    def busy(self, row: int) -> bool:
        """Return whether a hand may write into its dram, or reads it: it cannot be replaced now."""
        return self.saving[row] == Saving.WRITING or bool(self.missing[row].any())

    def place_frontier(self, row: int) -> None:
        """Put the row on the frontier, or off it, as its classes and children say now."""
        top = self.top_class(row)
        if top != NO_ROW and not self.children[row, top] and not self.segment[row, top]:
            self.frontier.add(row)
        else:
            self.frontier.discard(row)

    def _grow(self) -> None:
        old = len(self.parent)
        for name, (dtype, shape) in COLUMNS.items():
            grown = np.zeros((2 * old, *shape), dtype)
            grown[:old] = getattr(self, name)
            setattr(self, name, grown)
        for name in _LINKS:
            getattr(self, name)[old:] = NO_ROW
        self.frontier.widen(2 * old)
        self.copies.widen(2 * old * CLASS_COUNT)
        self.chain += [None] * old
        self.free_rows += range(2 * old - 1, old - 1, -1)


def tenant_of(index: Index, row: int) -> str:
    return index.trees[index.tree_id[row]].tenant


def _digest_starts(count: int) -> range:
    return range(0, count * DIGEST_BYTES, DIGEST_BYTES)

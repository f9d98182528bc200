"""Whether what the rows of a catalog say can be: of chunks, of places, of chains."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvd.catalog.contract import Contents
from kvd.checking.chains import parents_of, settled
from kvd.checking.findings import Finding, Findings, Kind, Level
from kvd.checking.holdings import NO_CELLS, Holdings, overlapping, unknown_profiles
from kvd.limits import PAGE_BYTES, STRIP_BYTES_MAX
from kvd.types import CLASS_COUNT, PlaneClass, SegmentState

_DROPS = "drops it, and what stands on it"


@dataclass(frozen=True, slots=True)
class Words:
    """Puts what is wrong with rows and strips into words; `path_of` a strip is its file's."""

    holdings: Holdings
    catalog: Path
    path_of: Callable[[int], str]
    findings: Findings

    def rows(
        self,
        kind: Kind,
        wrong: np.ndarray,
        problem: str,
        repair: str,
        level: Level = Level.WRONG,
    ) -> None:
        """Say the same of rows, by number."""
        where, name = str(self.catalog), self.holdings.name
        words = (
            Finding(kind, level, where, f"{name(row)}: {problem}", repair) for row in wrong.tolist()
        )
        self.findings.add_all(kind, level, len(wrong), words)

    def strips(
        self, kind: Kind, wrong: np.ndarray, problem: Callable[[int], str], repair: str = ""
    ) -> None:
        """Say of strips, by number, what their problem is; `repair`, when it does not drop them."""
        words = (self._of_strip(kind, strip, problem(strip), repair) for strip in wrong.tolist())
        self.findings.add_all(kind, Level.WRONG, len(wrong), words)

    def _of_strip(self, kind: Kind, strip: int, problem: str, repair: str) -> Finding:
        strips = self.holdings.strips
        first, count = int(strips.pages[strip]), int(strips.counts[strip])
        pages = f"page {first}" if count == 1 else f"pages {first} to {first + count - 1}"
        lost = ", ".join(c.name.lower() for c in PlaneClass if c >= strips.classes[strip])
        return Finding(
            kind, Level.WRONG, f"{self.path_of(strip)} {pages}",
            f"{self.holdings.name_strip(strip)} {problem}",
            repair or f"drops {lost} of the chunk, and what stands on it",
        )  # fmt: skip


def check_rows(contents: Contents, pages: np.ndarray, words: Words) -> tuple[np.ndarray, int]:
    """Check all that rows say, but for the bytes of strips; have what is wrong taken for lost.

    `pages` i64 by segment record: how many its file has, 0 where nothing of it counts. Return
    i64: each row's parent, as `parents_of`, and the mark that generations need, or 0.
    """
    mark = _check_chunks(contents, words)
    _check_places(contents.segments, pages, words)
    parents = parents_of(contents.rows)
    _check_chains(parents, words)
    return parents, mark


def _check_chunks(contents: Contents, words: Words) -> int:
    rows, holdings = contents.rows, words.holdings
    unknown = unknown_profiles(rows)
    for profile in np.unique(rows["profile"][unknown]).tolist():
        some = unknown[rows["profile"][unknown] == profile]
        words.rows(Kind.ROW, some, f"its codec profile {profile} is not known", _DROPS)
    without = np.flatnonzero(holdings.cells() == NO_CELLS)
    words.rows(Kind.ROW, without, "its keyspace's block shape has no such lane", _DROPS)
    holdings.kept[unknown] = holdings.kept[without] = 0
    mark = contents.meta.generation
    above = np.flatnonzero(rows["generation"] >= np.uint64(mark))
    problem = f"its generation may be given out again, as all from {mark} on"
    words.rows(Kind.ROW, above, problem, "raises the mark above it")
    return int(rows["generation"][above].max()) + 1 if len(above) else 0


def _check_places(records: np.ndarray, pages: np.ndarray, words: Words) -> None:
    holdings, strips = words.holdings, words.holdings.strips
    numbers = record_of(strips.files, records)
    room = pages[numbers]
    free = records["state"][numbers] == SegmentState.FREE
    ends = strips.pages + strips.counts
    # Where there is no room at all, the file was found wrong and said to be.
    outside = (room > 0) & ((ends > room) | (strips.counts > STRIP_BYTES_MAX // PAGE_BYTES))
    shared = np.zeros(len(strips), bool)
    shared[overlapping(strips)] = True
    for wrong, problem in (
        (free, "lies in a segment that is free"),
        (outside, "is not all inside of its file"),
        (shared, "shares pages with another one"),
    ):
        words.strips(Kind.STRIP, np.flatnonzero(wrong), lambda _, problem=problem: problem)
    holdings.lose(np.flatnonzero(free | outside | shared | (room == 0)))
    holdings.readable &= (room > 0) & ~outside


def record_of(files: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Return i64 by strip of file i64 (`Strips.files`): the record of its segment.

    There is one for each: the loader believes no other rows.
    """
    known = (records["directory"].astype(np.int64) << 32) | records["segment"]
    order = np.argsort(known)
    at = np.searchsorted(known[order], files)
    assert not len(files) or (at.max() < len(known) and (known[order[at]] == files).all())
    return order[at] if len(files) else np.empty(0, np.int64)


def _check_chains(parents: np.ndarray, words: Words) -> None:
    """Find chunks that cannot be reached, or have more classes than the one before (I6)."""
    present, count = words.holdings.present, len(parents)
    above = np.append(present, [CLASS_COUNT, 0])[parents]
    alone = parents == count + 1
    more = ~alone & (above < present)
    endless = settled(present, np.where(alone, count, parents)) == 0
    for wrong, problem, level in (
        # A chunk that a reader found corrupt is dropped at once, what is behind it when it can be.
        (alone, "the chunk before it is not there", Level.LEFT),
        (more, "the chunk before it has fewer classes", Level.WRONG),
        (endless, "its chain has no beginning", Level.WRONG),
    ):
        repair = "drops what cannot be reached"
        words.rows(Kind.CHAIN, np.flatnonzero(wrong), problem, repair, level)

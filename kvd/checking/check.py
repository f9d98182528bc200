"""A check of data directories that no daemon uses: all that is on disk, and what repair would do.

Reads only, but for lock files; `repair` carries out the plan that comes of it.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvd.catalog.contract import Contents
from kvd.checking.accounts import DirectoryAccount, SegmentAccounts, account, account_segments
from kvd.checking.believing import load
from kvd.checking.chains import settled
from kvd.checking.files import (
    UNREAD_REMEDY,
    answers,
    look_at_canary,
    look_at_remains,
    look_at_segments,
)
from kvd.checking.findings import Findings, Kind
from kvd.checking.holdings import holdings_of
from kvd.checking.opening import open_set
from kvd.checking.plan import Plan
from kvd.checking.reading import Places, read_strips
from kvd.checking.repair import repair
from kvd.checking.rows import Words, check_rows, record_of
from kvd.checking.verifying import Verdict, Verdicts
from kvd.disk.directories import DataDirectory, arrange, home_of
from kvd.disk.heads import segment_path
from kvd.errors import ErrorKind, KvdError
from kvd.limits import PAGE_BYTES

# What is being done, how much of it is done, and of how much; 0 of 0 where that is not known.
Told = Callable[[str, int, int], None]


@dataclass(slots=True)
class Report:
    """What was found, as it was before any repair. Without `contents` there was no catalog to use.

    `accounts` of segments are in the order of `contents.segments`; `verdicts` is None when no
    strips were read. `kept` u8 by row of `contents`: how many classes repair leaves, or left.
    """

    directories: list[DataDirectory]
    home: Path
    findings: Findings
    contents: Contents | None = None
    spaces: list[DirectoryAccount] = field(default_factory=list)
    accounts: SegmentAccounts | None = None
    verdicts: Verdicts | None = None
    kept: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    repaired: bool = False

    @property
    def unread(self) -> int:
        """Return how many strips could not be read, of which nothing is known."""
        return int((self.verdicts.kinds == Verdict.UNREAD).sum()) if self.verdicts else 0

    @property
    def dropped(self) -> int:
        """Return how many chunks keep nothing."""
        return int((self.kept == 0).sum())

    @property
    def shortened(self) -> int:
        """Return how many chunks keep only some of their classes."""
        if self.contents is None:
            return 0
        present = (self.contents.rows["pages"] != 0).sum(axis=1)
        return int(((self.kept > 0) & (self.kept < present)).sum())


@dataclass(frozen=True, slots=True)
class Wish:
    """`quick`: strips are not read. `repair`: what is wrong is dropped."""

    quick: bool = False
    repair: bool = False


def check(paths: Sequence[Path], wish: Wish, told: Told) -> Report:
    """Check one whole set of directories; raise KvdError when that cannot be done, and OSError."""
    findings, plan = Findings(), Plan()
    with ExitStack() as undo:
        opened, plan.superblocks = open_set(paths, findings, undo)
        home = home_of(opened)
        told("catalog", 0, 0)
        count = sum(_segment_count(directory) for directory in opened)
        contents = load(home, count, findings, plan)
        known = () if contents is None else contents.meta.directories
        directories = arrange(opened, known)
        report = Report(directories, home, findings, contents)
        for directory in directories:
            look_at_canary(directory, findings, plan)
        if contents is not None:
            _check_contents(report, contents, wish, told, plan)
        _look_at_remains(report, plan)
        report.spaces = [account(directory, findings) for directory in directories]
        if wish.repair:
            told("repair", 0, 0)
            report.kept = repair(directories, home, contents, report.kept, plan)
            report.repaired = True
    return report


def _segment_count(directory: DataDirectory) -> int:
    try:
        return len(directory.found_segments())
    except FileNotFoundError:
        return 0


def _check_contents(report: Report, contents: Contents, wish: Wish, told: Told, plan: Plan) -> None:
    """Check what the catalog names."""
    holdings, records = holdings_of(contents), contents.segments
    numbers = record_of(holdings.strips.files, records)
    used = np.bincount(numbers, minlength=len(records)) > 0
    told("segments", 0, 0)
    seen = look_at_segments(report.directories, records, used, report.findings, plan)

    def path_of(strip: int) -> str:
        directory = report.directories[holdings.strips.directories[strip]]
        return segment_path(directory, int(holdings.strips.segments[strip]))

    words = Words(holdings, report.home, path_of, report.findings)
    pages = np.where(seen.sound, seen.pages, 0)
    parents, plan.generation = check_rows(contents, pages, words)
    if not wish.quick:
        report.verdicts = _read(report, words, wish, told)
    report.kept = settled(holdings.kept, parents)
    good = holdings.strips.classes < report.kept[holdings.strips.rows]
    size = report.directories[0].superblock.segment_bytes
    sizes = np.where(seen.sound, size, PAGE_BYTES)  # Of what is not there, nothing but a head.
    report.accounts = account_segments(records, sizes, holdings.strips, good)


def _read(report: Report, words: Words, wish: Wish, told: Told) -> Verdicts:
    """Read all strips; raise UNAVAILABLE before a repair for one that cannot be read.

    It is dropped only when its medium has lost it: all else says nothing of what is in it.
    """
    holdings, directories = words.holdings, words.holdings.strips.directories
    places = Places(
        words.path_of, lambda s: answers(report.directories[directories[s]]), wish.repair
    )
    verdicts = read_strips(holdings, places, lambda done, of: told("strips", done, of))
    details, cells = verdicts.details, holdings.cells()[holdings.strips.rows]

    def unread(strip: int) -> str:
        return f"cannot be read: {os.strerror(details[strip])}"

    away = np.flatnonzero(verdicts.kinds == Verdict.UNREAD)
    if wish.repair and len(away):
        what = f"{words.path_of(away[0])} {unread(away[0])}; nothing was changed"
        raise KvdError(ErrorKind.UNAVAILABLE, f"{what}; {UNREAD_REMEDY}")
    words.strips(Kind.STRIP, away, unread, "changes nothing before it can be read")
    for verdict, kind, problem in (
        (Verdict.LOST, Kind.STRIP, unread),
        (Verdict.SHORT, Kind.STRIP, lambda s: f"is shorter than the table of its {cells[s]} cells"),
        (Verdict.ROOT, Kind.STRIP, lambda _: "has a table that does not fit its root"),
        (Verdict.TABLE, Kind.STRIP, lambda _: "has a table that cannot be"),
        (
            Verdict.CELL, Kind.CELL,
            lambda s: f"has {verdicts.wrong_cells[s]} of {cells[s]} cells of another checksum, "
            f"the first is cell {details[s]}",
        ),
    ):  # fmt: skip
        wrong = np.flatnonzero(verdicts.kinds == verdict)
        words.strips(kind, wrong, problem)
        holdings.lose(wrong)
    return verdicts


def _look_at_remains(report: Report, plan: Plan) -> None:
    known = set()
    if report.contents is not None:
        records = report.contents.segments
        known = set(zip(records["directory"].tolist(), records["segment"].tolist(), strict=True))
    look_at_remains(report.directories, report.home, known, report.findings, plan)

"""Segment files against the catalog's records of them, and everything else that lies about."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvd.checking.findings import Finding, Findings, Kind, Level
from kvd.checking.plan import Plan
from kvd.disk.canary import CANARY_NAME, MAGIC
from kvd.disk.directories import CATALOG_NAME, DataDirectory
from kvd.disk.files import OsFiles, fault_of, read_page
from kvd.disk.heads import read_head, segment_path
from kvd.disk.recognising import FRESH_NAME, LOCK_NAME, SEGMENTS_NAME, SUPERBLOCK_NAME
from kvd.errors import ErrorKind, Fault, KvdError
from kvd.format.page import Refused, unseal_page
from kvd.format.records import SEGMENT_KEY_BYTES
from kvd.format.segment import parse_segment_name
from kvd.limits import PAGE_BYTES
from kvd.types import PlaneClass

_KNOWN_NAMES = {LOCK_NAME, SUPERBLOCK_NAME, CANARY_NAME, SEGMENTS_NAME, "lost+found"}
_CANARY_FIELDS_BYTES = 16
_REMOVED = "removes it"
UNREAD_REMEDY = "mend that and check again, or remove the file to give up what is in it"


@dataclass(slots=True)
class Seen:
    """By record of the catalog: `sound` bool, whether strips of the file can be believed;

    `pages` i64, how many whole pages it has.
    """

    sound: np.ndarray
    pages: np.ndarray


def look_at_segments(
    directories: Sequence[DataDirectory],
    records: np.ndarray,
    used: np.ndarray,
    findings: Findings,
    plan: Plan,
) -> Seen:
    """Compare files with `records`; `used` bool[n]: a row names a strip of the segment.

    Of a segment without strips nothing can be lost: whatever its file is, a crash leaves it so.
    Raise KvdError when one cannot be read.
    """
    seen = Seen(np.zeros(len(records), bool), np.zeros(len(records), np.int64))
    for at, record in enumerate(records):
        directory, number = directories[record["directory"]], int(record["segment"])
        level = Level.WRONG if used[at] else Level.LEFT
        path = segment_path(directory, number)
        stat_of = _regular(path)
        problem = _problem(directory, record) if stat_of is not None else "is not there"
        if problem:
            cost = "drops it, and the strips in it" if used[at] else "forgets it"
            findings.add(Finding(Kind.SEGMENT, level, path, problem, cost))
            plan.records.append(record.tobytes()[:SEGMENT_KEY_BYTES])
            plan.remains.append(Path(path))
            continue
        assert stat_of is not None
        size, whole = stat_of.st_size, directory.superblock.segment_bytes
        seen.sound[at], seen.pages[at] = True, min(size, whole) // PAGE_BYTES
        if size != whole:
            what = f"has {size} bytes and should have {whole}"
            fix = "gives it its size, and drops the strips that are not all there"
            findings.add(Finding(Kind.SEGMENT, level, path, what, fix))
            plan.resized.append((directory, number))
    return seen


def _regular(path: str) -> os.stat_result | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _problem(directory: DataDirectory, record: np.void) -> str:
    """Return why a segment's file is not what its record says, or nothing.

    Raise KvdError when it cannot be read: that says nothing of what is in it.
    """
    path = segment_path(directory, int(record["segment"]))
    files = OsFiles()
    try:
        descriptor = files.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb"):
            head = read_head(files, descriptor, directory, int(record["segment"]))
    except OSError as error:
        raise KvdError(
            ErrorKind.UNAVAILABLE,
            f"{path} cannot be read: {error.strerror}; nothing was changed; {UNREAD_REMEDY}",
        ) from None
    if isinstance(head, Fault):
        return head.message.removeprefix(path).lstrip(": ")
    if head.epoch != record["epoch"]:
        return f"is of epoch {head.epoch}, and the catalog says {record['epoch']}"
    if head.plane_class != record["plane_class"]:
        other = PlaneClass(int(record["plane_class"])).name.lower()
        return f"is of class {head.plane_class.name.lower()}, and the catalog says {other}"
    return ""


def look_at_remains(
    directories: Sequence[DataDirectory],
    home: Path,
    known: set[tuple[int, int]],
    findings: Findings,
    plan: Plan,
) -> None:
    """Find what no record names; `known` are (directory, number) of segments."""
    for number, directory in enumerate(directories):
        for name in _names(directory.segments):
            path, segment = directory.segments / name, parse_segment_name(name)
            if segment is None or (number, segment) not in known:
                what = "is not in the catalog"
                findings.add(Finding(Kind.FILE, Level.LEFT, str(path), what, _REMOVED))
                plan.remains.append(path)
        for name in _names(directory.path):
            _look_at_name(directory.path / name, home, findings, plan)


def _names(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _look_at_name(path: Path, home: Path, findings: Findings, plan: Plan) -> None:
    if path.name in _KNOWN_NAMES or path == home:
        return
    if path.name == FRESH_NAME or path == home.with_name(CATALOG_NAME + ".new"):
        what = "was begun and not finished"
        findings.add(Finding(Kind.FILE, Level.LEFT, str(path), what, _REMOVED))
        plan.remains.append(path)
        return
    what, fix = "was not made by kvd", "leaves it: move it away, it takes of the budget"
    findings.add(Finding(Kind.FILE, Level.LEFT, str(path), what, fix))


def answers(directory: DataDirectory) -> bool:
    """Return whether the medium of a directory gives anything now: a page that each one has."""
    names = (SUPERBLOCK_NAME, CANARY_NAME)
    return any(_is_read(str(directory.path / name)) for name in names)


def _is_read(path: str) -> bool:
    files = OsFiles()
    try:
        descriptor = files.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb"):
            # Memory may still have the page of a drive that is gone.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            return bool(read_page(files, descriptor))
    except OSError:
        return False


def look_at_canary(directory: DataDirectory, findings: Findings, plan: Plan) -> None:
    """The canary is written over at every start: a damaged one costs nothing."""
    path = str(directory.path / CANARY_NAME)
    files = OsFiles()
    try:
        descriptor = files.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            page, size = read_page(files, descriptor), os.fstat(file.fileno()).st_size
    except OSError as error:
        problem = fault_of(error, "cannot be read").message
    else:
        answer = unseal_page(page, MAGIC, _CANARY_FIELDS_BYTES)
        problem = answer.message if isinstance(answer, Refused) else ""
        if size != PAGE_BYTES:
            problem = f"has {size} bytes and should have {PAGE_BYTES}"
    if problem:
        findings.add(Finding(Kind.CANARY, Level.LEFT, path, problem, "writes it anew"))
        plan.canaries.append(directory)

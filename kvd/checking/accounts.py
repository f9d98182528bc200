"""What everything under the directories takes, and what of the segments is live, dead and free."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvd.checking.findings import Finding, Findings, Kind, Level
from kvd.checking.holdings import Strips
from kvd.checking.rows import record_of
from kvd.disk.directories import CATALOG_NAME, DataDirectory
from kvd.disk.posix import BLOCK_BYTES, allocated_bytes
from kvd.disk.recognising import SEGMENTS_NAME
from kvd.limits import PAGE_BYTES
from kvd.types import SegmentState


@dataclass(frozen=True, slots=True)
class DirectoryAccount:
    """Bytes that are allocated; the parts are all of it."""

    path: Path
    uuid: str
    allocated_bytes: int
    segments_bytes: int
    catalog_bytes: int
    other_bytes: int


def account(directory: DataDirectory, findings: Findings) -> DirectoryAccount:
    """Add up one directory by parts, and compare with what the budget counts; raise OSError."""
    parts = {}
    for part in (directory.segments, directory.path / CATALOG_NAME):
        if part.is_dir() and not part.is_symlink():
            parts[part.name] = sum(_sizes(part))
    other = sum(_sizes(directory.path, tuple(parts)))
    whole, found = allocated_bytes(directory.path), sum(parts.values()) + other
    if found != whole:
        what = f"takes {whole} bytes, and its parts take {found}: somebody is changing it"
        path = str(directory.path)
        findings.add(Finding(Kind.SPACE, Level.WRONG, path, what, "leaves it"))
    uuid = directory.superblock.directory.hex()
    segments, catalog = parts.get(SEGMENTS_NAME, 0), parts.get(CATALOG_NAME, 0)
    return DirectoryAccount(directory.path, uuid, whole, segments, catalog, other)


def _sizes(path: Path, left_out: Sequence[str] = ()) -> Iterator[int]:
    """Yield what a directory and each thing under it take; a file with holes counts as whole."""
    yield path.stat().st_blocks * BLOCK_BYTES
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name in left_out:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _sizes(Path(entry.path))
                continue
            with suppress(FileNotFoundError):
                stat = entry.stat(follow_symlinks=False)
                yield max(stat.st_blocks * BLOCK_BYTES, stat.st_size)


@dataclass(frozen=True, slots=True)
class SegmentAccounts:
    """By segment record, i64: `strips`, and bytes that are `live`, `dead` and `free`.

    The three are all pages behind the head: under a strip that is named; never to be read again;
    yet to be written.
    """

    strips: np.ndarray
    live: np.ndarray
    dead: np.ndarray
    free: np.ndarray


def account_segments(
    records: np.ndarray, sizes: np.ndarray, strips: Strips, good: np.ndarray
) -> SegmentAccounts:
    """Count the strips that are `good` (bool); `sizes` i64 of the segment files by record."""
    numbers, count = record_of(strips.files, records)[good], len(records)
    live = np.bincount(numbers, strips.counts[good], count).astype(np.int64) * PAGE_BYTES
    ends = np.full(count, 1, np.int64)  # Behind the last strip.
    np.maximum.at(ends, numbers, (strips.pages + strips.counts)[good])
    room = sizes - PAGE_BYTES
    state = records["state"]
    free = np.where(state == SegmentState.OPEN, sizes - ends * PAGE_BYTES, 0)
    free = np.where(state == SegmentState.FREE, room, free)
    return SegmentAccounts(np.bincount(numbers, minlength=count), live, room - live - free, free)

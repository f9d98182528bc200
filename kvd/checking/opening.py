"""Data directories for a check: looked at before they are touched, locked, of one set.

Nothing is made. A superblock that is damaged or gone is one that the rest of the set still tells.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kvd.checking.findings import Finding, Findings, Kind, Level
from kvd.disk.directories import CATALOG_NAME, DataDirectory
from kvd.disk.files import OsFiles, read_page
from kvd.disk.recognising import (
    SEGMENTS_NAME,
    SUPERBLOCK_NAME,
    check_apart,
    lock_directory,
    read_superblock,
    set_of,
)
from kvd.errors import ErrorKind, KvdError
from kvd.format.segment import SegmentHead, parse_segment_head, parse_segment_name
from kvd.format.superblock import Superblock

PUT_BACK = "writes it again, as the rest of the set has it"


def open_set(
    paths: Sequence[Path], findings: Findings, undo: ExitStack
) -> tuple[list[DataDirectory], list[DataDirectory]]:
    """Return all directories in the order given, and those whose superblock is to be put back.

    Their locks are let go with `undo`. Raise KvdError for what is not ours, in use, of another
    version, or not one whole set.
    """
    check_apart(paths)
    for path in paths:
        _check_ours(path)
    locks, found = [], []
    for path in paths:
        locks.append(lock_directory(path))
        undo.callback(os.close, locks[-1])
        found.append(_superblock(path))
    blocks = [block for block, _ in found]
    known = [block for block in blocks if block is not None]
    for at, (block, problem) in enumerate(found):
        if block is None:
            blocks[at] = _told(paths[at], problem, known)
            where = str(paths[at] / SUPERBLOCK_NAME)
            findings.add(Finding(Kind.SUPERBLOCK, Level.WRONG, where, problem, PUT_BACK))
    set_of(paths, blocks, 0)
    opened = [
        DataDirectory(path, block, lock, direct=False, preallocates=True, notes=())
        for path, block, lock in zip(paths, blocks, locks, strict=True)
        if block is not None
    ]
    assert len(opened) == len(paths)
    return opened, [each for each, (block, _) in zip(opened, found, strict=True) if block is None]


def _check_ours(path: Path) -> None:
    """Refuse what kvd did not make, before a lock file is put into it."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        raise KvdError(
            ErrorKind.INVALID, f"data directory {path} is not there; give one that kvd has made"
        ) from None
    except NotADirectoryError:
        raise KvdError(
            ErrorKind.INVALID, f"data directory {path} is a file; give a directory"
        ) from None
    if SUPERBLOCK_NAME in names:
        _superblock(path)
    elif not _heads(path):
        what = "holds no superblock of kvd" if names else "is empty"
        message = f"data directory {path} {what}: there is nothing to check; leave it out"
        raise KvdError(ErrorKind.INCOMPATIBLE, message)


def _superblock(path: Path) -> tuple[Superblock | None, str]:
    """Return a superblock, or why it has none that can be read; raise for one that is not ours."""
    try:
        return read_superblock(path), "is not there"
    except KvdError as error:
        if error.kind != ErrorKind.CORRUPT:
            raise
        said = error.message.removeprefix(f"{path / SUPERBLOCK_NAME} ")
        return None, said.split(";")[0]


def _told(path: Path, problem: str, known: list[Superblock]) -> Superblock:
    """Return the superblock that was there, by what is said of it elsewhere under a checksum."""
    heads, holds_catalog = _heads(path), (path / CATALOG_NAME).is_dir()
    directories = {head.directory for head in heads}
    if holds_catalog:
        directories |= {block.home for block in known}
    homes = {block.home for block in known} or (set(directories) if holds_catalog else set())
    sizes = {head.segment_bytes for head in heads} | {block.segment_bytes for block in known}
    if len(directories) == len(homes) == len(sizes) == 1:
        return Superblock(directories.pop(), homes.pop(), sizes.pop())
    raise KvdError(
        ErrorKind.CORRUPT,
        f"{path / SUPERBLOCK_NAME} {problem}, and nothing else says for certain what it was; "
        "give all directories of its set, or empty all of them to begin anew",
    )


def _heads(path: Path) -> list[SegmentHead]:
    """Return the sound heads of all segments of a directory."""
    try:
        names = os.listdir(path / SEGMENTS_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return []
    files, heads = OsFiles(), []
    for name in names:
        if parse_segment_name(name) is None:
            continue
        try:
            descriptor = files.open(str(path / SEGMENTS_NAME / name), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # What cannot be read says nothing.
        with os.fdopen(descriptor, "rb"):
            try:
                head = parse_segment_head(read_page(files, descriptor))
            except OSError:
                continue
        if isinstance(head, SegmentHead):
            heads.append(head)
    return heads

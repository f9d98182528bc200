"""Data directories: made, locked, tried out, and put in the order of their catalog."""

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvd.disk.canary import CANARY_NAME, make_canary, try_canary
from kvd.disk.files import Files, sync_directory, write_page
from kvd.disk.recognising import (
    FRESH_NAME,
    SEGMENTS_NAME,
    SUPERBLOCK_NAME,
    check_apart,
    check_usable,
    lock_directory,
    read_superblock,
    set_of,
    unusable,
)
from kvd.errors import ErrorKind, FaultKind, KvdError
from kvd.format.segment import parse_segment_name
from kvd.format.superblock import UUID_BYTES, Superblock, pack_superblock
from kvd.limits import PAGE_BYTES

CATALOG_NAME = "catalog"


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """One that is ours and locked. `direct`: O_DIRECT works; `preallocates`: fallocate does.

    `notes` say what does not work and what that costs.
    """

    path: Path
    superblock: Superblock
    lock: int
    direct: bool
    preallocates: bool
    notes: tuple[str, ...]

    @property
    def segments(self) -> Path:
        return self.path / SEGMENTS_NAME

    def found_segments(self) -> np.ndarray:
        """Return u32: the numbers of all segment files, ascending; raise OSError."""
        numbers = (parse_segment_name(name) for name in os.listdir(self.segments))
        return np.array(sorted(n for n in numbers if n is not None), np.uint32)

    def keep(self) -> None:
        """Have no other process get it before this one ends, even when it is released."""
        os.dup(self.lock)  # A lock of flock lives as long as any descriptor of its open file.

    def release(self) -> None:
        """Let another process have it."""
        os.close(self.lock)


def open_directories(
    paths: Sequence[Path], segment_bytes: int, files: Files
) -> list[DataDirectory]:
    """Return all directories in the order given, made where they are not there; or raise KvdError.

    `segment_bytes` holds for a new set of directories; an old one keeps its own.
    """
    check_apart(paths)
    with ExitStack() as undo:
        locks, blocks = [], []
        for path in paths:
            check_usable(files, path)
            locks.append(lock_directory(path))
            undo.callback(os.close, locks[-1])
            blocks.append(read_superblock(path))
        whole = _completed(files, paths, blocks, segment_bytes)
        found = [_tried(files, *each) for each in zip(paths, whole, locks, strict=True)]
        undo.pop_all()
    return found


def home_of(directories: Sequence[DataDirectory]) -> Path:
    """Return where the catalog of these directories lies."""
    [home] = [d.path for d in directories if d.superblock.directory == d.superblock.home]
    return home / CATALOG_NAME


def arrange(directories: Sequence[DataDirectory], known: Sequence[bytes]) -> list[DataDirectory]:
    """Return the directories in the order of `known` (a catalog's uuids), new ones behind.

    Raise INCOMPATIBLE when the catalog knows one that is not here.
    """
    by_uuid = {directory.superblock.directory: directory for directory in directories}
    missing = [uuid for uuid in known if uuid not in by_uuid]
    if missing:
        raise KvdError(
            ErrorKind.INCOMPATIBLE,
            f"the catalog in {home_of(directories)} knows {len(known)} data directories, and "
            f"{len(missing)} of them ({', '.join(uuid.hex() for uuid in missing)}) are not among "
            f"the {len(directories)} given; give all of them, or empty all to begin anew",
        )
    return [by_uuid.pop(uuid) for uuid in known] + list(by_uuid.values())


def _completed(
    files: Files, paths: Sequence[Path], blocks: Sequence[Superblock | None], segment_bytes: int
) -> list[Superblock]:
    """Return the superblocks of all, writing those that are not there; the home's comes first."""
    home, size = set_of(paths, blocks, segment_bytes)
    whole = []
    for path, block in zip(paths, blocks, strict=True):
        if block is None:
            uuid = os.urandom(UUID_BYTES)
            home = home or uuid
            block = Superblock(uuid, home, size)
            _create(files, path, block)
        else:
            _remove_unfinished(files, path)
        whole.append(block)
    return whole


def _remove_unfinished(files: Files, path: Path) -> None:
    """Remove what a repair that was ended leaves beside the superblock that it was to replace."""
    fresh = path / FRESH_NAME
    try:
        if fresh.exists():
            files.unlink(str(fresh))
    except OSError as error:
        raise unusable(path, error) from None


def _create(files: Files, path: Path, superblock: Superblock) -> None:
    """Write the superblock last and at once: until it is there, the directory counts as empty."""
    fresh, final = str(path / FRESH_NAME), str(path / SUPERBLOCK_NAME)
    try:
        (path / SEGMENTS_NAME).mkdir(exist_ok=True, mode=0o700)
        make_canary(files, path)
        descriptor = files.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_page(files, descriptor, pack_superblock(superblock))
        finally:
            os.close(descriptor)
        files.rename(fresh, final)
        sync_directory(files, str(path))
    except OSError as error:
        raise unusable(path, error) from None


def _tried(files: Files, path: Path, superblock: Superblock, lock: int) -> DataDirectory:
    """Return the directory with what its file system can do, found out by doing it."""
    try:
        (path / SEGMENTS_NAME).mkdir(exist_ok=True, mode=0o700)
        make_canary(files, path)
        preallocates = _preallocates(files, path)
    except OSError as error:
        raise unusable(path, error) from None
    notes = []
    fault = try_canary(files, path, os.O_DIRECT)
    direct = fault is None or fault.kind == FaultKind.NO_SPACE  # That is not O_DIRECT's fault.
    if not direct:
        buffered = try_canary(files, path, 0)
        if buffered is not None:
            raise KvdError(ErrorKind.UNAVAILABLE, f"data directory {path}: {buffered.message}")
        notes.append(
            f"data directory {path}: no O_DIRECT ({fault.message}); reads and writes go through "
            "the page cache, which costs more processor time and memory"
        )
    if not preallocates:
        notes.append(
            f"data directory {path}: no fallocate; space is not reserved, so other programs can "
            "take it from segments that exist"
        )
    return DataDirectory(path, superblock, lock, direct, preallocates, tuple(notes))


def _preallocates(files: Files, path: Path) -> bool:
    descriptor = files.open(str(path / CANARY_NAME), os.O_RDWR)
    try:
        files.allocate(descriptor, PAGE_BYTES)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise
    finally:
        os.close(descriptor)
    return True

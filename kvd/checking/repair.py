"""Carries out a plan: what is wrong goes, each step durable before the next one stands on it."""

import os
import shutil
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvd.catalog.committing import LmdbCatalog, open_catalog
from kvd.catalog.contract import DATA_NAME, Changes, Committed, Contents, Table
from kvd.checking.chains import parents_of, settled
from kvd.checking.plan import Plan
from kvd.clock import MonotonicClock
from kvd.disk.canary import CANARY_NAME, make_canary
from kvd.disk.directories import DataDirectory
from kvd.disk.files import OsFiles, sync_directory, write_page
from kvd.disk.heads import segment_path
from kvd.disk.recognising import FRESH_NAME, SUPERBLOCK_NAME
from kvd.errors import ErrorKind, Fault, FaultKind, KvdError
from kvd.format.rows import keys_of, seal_rows
from kvd.format.superblock import pack_superblock

_ROWS_AT_ONCE = 4096
_PLACE = ("root", "segment", "epoch", "page", "pages", "directory")


def repair(
    directories: Sequence[DataDirectory],
    home: Path,
    contents: Contents | None,
    kept: np.ndarray,
    plan: Plan,
) -> np.ndarray:
    """Do what the plan says; `kept` u8 by row: how many classes it keeps.

    Return the same as it came to be. Raise KvdError, OSError; a crash in between leaves what the
    next check finds.
    """
    files = OsFiles()
    for directory in plan.superblocks:
        _put_superblock(files, directory)
    if plan.new_catalog:
        _remove(home)
        sync_directory(files, str(home.parent))
    if contents is not None:
        kept = _change_catalog(home, contents, kept, plan)
    # Only now: nothing durable names any of it any more.
    for path in plan.remains:
        _remove(path)
    for parent in sorted({path.parent for path in plan.remains}):
        if parent.is_dir():
            sync_directory(files, str(parent))
    for directory, number in plan.resized:
        _resize(files, directory, number)
    for directory in plan.canaries:
        _remove(directory.path / CANARY_NAME)
        make_canary(files, directory.path)
    return kept


def _put_superblock(files: OsFiles, directory: DataDirectory) -> None:
    fresh, final = str(directory.path / FRESH_NAME), str(directory.path / SUPERBLOCK_NAME)
    descriptor = files.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_page(files, descriptor, pack_superblock(directory.superblock))
    finally:
        os.close(descriptor)
    files.rename(fresh, final)
    sync_directory(files, str(directory.path))


def _remove(path: Path) -> None:
    """Remove a file, or a directory with all that is in it; what is not there is removed."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _resize(files: OsFiles, directory: DataDirectory, number: int) -> None:
    descriptor = files.open(segment_path(directory, number), os.O_RDWR | os.O_NOFOLLOW)
    size = directory.superblock.segment_bytes
    try:
        os.ftruncate(descriptor, size)
        if directory.preallocates:
            files.allocate(descriptor, size)
        files.sync(descriptor)
    finally:
        os.close(descriptor)


# ---- the catalog ----


class _Commits:
    """A catalog whose commits are waited for."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._done: dict[int, Fault | None] = {}
        self._moved = threading.Condition()
        size = (home / DATA_NAME).stat().st_size
        catalog = open_catalog(home, size, self._told, MonotonicClock())
        if isinstance(catalog, Fault):
            raise KvdError(ErrorKind.UNAVAILABLE, f"{catalog.message}; nothing was repaired")
        self.catalog: LmdbCatalog = catalog

    def commit(self, changes: Changes) -> bool:
        """Return whether changes are durable, False when there is no space; raise KvdError."""
        number = len(self._done)
        self.catalog.commit(number, changes)
        with self._moved:
            self._moved.wait_for(lambda: number in self._done)
        fault = self._done[number]
        if fault is None or fault.kind == FaultKind.NO_SPACE:
            return fault is None
        raise KvdError(ErrorKind.UNAVAILABLE, f"{fault.message}; repair again when that is mended")

    def must(self, changes: Changes) -> None:
        """Commit what takes no space; raise KvdError."""
        if not self.commit(changes):
            what = "has no space even for drops; empty all directories to begin anew"
            raise KvdError(ErrorKind.UNAVAILABLE, f"the catalog {self._home} {what}")

    def _told(self, committed: Committed) -> None:
        with self._moved:
            self._done |= dict.fromkeys(committed.batches, committed.fault)
            self._moved.notify_all()


def _change_catalog(home: Path, contents: Contents, kept: np.ndarray, plan: Plan) -> np.ndarray:
    present = (contents.rows["pages"] != 0).sum(axis=1)
    purge = bool(plan.purge.items or plan.records or plan.generation)
    if not purge and (kept == present).all():
        return kept
    commits = _Commits(home)
    try:
        _drop(commits, plan.purge.dropped_rows)
        _drop(commits, keys_of(contents.rows[kept == 0]))
        shortened = (kept > 0) & (kept < present)
        if not _shorten(commits, contents.rows[shortened], kept[shortened]):
            # The catalog is so full that it takes drops only.
            kept = settled(np.where(shortened, 0, kept), parents_of(contents.rows))
            _drop(commits, keys_of(contents.rows[kept == 0]))
        records = tuple((Table.SEGMENTS, key) for key in plan.records)
        changes = Changes(dropped=plan.purge.dropped + records, generation=plan.generation)
        commits.must(changes)
    finally:
        commits.catalog.close()
    return kept


def _drop(commits: _Commits, keys: np.ndarray) -> None:
    for at in range(0, len(keys), _ROWS_AT_ONCE):
        changes = Changes(dropped_rows=keys[at : at + _ROWS_AT_ONCE])
        commits.must(changes)


def _shorten(commits: _Commits, rows: np.ndarray, kept: np.ndarray) -> bool:
    """Write rows with their first `kept` classes; return False when there is no space."""
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[at : at + _ROWS_AT_ONCE].copy()
        lost = np.arange(some["pages"].shape[1]) >= kept[at : at + _ROWS_AT_ONCE, None]
        for name in _PLACE:
            some[name] = np.where(lost, 0, some[name])
        seal_rows(some)
        if not commits.commit(Changes(rows=some)):
            return False
    return True

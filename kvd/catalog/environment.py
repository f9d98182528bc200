"""The LMDB environment: made whole or not at all, opened with all its space, changed by one thread.

The map is preallocated, so the file never grows; an eighth of it is kept for drops.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import lmdb

from kvd.catalog.contract import DATA_NAME, Changes, Table
from kvd.errors import Fault, FaultKind
from kvd.format.page import Refused
from kvd.format.records import META_KEY, SEGMENT_KEY_BYTES, Meta, pack_meta, parse_meta
from kvd.format.rows import KEY_BYTES, ROW
from kvd.limits import PAGE_BYTES

LOCK_NAME = "lock.mdb"
_TABLES_MAX = 16
_READERS_MAX = 16
_KEPT_FOR_DROPS = 8  # One part of so many.
_LOCK_BYTES = 4 * PAGE_BYTES
_DIRECTORY_MODE = 0o700


class NoSpace(Exception):
    """The map is too full to put anything."""


class MetaDamaged(Exception):
    """The meta record cannot be read; the message says why."""


# What leaves the environment usable.
FULL = (NoSpace, lmdb.MapFullError, lmdb.TxnFullError)


def make_environment(path: Path, map_bytes: int) -> None:
    """Make an empty catalog of `map_bytes` in a new directory `path`; raise OSError, lmdb.Error.

    It gets its name last: a catalog that is there is whole.
    """
    fresh = path.with_name(path.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(_DIRECTORY_MODE)
        _take_space(fresh / LOCK_NAME, _LOCK_BYTES)
        with _open(fresh, map_bytes) as environment, environment.begin(write=True) as transaction:
            tables = {t: environment.open_db(t.encode(), txn=transaction) for t in Table}
            transaction.put(META_KEY, pack_meta(Meta()), db=tables[Table.META])
        _take_space(fresh / DATA_NAME, map_bytes)
        _sync_directory(fresh)
        shutil.rmtree(path, ignore_errors=True)  # What is left of one without its data.
        os.rename(fresh, path)
        _sync_directory(path.parent)
    except (OSError, lmdb.Error):
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def remove_catalog(path: Path) -> None:
    """Remove a catalog that cannot be used, so that one can be made anew; raise OSError.

    Segments go before it: without it a start does not take them for its own.
    """
    shutil.rmtree(path)
    _sync_directory(path.parent)


class Environment:
    def __init__(self, path: Path, map_bytes: int) -> None:
        """Open what is there, never smaller than it was; raise OSError, lmdb.Error, MetaDamaged."""
        shutil.rmtree(path.with_name(path.name + ".new"), ignore_errors=True)
        self.path, self.map_bytes = path, _grown(path, map_bytes)
        self._lmdb = _open(path, self.map_bytes)
        try:
            with self._lmdb.begin(write=True) as transaction:
                self._tables = {
                    t: self._lmdb.open_db(t.encode(), txn=transaction, create=False) for t in Table
                }
                self.meta = self._read_meta(transaction)
        except (lmdb.Error, MetaDamaged):
            self._lmdb.close()
            raise

    def apply(self, group: Sequence[Changes]) -> None:
        """Commit changes, one after the other, in one transaction, synced when this returns.

        Raise NoSpace when a put finds the map too full, lmdb.Error when nothing is known.
        """
        meta = self.meta
        with self._lmdb.begin(write=True) as transaction:
            if any(map(puts, group)) and self._is_full(transaction):
                raise NoSpace
            for changes in group:
                meta = _merged(meta, changes)
                self._drop(transaction, changes)
                self._put(transaction, changes)
            if meta != self.meta:
                transaction.put(META_KEY, pack_meta(meta), db=self._tables[Table.META])
        self.meta = meta

    def check_readers(self) -> int:
        """Clear the slots of readers that died; return how many."""
        return self._lmdb.reader_check()

    def close(self) -> None:
        self._lmdb.close()

    def _read_meta(self, transaction: lmdb.Transaction) -> Meta:
        data = transaction.get(META_KEY, db=self._tables[Table.META])
        match None if data is None else parse_meta(data):
            case None:
                raise MetaDamaged("it has no meta record")
            case Refused(_, message):
                raise MetaDamaged(message)
            case meta:
                return meta

    def _is_full(self, transaction: lmdb.Transaction) -> bool:
        stats = (transaction.stat(table) for table in self._tables.values())
        pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
        return pages * PAGE_BYTES > self.map_bytes - self.map_bytes // _KEPT_FOR_DROPS

    def _drop(self, transaction: lmdb.Transaction, changes: Changes) -> None:
        keys = changes.dropped_rows.tobytes()
        rows = self._tables[Table.ROWS]
        for at in range(0, len(keys), KEY_BYTES):
            _delete(transaction, keys[at : at + KEY_BYTES], rows)
        for table, key in changes.dropped:
            _delete(transaction, key, self._tables[table])

    def _put(self, transaction: lmdb.Transaction, changes: Changes) -> None:
        items = {
            Table.ROWS: _cut(changes.rows.tobytes(), ROW.itemsize, KEY_BYTES),
            Table.SEGMENTS: _cut(
                changes.segments.tobytes(), changes.segments.dtype.itemsize, SEGMENT_KEY_BYTES
            ),
            Table.KEYSPACES: list(changes.keyspaces),
        }
        for table, entries in items.items():
            if entries:
                # In the order of the tree: neighbours share pages.
                with transaction.cursor(db=self._tables[table]) as cursor:
                    cursor.putmulti(sorted(entries))


def fault_of(error: Exception, path: Path) -> Fault:
    """Return the fault for what opening or changing a catalog raised."""
    match error:
        case _ if isinstance(error, FULL):
            return Fault(FaultKind.NO_SPACE, f"the catalog {path} is full; raise the ssd budget")
        case lmdb.DiskError() | OSError(errno=errno.ENOSPC):
            return Fault(FaultKind.NO_SPACE, f"the catalog {path}: no space left on the device")
        case (
            MetaDamaged() | lmdb.CorruptedError() | lmdb.PageNotFoundError() | lmdb.InvalidError()
            | lmdb.VersionMismatchError() | lmdb.NotFoundError() | lmdb.IncompatibleError()
        ):  # fmt: skip
            return Fault(FaultKind.FORMAT, f"the catalog {path} is damaged: {error}")
        case FileNotFoundError():
            return Fault(FaultKind.GONE, f"the catalog {path} is not there")
        case _:
            return Fault(FaultKind.IO, f"the catalog {path}: {error}")


def _delete(transaction: lmdb.Transaction, key: bytes, table: object) -> None:
    """Delete an entry if there is one.

    One whose key is damaged may begin a page while it belongs at the end of the page before, where
    the search for it ends: it is the next one from there.
    """
    if transaction.delete(key, db=table):
        return
    with transaction.cursor(db=table) as cursor:
        if cursor.set_range(key) and cursor.key() == key:
            cursor.delete()


def _open(path: Path, map_bytes: int) -> lmdb.Environment:
    return lmdb.open(
        str(path), map_size=map_bytes, max_dbs=_TABLES_MAX, max_readers=_READERS_MAX, mode=0o600
    )


def _grown(path: Path, map_bytes: int) -> int:
    """Give the file the size asked for, if there is room and it is not larger; return its size."""
    size = (path / DATA_NAME).stat().st_size
    _take_space(path / LOCK_NAME, _LOCK_BYTES)
    try:
        _take_space(path / DATA_NAME, max(size, map_bytes))
    except OSError as error:
        if error.errno != errno.ENOSPC or map_bytes <= size:
            raise
        os.truncate(path / DATA_NAME, size)
        return size
    return max(size, map_bytes)


def _take_space(file: Path, size_bytes: int) -> None:
    """Have a file of this size with all its blocks, so that it never grows; raise OSError.

    LMDB writes its lock file through a map: without its blocks a full disk would be a SIGBUS.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def puts(changes: Changes) -> bool:
    """Return whether changes may take more room than they give."""
    return bool(len(changes.rows) or len(changes.segments) or changes.keyspaces)


def _merged(meta: Meta, changes: Changes) -> Meta:
    if changes.generation > meta.generation:
        meta = replace(meta, generation=changes.generation)
    if changes.directories:
        meta = replace(meta, directories=changes.directories)
    if changes.written is not None:
        meta = replace(meta, written_day=changes.written[0], written_bytes=changes.written[1])
    return meta


def _cut(data: bytes, step: int, key_bytes: int) -> list[tuple[bytes, bytes]]:
    starts = range(0, len(data), step)
    return [(data[at : at + key_bytes], data[at + key_bytes : at + step]) for at in starts]

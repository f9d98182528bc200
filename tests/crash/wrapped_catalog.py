"""The seam in the catalog: its commits, and how it is made, read, opened and removed."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb

from kvd.catalog import committing, environment
from kvd.catalog.contract import DATA_NAME, Changes
from kvd.daemon import recovery
from kvd.limits import PAGE_BYTES
from tests.crash.seam import Seam, around
from tests.crash.sites import INSIDE


def tear_commit(seam: Seam, path: Path, act: Callable[[], None]) -> None:
    """Have a transaction's pages written in part, and not the one that makes them the new state."""
    before = (path / DATA_NAME).read_bytes()
    act()
    descriptor = os.open(path / DATA_NAME, os.O_RDWR)
    after, chance = os.pread(descriptor, len(before), 0), seam.chance()
    for at in range(0, len(before), PAGE_BYTES):
        old = before[at : at + PAGE_BYTES]
        is_root = at < 2 * PAGE_BYTES
        if old != after[at : at + PAGE_BYTES] and (is_root or chance.random() < 0.5):
            os.pwrite(descriptor, old, at)
    os.fsync(descriptor)


def wrap_catalog(seam: Seam) -> None:
    """Put the seam into the catalog."""
    _wrap_commits(seam)
    _wrap_names(seam)
    for module, name, site in (
        (environment, "_take_space", "catalog.space"),
        (committing, "make_environment", "catalog.make"),
        (recovery, "load_catalog", "catalog.read"),
    ):
        setattr(module, name, around(seam, site, getattr(module, name)))


def _wrap_commits(seam: Seam) -> None:
    kind = environment.Environment
    apply, put, opened = kind.apply, kind._put, kind.__init__

    def applied(self: environment.Environment, group: list[Changes]) -> None:
        def act() -> None:
            file, synced = self.path / DATA_NAME, self._lmdb.flags()["sync"]
            before = b"" if synced else file.read_bytes()
            apply(self, group)
            if seam.unsynced is not None:
                seam.unsynced.note_commit(file, before, synced=synced)

        seam.change("commit", act, lambda: tear_commit(seam, self.path, act))

    def put_in(self: environment.Environment, transaction: Any, changes: Changes) -> None:
        put(self, transaction, changes)
        seam.meet("commit", INSIDE)

    def begun(self: environment.Environment, path: Path, map_bytes: int) -> None:
        act = lambda: opened(self, path, map_bytes)  # noqa: E731
        seam.change("catalog.open", act, act)

    def lmdb_opened(*arguments: Any, **named: Any) -> lmdb.Environment:
        return lmdb.open(*arguments, **named, sync=not seam.skips("commit.sync"))

    kind.apply, kind._put, kind.__init__ = applied, put_in, begun  # type: ignore[method-assign]
    environment.lmdb = SimpleNamespace(**{**vars(lmdb), "open": lmdb_opened})  # type: ignore


def _wrap_names(seam: Seam) -> None:
    synced, removed = environment._sync_directory, recovery.remove_catalog

    def sync(path: Path) -> None:
        def act() -> None:
            synced(path)
            if seam.unsynced is not None:
                seam.unsynced.note_names(str(path))

        seam.change("catalog.sync", act, act)

    def rename(source: Path, target: Path) -> None:
        def act() -> None:
            if seam.unsynced is not None:
                seam.unsynced.note_renamed(str(source), str(target))
            os.rename(source, target)

        seam.change("catalog.rename", act, act)

    def remove(path: Path) -> None:
        def tear() -> None:
            (path / seam.chance().choice((DATA_NAME, environment.LOCK_NAME))).unlink()

        seam.change("catalog.remove", lambda: removed(path), tear)

    recovery.remove_catalog = remove
    environment._sync_directory = sync
    environment.os = SimpleNamespace(**{**vars(os), "rename": rename})  # type: ignore[assignment]

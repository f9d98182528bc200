"""What a power cut may take back: all that was not synced, each page and each name by chance.

Keeps what was there before each change until a sync makes the change last; what a process that was
killed at a boundary leaves of that goes over to the next one. A commit counts as synced where LMDB
was asked to sync it: whether it does is for a file system that is shut down to tell (mounted.py).
"""

import os
import pickle
import random
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvd.limits import PAGE_BYTES
from tests.crash.sites import path_of

SECTOR_BYTES = 512  # Written whole or not at all.


@dataclass(slots=True)
class Page:
    path: str
    offset: int
    before: bytes


@dataclass(slots=True)
class Renamed:
    """`kept`: what had the new name before, in the attic."""

    source: str
    target: str
    kept: str


@dataclass(slots=True)
class Unsynced:
    """`attic`: a directory of the same file system, outside of the data directories."""

    attic: Path
    pages: dict[int, list[Page]] = field(default_factory=lambda: defaultdict(list))  # By inode.
    made: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # By directory.
    gone: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    renamed: dict[str, list[Renamed]] = field(default_factory=lambda: defaultdict(list))
    fresh: set[str] = field(default_factory=set)  # Files whose size is not synced yet.

    def note_write(self, descriptor: int, offset: int, size_bytes: int) -> None:
        """Keep what a write is about to change."""
        path, before = path_of(descriptor), read_before(descriptor, offset, size_bytes)
        pages = self.pages[os.fstat(descriptor).st_ino]
        for at in range(0, len(before), PAGE_BYTES):
            pages.append(Page(path, offset + at, before[at : at + PAGE_BYTES]))

    def note_commit(self, path: Path, before: bytes, *, synced: bool) -> None:
        """Keep what a commit has changed of a catalog's file, unless it was synced."""
        inode = path.stat().st_ino
        if synced:
            self.pages.pop(inode, None)
            return
        after = path.read_bytes()
        for at in range(0, len(before), PAGE_BYTES):
            old = before[at : at + PAGE_BYTES]
            if old != after[at : at + PAGE_BYTES]:
                self.pages[inode].append(Page(str(path), at, old))

    def note_made(self, path: str) -> None:
        self.made[os.path.dirname(path)].append(path)
        self.fresh.add(path)

    def note_gone(self, path: str) -> None:
        # What is written under its name later is of another file.
        self.pages.pop(os.stat(path).st_ino, None)
        self.gone[os.path.dirname(path)].append((path, self._keep(path)))

    def note_renamed(self, source: str, target: str) -> None:
        """Keep what a rename is about to change; names of what is inside go with it."""
        kept = ""
        if os.path.isfile(target):
            self.pages.pop(os.stat(target).st_ino, None)
            kept = self._keep(target)
        self.renamed[os.path.dirname(target)].append(Renamed(source, target, kept))
        for page in (page for pages in self.pages.values() for page in pages):
            page.path = _moved(page.path, source, target)
        self.fresh = {_moved(path, source, target) for path in self.fresh}
        for directory, paths in list(self.made.items()):
            self.made[directory] = [_moved(path, source, target) for path in paths]

    def note_sync(self, descriptor: int) -> None:
        """A file's bytes last from now on, or a directory's names."""
        path = path_of(descriptor)
        self.pages.pop(os.fstat(descriptor).st_ino, None)
        self.fresh.discard(path)
        self.note_names(path)

    def note_names(self, directory: str) -> None:
        """A directory's names last from now on."""
        self.made.pop(directory, None)
        kept = [kept for _, kept in self.gone.pop(directory, ())]
        kept += [each.kept for each in self.renamed.pop(directory, ()) if each.kept]
        for each in kept:
            os.unlink(each)

    def cut(self, chance: random.Random) -> None:
        """Take back some of what was not synced."""
        for pages in self.pages.values():
            for page in reversed(pages):
                if chance.random() < 0.5:
                    _restore(page, chance)
        for path in sorted(self.fresh):
            if chance.random() < 0.5:
                with suppress(FileNotFoundError):
                    os.truncate(path, 0)
        for each in (each for some in self.renamed.values() for each in reversed(some)):
            if chance.random() < 0.5 and os.path.lexists(each.target):
                os.rename(each.target, each.source)
                if each.kept:
                    os.link(each.kept, each.target)
        for paths in self.made.values():
            for path in paths:
                if chance.random() < 0.5:
                    with suppress(FileNotFoundError):
                        os.unlink(path)
        for entries in self.gone.values():
            for path, kept in entries:
                if chance.random() < 0.5 and not os.path.exists(path):
                    os.link(kept, path)

    def _keep(self, path: str) -> str:
        kept = str(self.attic / f"{os.path.basename(path)}.{time.monotonic_ns()}")
        os.link(path, kept)
        return kept


def leave(unsynced: Unsynced, path: Path) -> None:
    """Leave to the next process what it may still lose."""
    path.write_bytes(pickle.dumps(unsynced))


def found_unsynced(path: Path, attic: Path) -> Unsynced:
    """Return what a killed process left, once, or that everything lasts."""
    if not path.exists():
        return Unsynced(attic)
    left = pickle.loads(path.read_bytes())
    path.unlink()
    return left


def read_before(descriptor: int, offset: int, size_bytes: int) -> bytes:
    """Return what a file holds there, through the page cache: no alignment is asked for."""
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    try:
        return os.pread(again, size_bytes, offset)
    finally:
        os.close(again)


def write_back(descriptor: int, offset: int, data: bytes) -> None:
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
    try:
        os.pwrite(again, data, offset)
    finally:
        os.close(again)


def torn_at(size_bytes: int, chance: random.Random) -> int:
    """Return how many bytes got through of a write that was cut, whole sectors."""
    return chance.randrange(0, max(1, size_bytes // SECTOR_BYTES)) * SECTOR_BYTES


def _moved(path: str, source: str, target: str) -> str:
    if path == source or path.startswith(f"{source}/"):
        return target + path[len(source) :]
    return path


def _restore(page: Page, chance: random.Random) -> None:
    begin = torn_at(len(page.before), chance) if chance.random() < 0.25 else 0
    with suppress(FileNotFoundError):
        descriptor = os.open(page.path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, page.before[begin:], page.offset + begin)
        finally:
            os.close(descriptor)

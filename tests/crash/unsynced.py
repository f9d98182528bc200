"""What a power cut may take back: all that was not synced, each page and each name by chance.

Keeps what was there before each change until a sync makes the change last. The catalog's file is
not seen here: LMDB writes it by itself.
"""

import os
import random
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
class Unsynced:
    """`attic`: a directory of the same file system, outside of the data directories."""

    attic: Path
    pages: dict[int, list[Page]] = field(default_factory=lambda: defaultdict(list))  # By inode.
    made: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # By directory.
    gone: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    fresh: set[str] = field(default_factory=set)  # Files whose size is not synced yet.

    def note_write(self, descriptor: int, offset: int, size_bytes: int) -> None:
        """Keep what a write is about to change."""
        path, before = path_of(descriptor), read_before(descriptor, offset, size_bytes)
        pages = self.pages[os.fstat(descriptor).st_ino]
        for at in range(0, len(before), PAGE_BYTES):
            pages.append(Page(path, offset + at, before[at : at + PAGE_BYTES]))

    def note_made(self, path: str) -> None:
        self.made[os.path.dirname(path)].append(path)
        self.fresh.add(path)

    def note_gone(self, path: str) -> None:
        kept = str(self.attic / f"{os.path.basename(path)}.{len(os.listdir(self.attic))}")
        os.link(path, kept)
        self.gone[os.path.dirname(path)].append((path, kept))

    def note_sync(self, descriptor: int) -> None:
        """A file's bytes last from now on, or a directory's names."""
        path = path_of(descriptor)
        self.pages.pop(os.fstat(descriptor).st_ino, None)
        self.fresh.discard(path)
        self.made.pop(path, None)
        for _, kept in self.gone.pop(path, ()):
            os.unlink(kept)

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
        for paths in self.made.values():
            for path in paths:
                if chance.random() < 0.5:
                    with suppress(FileNotFoundError):
                        os.unlink(path)
        for entries in self.gone.values():
            for path, kept in entries:
                if chance.random() < 0.5 and not os.path.exists(path):
                    os.link(kept, path)


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


def _restore(page: Page, chance: random.Random) -> None:
    begin = torn_at(len(page.before), chance) if chance.random() < 0.25 else 0
    with suppress(FileNotFoundError):
        descriptor = os.open(page.path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, page.before[begin:], page.offset + begin)
        finally:
            os.close(descriptor)

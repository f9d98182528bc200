"""The seam in `OsFiles`, through which everything but the catalog reaches a data directory."""

import os
from typing import Any

from kvd.disk.files import OsFiles, Spans, behind
from kvd.limits import PAGE_BYTES
from tests.crash.seam import Seam
from tests.crash.sites import path_of, subject
from tests.crash.unsynced import read_before, torn_at, write_back


def wrap_files(seam: Seam) -> None:
    """Put the seam into `OsFiles`, for all of this process."""
    _wrap_reads(seam, OsFiles.open, OsFiles.preadv)
    _wrap_writes(seam, OsFiles.pwritev, OsFiles.sync)
    _wrap_names(seam, OsFiles.allocate, OsFiles.rename, OsFiles.unlink)


def _wrap_reads(seam: Seam, opened: Any, preadv: Any) -> None:
    def open_(self: OsFiles, path: str, flags: int) -> int:
        if not flags & os.O_CREAT:
            return seam.read(f"{subject(path)}.open", lambda how: opened(self, path, flags))

        def act() -> int:
            is_new = not os.path.exists(path)
            descriptor = opened(self, path, flags)
            if seam.unsynced is not None and is_new:
                seam.unsynced.note_made(path)
            return descriptor

        return seam.change(f"{subject(path)}.create", act, act)

    def read(self: OsFiles, descriptor: int, spans: Spans, offset: int) -> int:
        def act(how: str) -> int:
            size = sum(each for _, each in spans)
            if not how:
                return preadv(self, descriptor, spans, offset)
            half = size // 2 // PAGE_BYTES * PAGE_BYTES
            done = preadv(self, descriptor, _first(spans, half), offset) if half else 0
            return done if how == "short" else size

        return seam.read(_io_site(descriptor, offset, "read"), act)

    OsFiles.open, OsFiles.preadv = open_, read  # type: ignore[method-assign]


def _wrap_writes(seam: Seam, pwritev: Any, synced: Any) -> None:
    last: dict[int, str] = {}  # What was written last through a descriptor.

    def write(self: OsFiles, descriptor: int, spans: Spans, offset: int) -> int:
        size, site = sum(each for _, each in spans), _io_site(descriptor, offset, "write")
        last[descriptor] = site.removesuffix(".write")

        def act() -> int:
            if seam.unsynced is not None:
                seam.unsynced.note_write(descriptor, offset, size)
            return pwritev(self, descriptor, spans, offset)

        def tear() -> None:
            before = read_before(descriptor, offset, size)
            act()
            cut = torn_at(size, seam.chance())
            write_back(descriptor, offset + cut, before[cut:])

        done = seam.change(site, act, tear)
        return size if done is None else done

    def sync(self: OsFiles, descriptor: int) -> None:
        path = path_of(descriptor)
        what = subject(path)
        site = f"{last.get(descriptor, what) if what == 'segment' else what}.sync"

        def act() -> None:
            synced(self, descriptor)
            if seam.unsynced is not None:
                seam.unsynced.note_sync(descriptor)

        seam.change(site, act, act)

    OsFiles.pwritev, OsFiles.sync = write, sync  # type: ignore[method-assign]


def _wrap_names(seam: Seam, allocated: Any, renamed: Any, unlinked: Any) -> None:
    def allocate(self: OsFiles, descriptor: int, size_bytes: int) -> None:
        seam.change(
            f"{subject(path_of(descriptor))}.allocate",
            lambda: allocated(self, descriptor, size_bytes),
            lambda: allocated(self, descriptor, size_bytes // 2),
        )

    def rename(self: OsFiles, source: str, target: str) -> None:
        def act() -> None:
            if seam.unsynced is not None:
                seam.unsynced.note_renamed(source, target)
            renamed(self, source, target)

        seam.change(f"{subject(source)}.rename", act, act)

    def unlink(self: OsFiles, path: str) -> None:
        def act() -> None:
            if seam.unsynced is not None and os.path.exists(path):
                seam.unsynced.note_gone(path)
            unlinked(self, path)

        seam.change(f"{subject(path)}.unlink", act, act)

    OsFiles.allocate, OsFiles.rename = allocate, rename  # type: ignore[method-assign]
    OsFiles.unlink = unlink  # type: ignore[method-assign]


def _first(spans: Spans, size_bytes: int) -> Spans:
    """Return the first bytes of spans."""
    rest = sum(size for _, size in behind(spans, size_bytes))
    first, left = [], sum(size for _, size in spans) - rest
    for address, size in spans:
        if left <= 0:
            break
        first.append((address, min(size, left)))
        left -= size
    return first


def _io_site(descriptor: int, offset: int, act: str) -> str:
    what = subject(path_of(descriptor))
    if what == "segment":
        what = "strips" if offset else "head"
    return f"{what}.{act}"

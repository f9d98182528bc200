"""At a daemon's start: dram that another one left with the service manager, checked strip by strip.

It is believed once. The index is cut to nothing before anything of it is used; so whoever finds it
again, after a crash in which bytes changed, finds nothing to believe.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvd.arena.slabs import MemfdArena
from kvd.core.disk_effects import StripColumns
from kvd.core.dram import LeftDram, LeftRows
from kvd.daemon.handover import FileKey, Whose, left_of
from kvd.daemon.keeping import file_key
from kvd.daemon.translating import names_of
from kvd.disk.carrier import HostCarrier
from kvd.disk.files import OsFiles
from kvd.disk.pieces import Pieces, Roots
from kvd.format.handover import parse_handover
from kvd.format.page import Refused
from kvd.limits import GIB
from kvd.types import CLASS_COUNT

INDEX_BYTES_MAX = 1 * GIB  # Of six million chunks; a file may say that it has any size.
_AT_ONCE = 2048  # Strips checked between two looks at the loop.

_log = logging.getLogger("kvd.service")


@dataclass(frozen=True, slots=True)
class Kept:
    """Descriptors that the service manager kept, by what they are said to be; ours to close."""

    indexes: tuple[int, ...] = ()
    slabs: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.indexes or self.slabs)


class _Unfit(Exception):
    """Why nothing of what was kept is taken over."""


def take_over(kept: Kept, whose: Whose, slab_bytes: int, arena: MemfdArena) -> LeftDram | None:
    """Return dram whose slabs the arena has now, its strips unchecked; None with a line of log.

    Every descriptor is the arena's or closed afterwards.
    """
    slabs = {file_key(descriptor): descriptor for descriptor in kept.slabs}
    given: list[int] = []
    adopted: list[int] = []
    try:
        left, files = _read(_claim(kept.indexes), whose, slab_bytes)
        there = tuple(slab for slab in left.slabs if files[slab.slab] in slabs)
        for slab in there:
            given.append(slabs.pop(files[slab.slab]))
            arena.adopt_slab(slab.slab, given[-1], slab_bytes)
            adopted.append(slab.slab)
    except (_Unfit, OSError) as error:
        _log.warning("dram of the daemon before is not taken over: %s", error)
        for number in adopted:
            arena.destroy_slab(number)
        return None
    finally:
        _close([descriptor for descriptor in kept.slabs if descriptor not in given])
    return replace(left, slabs=there, rows=_only(left.rows, adopted))


def _claim(indexes: Sequence[int]) -> bytes:
    """Return the one index that was not taken before, leaving none to be taken; raise _Unfit."""
    found, largest = [], 0
    try:
        for descriptor in indexes:
            size = os.fstat(descriptor).st_size
            largest = max(largest, size)
            if size <= INDEX_BYTES_MAX:
                found.append(os.pread(descriptor, size, 0))
            os.ftruncate(descriptor, 0)
    finally:
        _close(indexes)
    if largest > INDEX_BYTES_MAX:
        raise _Unfit(f"its index has {largest} bytes, more than {INDEX_BYTES_MAX}")
    fresh = [data for data in found if data]
    if len(fresh) != 1:
        why = f"{len(fresh)} indexes claim it" if fresh else "the last daemon did not end in order"
        raise _Unfit(why)
    return fresh[0]


def _read(data: bytes, whose: Whose, slab_bytes: int) -> tuple[LeftDram, dict[int, FileKey]]:
    found = parse_handover(data)
    match found:
        case Refused(_, message):
            raise _Unfit(f"its index {message}")
    if found.directory != whose.directory:
        raise _Unfit(f"it is of a daemon at {os.fsdecode(found.directory)}")
    if found.home != whose.home:
        raise _Unfit("it is of a daemon with other data directories")
    if found.slab_bytes != slab_bytes:
        raise _Unfit(f"its slabs have {found.slab_bytes} bytes, now they have {slab_bytes}")
    left = left_of(found)
    match left:
        case Refused(_, message):
            raise _Unfit(f"its index {message}")
    return left


def _only(rows: LeftRows, slabs: list[int]) -> LeftRows:
    """Return the rows with no place but in these slabs."""
    return _without(rows, ~np.isin(rows.slabs, slabs))


def _without(rows: LeftRows, gone: np.ndarray) -> LeftRows:
    names = ("slabs", "offsets", "sizes", "roots")
    return replace(rows, **{name: np.where(gone, 0, getattr(rows, name)) for name in names})


async def check_strips(
    left: LeftDram, arena: MemfdArena, tell: Callable[[int, int], None]
) -> LeftDram:
    """Return it without the strips whose table does not have its root, checked by a thread.

    `tell` is called with the strips that are checked and their number, now and then.
    """
    strips = np.flatnonzero(left.rows.slabs.ravel())
    bad = np.zeros(left.rows.slabs.size, bool)
    for at in range(0, len(strips), _AT_ONCE):
        tell(at, len(strips))
        some = strips[at : at + _AT_ONCE]
        unfit = await asyncio.to_thread(_unfit, left, some, arena)
        bad[some[unfit]] = True
    if bad.any():
        _log.warning("%d strips of the daemon before do not fit their roots", bad.sum())
    return replace(left, rows=_without(left.rows, bad.reshape(left.rows.slabs.shape)))


def _unfit(left: LeftDram, strips: np.ndarray, arena: MemfdArena) -> list[int]:
    """Return which of the strips, by place, are not what the index says."""
    rows = left.rows
    at, classes = strips // CLASS_COUNT, strips % CLASS_COUNT
    slabs, sizes = rows.slabs[at, classes], rows.sizes[at, classes]
    views = {slab: np.frombuffer(arena.view_slab(slab), np.uint8) for slab in set(slabs.tolist())}
    begins = np.array([views[slab].ctypes.data for slab in slabs.tolist()], np.uint64)
    addresses = (begins + rows.offsets[at, classes]).tolist()
    none = np.zeros(len(strips), np.uint32)
    columns = StripColumns(
        rows.keys.names, rows.keys.name_of[at], [rows.keys.chain[row] for row in at.tolist()],
        classes.astype(np.uint8), rows.generations[at], rows.profiles[at],
        rows.roots[at, classes], none, none, none, none, none, slabs, none, sizes,
    )  # fmt: skip
    names = names_of(columns, whole=True)
    pieces = Pieces([], [], [], sizes.tolist(), addresses)
    return Roots(names, HostCarrier(OsFiles())).unfit_strips(list(range(len(strips))), pieces)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)

"""How the ssd budget is divided: a catalog, what every data directory costs, and segments.

The budget is one number for everything under all data directories. Arithmetic, and looks at file
systems before anything is made in them.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvd.catalog.contract import DATA_NAME, map_bytes_of
from kvd.disk.directories import CATALOG_NAME
from kvd.disk.posix import allocated_bytes
from kvd.disk.recognising import SUPERBLOCK_NAME
from kvd.errors import ErrorKind, KvdError
from kvd.format.segment import SEGMENT_MAX
from kvd.limits import GIB, KIB, MIB, PAGE_BYTES
from kvd.types import CLASS_COUNT
from kvd.units import human

SSD_BYTES_DEFAULT_MAX = 16 * GIB  # Nobody should lose more disk to a daemon he did not size.
_DEFAULT_PARTS = 10  # Of the free space.
SEGMENT_BYTES_DEFAULT = 64 * MIB
SEGMENT_BYTES_LEAST = 1 * MIB
_SEGMENTS_WANTED = 4 * CLASS_COUNT  # With smaller segments, if it must be.
SEGMENTS_MIN = 2 * CLASS_COUNT  # One is written while another is being emptied.
# Blocks of a directory's own files and of its names, and of the catalog's lock.
_DIRECTORY_BYTES = 64 * KIB
# Of each segment: its name, and the list of its extents where it is in many pieces.
_SEGMENT_COST_BYTES = 2 * PAGE_BYTES
_SPARE_BYTES, _SPARE_PARTS, _SPARE_PARTS_MOST = 64 * MIB, 100, 20


@dataclass(frozen=True, slots=True)
class FileSystem:
    device: int
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Places:
    """The data directories as they are: `ours_bytes` are under them, `old_map_bytes` of catalog."""

    paths: tuple[Path, ...]
    file_systems: tuple[FileSystem, ...]
    ours_bytes: int
    old_map_bytes: int
    is_new: bool

    @property
    def room_bytes(self) -> int:
        """Return what could be under them: what is, and all that is free."""
        return self.ours_bytes + sum(each.free_bytes for each in self.file_systems)

    @property
    def spare_bytes(self) -> int:
        """Return what every file system keeps free for other programs, as the smallest one can."""
        return min(_spare_of(each.total_bytes) for each in self.file_systems)


@dataclass(frozen=True, slots=True)
class Budget:
    size_bytes: int
    map_bytes: int
    segment_bytes: int
    segments_max: int


def look(paths: Sequence[Path]) -> Places:
    """Return what there is at paths that may not exist yet; raise OSError."""
    old = [path for path in paths if (path / SUPERBLOCK_NAME).exists()]
    ours = old_map = 0
    for path in old:
        # Whether it can be read at all is found out, and said, when it is opened.
        with suppress(PermissionError):
            ours += allocated_bytes(path)
        with suppress(OSError):
            old_map = max(old_map, (path / CATALOG_NAME / DATA_NAME).stat().st_size)
    systems = {each.device: each for each in map(_file_system_of, paths)}
    return Places(tuple(paths), tuple(systems.values()), ours, old_map, not old)


def default_bytes(places: Places) -> int:
    """Return the budget of who named none; whole pages.

    What old directories hold stays theirs when other programs fill the disk.
    """
    part = max(places.room_bytes // _DEFAULT_PARTS, places.ours_bytes)
    return min(part // PAGE_BYTES * PAGE_BYTES, SSD_BYTES_DEFAULT_MAX)


def divide(places: Places, size_bytes: int, segment_bytes: int = 0) -> Budget:
    """Return how a budget is used, with segments of this size or as large as it allows.

    Raise INVALID when it is too small to work with, or more than there is for new directories;
    old ones may have lost room to others since.
    """
    own = len(places.paths) * _DIRECTORY_BYTES
    map_bytes = max(map_bytes_of(size_bytes), places.old_map_bytes)
    left = size_bytes - own - map_bytes
    segment_bytes = segment_bytes or _segment_bytes_for(left)
    each = segment_bytes + _SEGMENT_COST_BYTES
    if left < SEGMENTS_MIN * each:
        raise KvdError(
            ErrorKind.INVALID,
            f"ssd is {human(size_bytes)}, and {human(own + map_bytes + SEGMENTS_MIN * each)} are "
            f"needed: {human(own + map_bytes)} for the catalog and the directories, and "
            f"{SEGMENTS_MIN} segments of {human(segment_bytes)}; raise --ssd (KVD_SSD)"
            + ("" if places.is_new else ", or empty the data directories to begin anew"),
        )
    if places.is_new and size_bytes > places.room_bytes:
        raise KvdError(
            ErrorKind.INVALID,
            f"ssd is {human(size_bytes)}, and {', '.join(map(str, places.paths))} can hold "
            f"{human(places.room_bytes, down=True)}; lower --ssd (KVD_SSD), or make room",
        )
    return Budget(size_bytes, map_bytes, segment_bytes, min(left // each, SEGMENT_MAX))


def _segment_bytes_for(left_bytes: int) -> int:
    segment_bytes = SEGMENT_BYTES_DEFAULT
    while (
        segment_bytes > SEGMENT_BYTES_LEAST
        and left_bytes < _SEGMENTS_WANTED * (segment_bytes + _SEGMENT_COST_BYTES)
    ):  # fmt: skip
        segment_bytes //= 2
    return segment_bytes


def _file_system_of(path: Path) -> FileSystem:
    there = Path(os.path.realpath(path))
    while not there.exists():
        there = there.parent
    stat = os.statvfs(there)
    total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    return FileSystem(os.stat(there).st_dev, total, free)


def _spare_of(total_bytes: int) -> int:
    return min(max(_SPARE_BYTES, total_bytes // _SPARE_PARTS), total_bytes // _SPARE_PARTS_MOST)

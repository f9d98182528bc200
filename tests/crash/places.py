"""Where nodes of the layer lie, and how large they are."""

import os
import shutil
import tempfile
from pathlib import Path

from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.limits import KIB, MIB
from tests.crash.node import Node, Setting
from tests.crash.nursery import Nursery

SEGMENT_BYTES = 64 * KIB
MEMORY, MEMORY_BYTES_MIN = Path("/dev/shm"), 256 * MIB


def memory_or(directory: Path) -> Path:
    """Return a new directory in memory, or this one where there is none.

    A killed process leaves there what it leaves on a disk, and syncs cost nothing.
    """
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        return directory
    return Path(tempfile.mkdtemp(prefix="kvd-", dir=MEMORY))


def made_node(
    nursery: Nursery, root: Path, segments: int, directories: int = 1, run: Path | None = None,
    *, cut_outside: bool = False,
) -> Node:  # fmt: skip
    """Return a node under `root`; its sockets are in `run`, if that shall be elsewhere."""
    paths = tuple(root / f"data{number}" for number in range(directories))
    for path in paths:
        path.mkdir(parents=True)
    # Smaller than a budget would choose, so that segments come and go all the time.
    for directory in open_directories(paths, SEGMENT_BYTES, OsFiles()):
        directory.release()
    budget = budget_of(segments, directories)
    return Node(nursery, Setting(root, run or root / "run", paths, budget, cut_outside=cut_outside))


def new_setting(root: Path, budget_bytes: int, directories: int) -> Setting:
    """Return a setting under `root` whose data directories are empty."""
    paths = tuple(root / f"data{number}" for number in range(directories))
    for path in paths:
        path.mkdir(parents=True)
    return Setting(root, root / "run", paths, budget_bytes)


def budget_of(segments: int, directories: int = 1) -> int:
    """Return the least budget for so many segments: they, a catalog, and what else there is."""
    return 4 * MIB + directories * 64 * KIB + segments * (SEGMENT_BYTES + 8 * KIB)

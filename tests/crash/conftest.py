"""One nursery for all tests of the layer, and nodes that end with their test."""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.limits import KIB, MIB
from tests.crash.node import Node, Setting
from tests.crash.nursery import Nursery
from tests.crash.tally import Tally

TALLY = pytest.StashKey[Tally]()
SEGMENT_BYTES = 64 * KIB
MEMORY, MEMORY_BYTES_MIN = Path("/dev/shm"), 256 * MIB


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def quick_directory(short_directory: Path) -> Iterator[Path]:
    """Yield a directory that `memory_or` gives."""
    path = memory_or(short_directory)
    yield path
    if path != short_directory:
        shutil.rmtree(path, ignore_errors=True)


def memory_or(directory: Path) -> Path:
    """Return a new directory in memory, or this one where there is none.

    A killed process leaves there what it leaves on a disk, and syncs cost nothing.
    """
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        return directory
    return Path(tempfile.mkdtemp(prefix="kvd-", dir=MEMORY))


@pytest.fixture
def new_node(
    nursery: Nursery, short_directory: Path, quick_directory: Path
) -> Iterator[Callable[..., Node]]:
    """Yield what makes a node of at most so many segments on so many data directories."""
    made: list[Node] = []

    def new(segments: int, directories: int = 1, *, disk: bool = False) -> Node:
        root = (short_directory if disk else quick_directory) / str(len(made))
        made.append(made_node(nursery, root, segments, directories))
        return made[-1]

    yield new
    for node in made:
        node.close()


def made_node(
    nursery: Nursery, root: Path, segments: int, directories: int = 1, run: Path | None = None
) -> Node:
    """Return a node under `root`; its sockets are in `run`, if that shall be elsewhere."""
    paths = tuple(root / f"data{number}" for number in range(directories))
    for path in paths:
        path.mkdir(parents=True)
    # Smaller than a budget would choose, so that segments come and go all the time.
    for directory in open_directories(paths, SEGMENT_BYTES, OsFiles()):
        directory.release()
    budget = budget_of(segments, directories)
    return Node(nursery, Setting(root, run or root / "run", paths, budget))


def budget_of(segments: int, directories: int = 1) -> int:
    """Return the least budget for so many segments: they, a catalog, and what else there is."""
    return 4 * MIB + directories * 64 * KIB + segments * (SEGMENT_BYTES + 8 * KIB)


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Tally:
    return request.config.stash.setdefault(TALLY, Tally())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(TALLY, Tally()).lines():
        terminalreporter.write_line(line)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    seed = request.config.getoption("seed")
    return random.Random(1 if seed is None else seed)

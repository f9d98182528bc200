"""One nursery for all tests of the layer, and nodes that end with their test."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.node import Node
from tests.crash.nursery import Nursery
from tests.crash.places import made_node, memory_or
from tests.crash.tally import Tally

TALLY = pytest.StashKey[Tally]()


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

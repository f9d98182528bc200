"""A control group of a test's own, version 1 or 2, with a bound on memory."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvd.host.groups import groups_of
from kvd.host.reading import Host, Unseen


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    path: Path
    version: int

    @property
    def enter(self) -> Callable[[], None]:
        """Return what puts the process that calls it into the group."""
        return lambda: (self.path / "cgroup.procs").write_text("0")

    def kills(self) -> int:
        """Return how many processes the kernel ended here for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        lines = (line.split() for line in (self.path / name).read_text().splitlines())
        return next(int(count) for word, count in lines if word == "oom_kill")


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Yield an empty group; skip the test where none may be made. Its processes end before it."""
    try:
        groups = groups_of(Host(), "memory")
    except Unseen as unseen:
        pytest.skip(f"no control groups: {unseen}")
    # In version 2 a group with processes has no groups below it that are bounded: beside it then.
    at = min(1, len(groups.directories) - 1) if groups.version == 2 else 0
    path = Path(groups.directories[at], f"kvd-test-{uuid.uuid4().hex}")
    name = "memory.max" if groups.version == 2 else "memory.limit_in_bytes"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group may be made: {error}")
    try:
        try:
            (path / name).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"no bound may be set: {error}")
        yield MemoryGroup(path, groups.version)
    finally:
        path.rmdir()

"""The budget under many times as much, and a file system that others fill."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvd.limits import KIB, MIB
from tests.crash.model import KEPT, Model
from tests.crash.node import Node
from tests.crash.places import SEGMENT_BYTES, made_node
from tests.crash.work import Work
from tests.e2e.process import DEADLINE_S
from tests.e2e.ssd_node import until
from tests.small import small_file_system

SEGMENTS = 12
TIMES = 10  # The budget's segments, written over.
PUT_S, LATE_S = 0.25, 1.0  # A put's deadline, and what a busy machine may add to it.
PROMPTS_AT_ONCE = 8  # Puts to memory between two that wait.


def test_ten_times_the_budget(new_node, chance):
    """What lies on disk never takes more, whatever is put; what is there in the end is right."""
    node = new_node(SEGMENTS, directories=2)
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    assert node.start()
    written = puts = 0
    while written < TIMES * SEGMENTS * SEGMENT_BYTES:
        puts += 1
        durability = "memory" if puts % PROMPTS_AT_ONCE else "disk"
        stored = model.put(node.client.keyspace(KEPT), work.invent(KEPT), durability, DEADLINE_S)
        written += stored.size_bytes
        assert stored.refused == 0 or stored.reason != "", stored
    work.look_at_all(node.client, "before the kill")
    node.watch.assert_within()
    samples = node.watch.samples
    node.end()
    code, found = node.check()
    assert code == 0, found
    model.restarted()
    assert node.start()
    work.look_at_all(node.client, "after the kill")
    assert not (model.wrong or model.lost), (model.wrong, model.lost)
    assert model.prompts_put and samples > puts
    node.watch.assert_within()


# ---- a small file system ----


@pytest.fixture
def small(tmp_path) -> Iterator[Path]:
    """Yield a file system of a few MiB of its own, or skip."""
    with small_file_system(tmp_path, 7 * MIB) as directory:
        yield directory


class Eater:
    """Another program: takes what is free, all of it but so many bytes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "eaten"

    def eat(self, left_bytes: int) -> None:
        """Take whatever is free but so much; a race with who else takes space is lost."""
        stat = os.statvfs(self._path.parent)
        free = stat.f_bavail * stat.f_frsize
        size = self._path.stat().st_size if self._path.exists() else 0
        with open(self._path, "ab") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, size + free - left_bytes))

    def give_back(self) -> None:
        self._path.unlink(missing_ok=True)


def test_a_file_system_that_others_fill(nursery, small, short_directory, chance):
    node = made_node(nursery, small / "kvd", 12, run=short_directory / "run")
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    eater = Eater(small)
    try:
        assert node.start(), node.daemon.lines
        for left_bytes in (MIB // 2, 0, 64 * KIB, 0):
            put_some(node, model, work)
            eater.eat(left_bytes)
            put_some(node, model, work)
            work.look_at_all(node.client, f"{left_bytes} bytes are left")
            assert_right(node, model)
            eater.give_back()
            until(lambda: durable(node, model, work), "there is room again")
        eater.eat(0)
        restart(node, model, work, "with no byte free")
        put_some(node, model, work)
        eater.give_back()
        until(lambda: durable(node, model, work), "there is room again")
        restart(node, model, work, "with room")
    finally:
        node.close()


def put_some(node: Node, model: Model, work: Work) -> None:
    """Put to memory and to disk; what is not durable is answered in time."""
    for durability in 4 * ("disk", "memory", "disk"):
        begin = time.monotonic()
        model.put(node.client.keyspace(KEPT), work.invent(KEPT), durability, PUT_S)
        assert time.monotonic() - begin < PUT_S + LATE_S, durability


def durable(node: Node, model: Model, work: Work) -> bool:
    return model.put(node.client.keyspace(KEPT), work.invent(KEPT), "disk", PUT_S).durable


def restart(node: Node, model: Model, work: Work, where: str) -> None:
    node.end()
    code, found = node.check()
    assert code == 0, (where, found)
    model.restarted()
    assert node.start(), node.daemon.lines
    work.look_at_all(node.client, where)
    assert_right(node, model)


def assert_right(node: Node, model: Model) -> None:
    bad = node.said_badly()
    assert node.lives() and not bad, bad
    assert not (model.wrong or model.lost), (model.wrong, model.lost, node.daemon.lines)
    node.watch.assert_within()

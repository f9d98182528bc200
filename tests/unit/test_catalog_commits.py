"""Changes are durable when they are reported, in order, and faults are values."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest

from kvd.catalog.committing import open_catalog
from kvd.catalog.contract import Changes, Table, map_bytes_of
from kvd.catalog.environment import Environment, make_environment
from kvd.catalog.loading import load_catalog
from kvd.clock import MonotonicClock
from kvd.errors import FaultKind
from kvd.format.records import Meta
from kvd.format.rows import keys_of
from kvd.limits import MIB, CatalogBounds
from tests.unit.catalog_scene import (
    DATA,
    DEADLINE_S,
    DIGEST,
    DIRECTORY,
    FOUNDATION,
    KEYSPACE,
    CatalogScene,
    rows_of,
    segments_of,
)


@pytest.fixture
def scene(tmp_path):
    scene = CatalogScene(tmp_path)
    yield scene
    scene.catalog.close()


def loaded(scene):
    return load_catalog(scene.path)


def test_a_fresh_catalog_is_empty_and_has_its_space(scene):
    contents = loaded(scene)
    assert contents.meta == Meta() and len(contents.rows) == len(contents.segments) == 0
    assert contents.keyspaces == contents.refused == {} and contents.purge.items == 0
    stat = (scene.path / "data.mdb").stat()
    assert stat.st_size == 4 * MIB and stat.st_blocks * 512 >= 4 * MIB
    assert (scene.path / "lock.mdb").stat().st_blocks > 0
    assert os.listdir(scene.path.parent) == ["catalog"]


def test_what_is_committed_is_found_again(scene):
    rows = rows_of(range(500))
    assert scene.commit(FOUNDATION) is None
    assert scene.commit(Changes(rows=rows, written=(20_000, 1 << 33))) is None
    scene.catalog.close()
    contents = loaded(scene)
    assert contents.meta == Meta(100, (DIRECTORY,), 20_000, 1 << 33)
    assert contents.keyspaces == {DIGEST: (KEYSPACE, "tenant")}
    assert (contents.segments == segments_of()).all() and contents.refused == {}
    assert {r.tobytes() for r in contents.rows} == {r.tobytes() for r in rows}
    keys = [key.tobytes() for key in keys_of(contents.rows)]
    assert keys == sorted(keys)
    scene.open()
    assert scene.commit(Changes(generation=200)) is None
    assert loaded(scene).meta.generation == 200


def test_drops_come_before_puts_and_puts_replace(scene):
    assert scene.commit(FOUNDATION) is None
    assert scene.commit(Changes(rows=rows_of(range(10)))) is None
    later = rows_of(range(3, 6), generation=9)
    drops = Changes(rows=later, dropped_rows=keys_of(rows_of(range(5))))
    assert scene.commit(drops) is None
    found = loaded(scene).rows
    assert found["heat"].tolist() == [n / 3 for n in range(3, 10)]
    assert found["generation"].tolist() == [9, 9, 9, 7, 7, 7, 7]
    gone = keys_of(rows_of([5, 77]))
    assert scene.commit(Changes(dropped_rows=gone, dropped=((Table.KEYSPACES, DIGEST),))) is None
    contents = loaded(scene)
    assert len(contents.rows) == 0 and contents.keyspaces == {}


def test_a_segment_row_is_replaced(scene):
    assert scene.commit(FOUNDATION) is None
    assert scene.commit(Changes(segments=segments_of(epoch=2))) is None
    assert loaded(scene).segments["epoch"].tolist() == [2, 2, 2]


def test_the_generation_only_grows(scene):
    for asked, expected in ((50, 50), (40, 50), (60, 60)):
        assert scene.commit(Changes(generation=asked)) is None
        assert loaded(scene).meta.generation == expected


def test_batches_that_wait_are_committed_together_in_order(scene, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    groups, apply = [], Environment.apply

    def slow(self, group):
        groups.append(len(group))
        entered.set()
        assert leave.wait(DEADLINE_S)
        apply(self, group)

    monkeypatch.setattr(Environment, "apply", slow)
    batches = [scene.ask(FOUNDATION)]
    assert entered.wait(DEADLINE_S)
    batches += [scene.ask(Changes(rows=rows_of([1], generation=g))) for g in range(1, 9)]
    assert scene.seen == []  # Nothing is said before it is synced.
    leave.set()
    assert [scene.answer(batch) for batch in batches] == [None] * 9
    assert groups == [1, 8] and len(scene.seen) == 2
    assert loaded(scene).rows["generation"].tolist() == [8]


def test_what_waits_is_bounded(tmp_path, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    apply = Environment.apply

    def slow(self, group):
        entered.set()
        assert leave.wait(DEADLINE_S)
        apply(self, group)

    monkeypatch.setattr(Environment, "apply", slow)
    scene = CatalogScene(tmp_path, bounds=CatalogBounds(batches_max=2, items_max=10))
    first = scene.ask(FOUNDATION)
    assert entered.wait(DEADLINE_S)
    waits = scene.ask(Changes(rows=rows_of(range(8))))
    assert scene.commit(Changes(rows=rows_of(range(8)))).kind == FaultKind.CANCELLED
    also = scene.ask(Changes(generation=5))
    assert scene.commit(Changes(generation=6)).kind == FaultKind.CANCELLED
    leave.set()
    assert [scene.answer(batch) for batch in (first, waits, also)] == [None] * 3
    scene.catalog.close()


def test_a_closed_catalog_answers(tmp_path, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    apply = Environment.apply

    def slow(self, group):
        entered.set()
        assert leave.wait(DEADLINE_S)
        apply(self, group)

    monkeypatch.setattr(Environment, "apply", slow)
    scene = CatalogScene(tmp_path, bounds=CatalogBounds(close_s=0.05))
    first = scene.ask(FOUNDATION)
    assert entered.wait(DEADLINE_S)
    waits = scene.ask(Changes(generation=5))
    scene.catalog.close()
    assert scene.answer(waits).kind == FaultKind.CANCELLED
    assert scene.commit(Changes(generation=6)).kind == FaultKind.CANCELLED
    leave.set()
    assert scene.answer(first) is None


# ---- a full map ----


def test_the_map_is_a_part_of_the_budget():
    assert map_bytes_of(16 << 30) == 256 * MIB and map_bytes_of(0) == 4 * MIB
    assert map_bytes_of((1 << 33) + 12_345) % 4096 == 0


def test_a_full_map_refuses_puts_and_lets_drops_through(tmp_path):
    scene = CatalogScene(tmp_path, map_bytes=MIB)
    assert scene.commit(FOUNDATION) is None
    stored, number = [], 0
    while True:
        fault = scene.commit(Changes(rows=rows_of(range(number, number + 100))))
        if fault is not None:
            break
        stored += range(number, number + 100)
        number += 100
    assert fault.kind == FaultKind.NO_SPACE and "budget" in fault.message
    assert len(stored) > 1500
    assert scene.commit(Changes(generation=10**6)) is None
    rng = np.random.default_rng(1)
    for _ in range(3):  # Full again and again: the way out must not wear off.
        dropped = rng.choice(stored, 600, replace=False)
        assert scene.commit(Changes(dropped_rows=keys_of(rows_of(dropped)))) is None
        stored = sorted(set(stored) - set(dropped.tolist()))
        while scene.commit(Changes(rows=rows_of(range(number, number + 50)))) is None:
            stored += range(number, number + 50)
            number += 50
    assert loaded(scene).rows["page"][:, 0].tolist() == [n + 1 for n in stored]
    assert scene.commit(Changes(dropped_rows=keys_of(rows_of(stored)))) is None
    assert len(loaded(scene).rows) == 0
    assert (scene.path / "data.mdb").stat().st_size == MIB
    scene.catalog.close()


def test_one_batch_that_is_too_large_leaves_the_others_of_its_group_alone(tmp_path, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    apply = Environment.apply

    def slow(self, group):
        entered.set()
        assert leave.wait(DEADLINE_S)
        apply(self, group)

    monkeypatch.setattr(Environment, "apply", slow)
    scene = CatalogScene(tmp_path, map_bytes=MIB)
    first = scene.ask(FOUNDATION)
    assert entered.wait(DEADLINE_S)
    small = scene.ask(Changes(rows=rows_of(range(10))))
    large = scene.ask(Changes(rows=rows_of(range(100, 20_000))))
    other = scene.ask(Changes(rows=rows_of(range(20, 30))))
    leave.set()
    assert [scene.answer(batch) for batch in (first, small, other)] == [None] * 3
    assert scene.answer(large).kind == FaultKind.NO_SPACE
    assert len(loaded(scene).rows) == 20
    scene.catalog.close()


def test_a_map_grows_when_asked_and_never_shrinks(tmp_path):
    for asked, expected in ((2 * MIB, 2 * MIB), (4 * MIB, 4 * MIB), (2 * MIB, 4 * MIB)):
        scene = CatalogScene(tmp_path, map_bytes=asked)
        assert scene.catalog.map_bytes == expected
        assert scene.commit(FOUNDATION) is None
        scene.catalog.close()
        assert (scene.path / "data.mdb").stat().st_size == expected


# ---- failures ----


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lmdb.Error("mdb_txn_commit"), FaultKind.IO),
        (lmdb.PanicError("mdb_txn_begin"), FaultKind.IO),
        (OSError(5, "Input/output error"), FaultKind.IO),
        (lmdb.DiskError("mdb_txn_commit"), FaultKind.NO_SPACE),
        (lmdb.CorruptedError("mdb_put"), FaultKind.FORMAT),
        (lmdb.PageNotFoundError("mdb_put"), FaultKind.FORMAT),
    ],
)
def test_a_failed_commit_is_a_fault_and_the_next_one_starts_afresh(scene, monkeypatch, error, kind):
    assert scene.commit(FOUNDATION) is None
    apply, failing = Environment.apply, [error]

    def broken(self, group):
        if failing:
            raise failing.pop()
        apply(self, group)

    monkeypatch.setattr(Environment, "apply", broken)
    fault = scene.commit(Changes(rows=rows_of([1])))
    assert fault.kind == kind and str(scene.path) in fault.message
    assert scene.commit(Changes(rows=rows_of([2]))) is None
    assert loaded(scene).rows["page"][:, 0].tolist() == [3]


def test_a_catalog_that_vanished_is_a_fault_until_it_is_back(scene, monkeypatch):
    assert scene.commit(FOUNDATION) is None
    apply, failing = Environment.apply, [lmdb.PanicError("mdb_txn_begin")]
    monkeypatch.setattr(
        Environment,
        "apply",
        lambda self, group: (_ for _ in ()).throw(failing.pop()) if failing else apply(self, group),
    )
    away = scene.path.with_name("away")
    scene.path.rename(away)
    assert scene.commit(Changes(generation=200)).kind == FaultKind.IO
    assert scene.commit(Changes(generation=200)).kind == FaultKind.GONE
    away.rename(scene.path)
    assert scene.commit(Changes(generation=200)) is None


def test_making_one_leaves_nothing_behind_when_it_fails(tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        fault = open_catalog(tmp_path / "catalog", MIB, lambda c: None, MonotonicClock())
    assert fault.kind == FaultKind.NO_SPACE and os.listdir(tmp_path) == []
    (tmp_path / "catalog.new").mkdir()
    (tmp_path / "catalog.new" / "data.mdb").write_bytes(b"half of one")
    make_environment(tmp_path / "catalog", MIB)
    assert os.listdir(tmp_path) == ["catalog"]


def test_a_map_that_cannot_grow_stays_as_it_is(tmp_path, monkeypatch):
    scene = CatalogScene(tmp_path, map_bytes=MIB)
    scene.catalog.close()
    allocate = os.posix_fallocate

    def small(descriptor, offset, size):
        if size > MIB:
            os.ftruncate(descriptor, size)
            raise OSError(28, "No space left on device")
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", small)
    scene = CatalogScene(tmp_path, map_bytes=8 * MIB)
    assert scene.catalog.map_bytes == (scene.path / "data.mdb").stat().st_size == MIB
    assert scene.commit(FOUNDATION) is None
    scene.catalog.close()


# ---- other processes ----

READER = """
import sys, lmdb
transaction = lmdb.open(sys.argv[1], readonly=True, max_dbs=16, max_readers=16).begin()
print(flush=True)
input()
"""


def test_slots_of_dead_readers_are_cleared_at_open_and_on_a_timer(tmp_path, monkeypatch):
    cleared, check = [], Environment.check_readers
    moved = threading.Condition()

    def told(self):
        with moved:
            cleared.append(check(self))
            moved.notify_all()

    monkeypatch.setattr(Environment, "check_readers", told)
    scene = CatalogScene(tmp_path, bounds=CatalogBounds(reader_check_s=0.01))
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(scene.path)], stdin=-1, stdout=-1
    ) as reader:
        reader.stdout.readline()
        reader.kill()
    with moved:
        assert moved.wait_for(lambda: 1 in cleared, DEADLINE_S)
    scene.catalog.close()


WRITER = """
import sys
import threading
from pathlib import Path
from kvd.catalog.committing import open_catalog
from kvd.catalog.contract import Changes
from kvd.clock import MonotonicClock
from tests.unit.catalog_scene import FOUNDATION, rows_of
from kvd.limits import MIB
under_way = threading.Semaphore(16)  # Far below the bound of the queue, however slow the disk.
def told(committed):
    assert committed.fault is None
    for batch in committed.batches:
        sys.stdout.write(f"{batch}\\n")
        under_way.release()
    sys.stdout.flush()
catalog = open_catalog(Path(sys.argv[1]), 4 * MIB, told, MonotonicClock())
catalog.commit(0, FOUNDATION)
for batch in range(1, 5000):
    under_way.acquire()
    catalog.commit(batch, Changes(rows=rows_of([batch, batch + 100_000])))
    if batch % 7 == 0:
        sys.stdin.readline()
"""


@pytest.mark.parametrize("after", [1, 9, 40])
def test_what_was_reported_survives_sigkill(tmp_path, after):
    path = tmp_path / "catalog"
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=root, stdin=-1, stdout=-1
    ) as writer:
        writer.stdin.write(b"\n" * 1000)
        writer.stdin.flush()
        acknowledged = [int(writer.stdout.readline()) for _ in range(after)]
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split(b"\n")
        acknowledged += [int(line) for line in rest[:-1]]
    contents = load_catalog(path)
    assert contents.refused == {}
    pages = set((contents.rows["page"][:, 0] - 1).tolist())
    for batch in acknowledged[1:]:
        assert {batch, batch + 100_000} <= pages
    assert all((page + 100_000 in pages) for page in pages if page < 100_000)
    scene = CatalogScene(tmp_path)
    assert scene.commit(replace(FOUNDATION, generation=1000)) is None
    scene.catalog.close()
    assert DATA

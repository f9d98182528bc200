"""The hand for the ssd tier: every effect is answered, and no memory goes while a disk uses it."""

import asyncio
import ctypes
import gc
import logging
import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kvd.catalog.environment import Environment
from kvd.catalog.loading import load_catalog
from kvd.clock import MonotonicClock
from kvd.core.disk_effects import (
    Commit,
    MakeSegment,
    MeasureSpace,
    ProbeDirectory,
    ReadStrips,
    RecycleSegment,
    RemoveSegment,
    RowKeys,
    StripColumns,
    WriteStrips,
)
from kvd.core.disk_events import (
    Committed,
    Probed,
    ReadReleased,
    SegmentDone,
    StripsRead,
    StripsWritten,
)
from kvd.core.effects import DestroySlab
from kvd.daemon import ssd as ssd_module
from kvd.daemon.crossing import Crossing
from kvd.daemon.hands import Hands
from kvd.daemon.health import Health
from kvd.daemon.recovery import find_tier
from kvd.daemon.ssd import SsdHand
from kvd.disk import contract
from kvd.errors import Fault, FaultKind, KvdError
from kvd.limits import PAGE_BYTES, CatalogBounds, Limits
from kvd.testing.tier_bench import At, Bench, rows_of
from kvd.types import PlaneClass
from tests.unit.disk_double import is_locked
from tests.unit.ssd_scene import DEADLINE_S, NAME, SLAB, SsdScene

ANCHOR = PlaneClass.ANCHOR
NOBODY = 77  # No slab.
NO_ROWS, NO_KEYS = rows_of([]), RowKeys((), np.zeros(0, np.uint32), [])


@pytest.fixture
def scene(tmp_path):
    scene = SsdScene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def hands(scene):
    return Hands(scene.arena, MonotonicClock(), Limits(), scene.events.append, scene.hand)


def strips_in(slab, count=2):
    def column(value, dtype):
        return np.full(count, value, dtype)

    return StripColumns(
        (NAME,), column(0, np.uint32), [bytes(32)] * count, column(0, np.uint8),
        column(5, np.uint64), column(1, np.uint64), column(9, np.uint64), column(0, np.uint32),
        column(0, np.uint8), column(1, np.uint32), column(1, np.uint32),
        np.arange(1, count + 1, dtype=np.uint64) * PAGE_BYTES, column(slab, np.uint32),
        np.arange(count, dtype=np.uint64) * PAGE_BYTES, column(PAGE_BYTES, np.uint32),
    )  # fmt: skip


# ---- faults at the border ----


@pytest.mark.parametrize("effect", [
    WriteStrips(3, strips_in(NOBODY)),
    ReadStrips(3, strips_in(NOBODY), 10**18),
    MakeSegment(3, 9, 1, 1, ANCHOR),
    RecycleSegment(3, 9, 1, 1, ANCHOR),
    RemoveSegment(3, 9, 1),
    ProbeDirectory(9),
    Commit(3, NO_ROWS, NO_KEYS, (), ((0, 1 << 40),), (), 0, (0, 0)),
], ids=lambda effect: type(effect).__name__)  # fmt: skip
def test_what_cannot_be_begun_is_answered_with_a_fault(scene, hands, effect):
    hands.carry_out([effect])
    [event] = scene.events
    match event:
        case StripsWritten(3, items, kinds, [fault]) | StripsRead(3, items, kinds, [fault], False):
            assert items.tolist() == [0, 1] and kinds.tolist() == [FaultKind.IO] * 2
        case SegmentDone(3, fault) | Committed(3, fault) | Probed(9, fault):
            pass
    assert fault.kind == FaultKind.IO and "Error" in fault.message


def test_space_that_cannot_be_asked_for_is_answered_too(scene, hands, monkeypatch):
    def fails(self):
        raise RuntimeError("no thread")

    monkeypatch.setattr("kvd.daemon.space.SpaceLook.ask", fails)
    hands.carry_out([MeasureSpace()])
    [event] = scene.events
    assert isinstance(event, Probed) and event.fault.kind == FaultKind.IO


def test_a_failure_behind_the_disks_back_is_a_bug(scene, hands, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("half of it is on its way")

    monkeypatch.setattr(scene.hand._disk, "read_strips", fails)
    with pytest.raises(AssertionError, match="half of it"):
        hands.carry_out([ReadStrips(3, strips_in(SLAB), 10**18)])
    assert scene.events == []


# ---- memory ----


class SlowDisk:
    """Keeps what it is asked for until a test answers."""

    def __init__(self, directories, report, clock):
        self.directories, self.report, self.asked = directories, report, []

    def write_strips(self, batch, places, names):
        self.asked.append(places)

    def read_strips(self, batch, places, names, deadline_ns):
        self.asked.append(places)

    def close(self):
        for directory in self.directories:
            directory.release()


@pytest.fixture
def slow(tmp_path):
    scene = SsdScene(tmp_path, SlowDisk)
    yield scene
    scene.close()


def answer(scene, kind, items, **more):
    items = np.array(items)
    scene.hand._disk.report(kind(3, items, np.zeros(len(items), np.uint8), (), **more))


def destroy(scene):
    scene.arena.destroy_slab(SLAB)
    scene.hand.forget_slab(SLAB)
    gc.collect()


def mapping_of(scene, use):
    [mapping] = scene.hand._memory._held[use, 3].mappings
    return weakref.ref(mapping.base)


def test_a_slab_that_is_being_written_from_stays_until_all_is_told(slow):
    slow.memory[:4] = 7
    slow.carry_out(WriteStrips(3, strips_in(SLAB)))
    [places] = slow.hand._disk.asked
    mapping = mapping_of(slow, ssd_module.Use.WRITE)
    destroy(slow)
    assert ctypes.string_at(int(places.addresses[0]), 4) == bytes([7] * 4)
    answer(slow, contract.StripsWritten, [1])
    gc.collect()
    assert mapping() is not None
    answer(slow, contract.StripsWritten, [0])
    gc.collect()
    assert mapping() is None
    assert [event.items.tolist() for event in slow.events] == [[1], [0]]


def test_a_slab_that_is_being_read_into_stays_until_it_is_left_alone(slow):
    slow.carry_out(ReadStrips(3, strips_in(SLAB), 10**18))
    [places] = slow.hand._disk.asked
    mapping = mapping_of(slow, ssd_module.Use.READ)
    destroy(slow)
    answer(slow, contract.StripsRead, [0], busy=False)
    answer(slow, contract.StripsRead, [1], busy=True)
    gc.collect()
    assert mapping() is not None
    ctypes.memmove(int(places.addresses[1]), b"late", 4)
    assert slow.memory[PAGE_BYTES : PAGE_BYTES + 4].tobytes() == b"late"
    slow.hand._disk.report(contract.ReadReleased(3, np.array([1])))
    gc.collect()
    assert mapping() is None
    assert isinstance(slow.events[-1], ReadReleased)


def test_hands_forget_a_destroyed_slab(slow):
    hands = Hands(slow.arena, MonotonicClock(), Limits(), slow.events.append, slow.hand)
    hands.carry_out([ReadStrips(3, strips_in(SLAB), 10**18)])
    mapping = mapping_of(slow, ssd_module.Use.READ)
    hands.carry_out([DestroySlab(SLAB)])
    answer(slow, contract.StripsRead, [0, 1], busy=False)
    gc.collect()
    assert mapping() is None


# ---- tables ----


def test_a_strip_too_short_for_its_table_is_not_written(scene):
    bench = Bench(scene)
    assert bench.make() is None
    strip = scene.make_strip(1, ANCHOR, 1)
    source = replace(strip, name=replace(NAME, cells=10_000))
    assert bench.write([source], [At(1)]) == [FaultKind.CHECKSUM]


def test_a_piece_too_short_for_its_table_is_read_unchecked(scene):
    bench = Bench(scene)
    assert bench.make() is None
    strip = scene.make_strip(1, ANCHOR, 2)
    assert bench.write([strip], [At(1)]) == [0]
    source = replace(strip, name=replace(NAME, cells=10_000))
    assert bench.read([source], [At(1)]) == ([0], [True])


# ---- the catalog ----


def test_every_commit_names_the_directories(scene):
    bench = Bench(scene)
    assert bench.commit() is None
    scene.hand.close()
    uuids = tuple(each.superblock.directory for each in scene.found.directories)
    assert load_catalog(scene.found.catalog).meta.directories == uuids
    scene.open()


def test_a_catalog_that_cannot_be_opened_lets_the_directories_go(scene, monkeypatch):
    scene.hand.close()
    found = find_tier(scene.settings)

    def fails(*arguments):
        return Fault(FaultKind.NO_SPACE, "no space left for it")

    monkeypatch.setattr(ssd_module, "open_catalog", fails)
    with pytest.raises(KvdError, match="no space left"):
        SsdHand(found, scene.arena, MonotonicClock(), scene.events.append)
    assert not any(is_locked(path / "lock") for path in scene.paths)
    monkeypatch.undo()
    scene.open()


def test_a_purge_that_fails_is_logged_and_not_told(scene, caplog):
    fault = Fault(FaultKind.NO_SPACE, "the catalog is full")
    scene.hand._on_committed(SimpleNamespace(batches=(-1, 4), fault=fault))
    assert scene.events == [Committed(4, fault)]
    assert "the catalog is full" in caplog.text


# ---- reports and the log ----


def test_reports_reach_the_loop_in_order_and_none_once_it_is_closed():
    async def main():
        loop, got = asyncio.get_running_loop(), []
        crossing = Crossing(loop)
        sender = threading.Thread(target=lambda: [crossing.call(got.append, n) for n in range(9)])
        sender.start()
        sender.join()
        await asyncio.sleep(0)
        assert got == list(range(9))
        crossing.call(got.append, 9)
        crossing.close()
        await asyncio.sleep(0)
        assert got == list(range(9))
        return crossing

    crossing = asyncio.run(main())
    crossing.call(print, "to nobody")


def test_degraded_and_well_again_are_said_once_each(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    health = Health([tmp_path / "a", tmp_path / "b"], tmp_path / "catalog")
    well, ill = SimpleNamespace(fault=None), SimpleNamespace(fault=Fault(FaultKind.IO, "it hums"))

    def look(*directories, catalog=None, full=None, event=None):
        caplog.clear()
        ssd = SimpleNamespace(directories=directories, catalog_fault=catalog, map_full=full)
        health.look(ssd, event)
        return [record.getMessage() for record in caplog.records]

    assert look(well, well) == []
    [said] = look(well, ill)
    assert "/b is degraded" in said and said.endswith("it hums")
    assert look(well, ill) == []
    assert len(look(ill, ill, catalog=Fault(FaultKind.IO, "bent"))) == 2
    lines = look(well, well, event=Committed(1, None))
    assert [line.split()[-2:] for line in lines] == [["works", "again"]] * 3
    # A full catalog is tried again now and then: well only once a commit went through.
    full = Fault(FaultKind.NO_SPACE, "no room")
    [said] = look(well, well, full=full, event=Committed(2, full))
    assert "catalog is degraded" in said and said.endswith("no room")
    assert look(well, well) == look(well, well, full=full, event=Committed(3, full)) == []
    assert len(look(well, well, event=Committed(4, None))) == 1


def test_a_directory_is_let_go_only_when_its_catalog_is_not_written_any_more(tmp_path, monkeypatch):
    scene = SsdScene(tmp_path)
    entered, leave = threading.Event(), threading.Event()
    apply = Environment.apply

    def hangs(self, group):
        entered.set()
        assert leave.wait(DEADLINE_S)
        apply(self, group)

    monkeypatch.setattr(Environment, "apply", hangs)
    monkeypatch.setattr(scene.hand._catalog, "_bounds", CatalogBounds(close_s=0.01))
    scene.carry_out(Commit(3, NO_ROWS, NO_KEYS, (), (), (), 1 << 20, (0, 0)))
    assert entered.wait(DEADLINE_S)
    scene.hand.close()
    assert all(is_locked(path / "lock") for path in scene.paths), "else two would write into it"
    leave.set()
    scene.arena.close()

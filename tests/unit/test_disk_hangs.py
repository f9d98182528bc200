"""Reads and writes that hang: answered by their deadline, and nobody else waits for them."""

import threading

import pytest

from kvd.disk.contract import ReadReleased, SegmentPlace, StripsRead, StripsWritten
from kvd.errors import FaultKind
from kvd.limits import PAGE_BYTES, DiskBounds
from kvd.testing.disk_conformance import GOOD, Bench
from kvd.testing.disk_strips import At, make_strip, names_of, places_of
from kvd.types import PlaneClass
from tests.unit.disk_double import DEADLINE_S, DiskRig

SOON_NS = 50_000_000
LATE_NS = 20 * 10**9
STRIP = make_strip(1)


class Gate:
    """A plan that lets calls on some files wait."""

    def __init__(self, name, files=("00000001",), behind=1):
        self._name, self._files, self._behind = name, files, behind
        self.leave, self.count, self._moved = threading.Event(), 0, threading.Condition()

    def __call__(self, call):
        if call.name == self._name and call.file in self._files and call.offset >= self._behind:
            with self._moved:
                self.count += 1
                self._moved.notify_all()
            return self.leave
        return None

    def wait_for(self, count):
        with self._moved:
            assert self._moved.wait_for(lambda: self.count >= count, DEADLINE_S)


class Scene:
    """A disk with one strip in each of some segments, whose calls a gate may hold."""

    def __init__(self, tmp_path, bounds=None, segments=3, count=1):
        self.rig = DiskRig(tmp_path, bounds=bounds, count=count)
        self.bench = Bench(self.rig)
        self.disk, self.reports = self.bench.disk, self.bench.reports
        self.memories = []
        for directory in range(count):
            for segment in range(1, segments + 1):
                assert self.bench.make(segment, directory) is None
                place = At(1, segment=segment, directory=directory)
                assert self.bench.write([STRIP], [place]) == [GOOD]

    def read(self, batch, wait_ns, *places):
        memories = [self.rig.memory(2 * PAGE_BYTES) for _ in places]
        self.memories += memories
        columns = places_of(list(places), [address for address, _ in memories])
        self.disk.read_strips(batch, columns, None, self.rig.now_ns() + wait_ns)

    def answer(self, batch):
        self.rig.settle(lambda: self.reports.of(StripsRead, batch))
        [report] = self.reports.of(StripsRead, batch)
        return report.kinds.tolist(), report.busy

    def hung(self, place):
        """Return a batch of one read that a thread had begun when its time was over."""
        while True:  # On a busy machine the time may be over before.
            batch = self.bench.number()
            self.read(batch, SOON_NS, place)
            kinds, busy = self.answer(batch)
            assert kinds == [FaultKind.TIMEOUT]
            if busy:
                return batch

    def released(self, batch):
        self.rig.settle(lambda: self.reports.of(ReadReleased, batch))
        [report] = self.reports.of(ReadReleased, batch)
        order = [type(r) for r in self.reports.seen if getattr(r, "batch", None) == batch]
        assert order == [StripsRead, ReadReleased]
        return report.items.tolist()


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("read-") and t.is_alive()]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_hung_read_is_late_and_its_memory_busy_until_it_returns(tmp_path):
    scene = Scene(tmp_path)
    scene.rig.files.plan = gate = Gate("preadv")
    batch = scene.hung(At(1))
    assert scene.reports.of(ReadReleased, batch) == []
    gate.leave.set()
    assert scene.released(batch) == [0]
    scene.disk.close()
    assert len(scene.reports.of(StripsRead, batch)) == 1


def test_hung_reads_do_not_keep_others_waiting(tmp_path):
    bounds = DiskBounds(read_threads=2, hung_threads_max=8)
    scene = Scene(tmp_path, bounds)
    scene.rig.files.plan = gate = Gate("preadv")
    batches = []
    for _ in range(6):
        batches.append(scene.hung(At(1)))
        assert scene.bench.read([At(1, segment=2)]) == ([GOOD], [STRIP.data])
    gate.leave.set()
    for batch in batches:
        assert scene.released(batch) == [0]
    assert scene.bench.read([At(1)]) == ([GOOD], [STRIP.data])
    scene.disk.close()


def test_threads_that_hang_keep_to_their_bound(tmp_path):
    scene = Scene(tmp_path, DiskBounds(read_threads=2, hung_threads_max=3))
    usual = len(readers())
    scene.rig.files.plan = gate = Gate("preadv")
    batches = [scene.hung(At(1)) for _ in range(5)]
    # Two and three threads hang now: nobody is left, so others are late without being begun.
    scene.read(201, SOON_NS, At(1, segment=2))
    assert scene.answer(201) == ([FaultKind.TIMEOUT], False)
    assert gate.count == 5 and len(readers()) == usual + 3
    gate.leave.set()
    for batch in batches:
        assert scene.released(batch) == [0]
    assert scene.bench.read([At(1, segment=2)]) == ([GOOD], [STRIP.data])
    scene.disk.close()


def test_one_directory_that_hangs_leaves_the_other_alone(tmp_path):
    scene = Scene(tmp_path, DiskBounds(read_threads=1, hung_threads_max=0), segments=1, count=2)
    gate, first = Gate("preadv"), str(tmp_path / "0")
    scene.rig.files.plan = lambda call: gate(call) if call.path.startswith(first) else None
    batch = scene.hung(At(1))
    assert scene.bench.read([At(1, directory=1)]) == ([GOOD], [STRIP.data])
    gate.leave.set()
    scene.released(batch)
    scene.disk.close()


def test_an_open_or_a_head_that_hangs_is_a_hung_read(tmp_path):
    for name in ("open", "preadv"):
        scene = Scene(tmp_path / name)
        assert scene.bench.recycle(epoch=2) is None  # So that the file is opened again.
        scene.rig.files.plan = gate = Gate(name, behind=0)
        batch = scene.hung(At(1, epoch=2))
        assert scene.bench.read([At(1, segment=2)]) == ([GOOD], [STRIP.data])
        gate.leave.set()
        assert scene.released(batch) == [0]
        scene.disk.close()


def test_a_read_that_comes_back_too_late_for_its_epoch_is_stale(tmp_path):
    scene = Scene(tmp_path)
    scene.rig.files.plan = gate = Gate("preadv")
    scene.read(101, LATE_NS, At(1))
    gate.wait_for(1)
    assert scene.bench.recycle(epoch=2) is None
    gate.leave.set()
    assert scene.answer(101) == ([FaultKind.GONE], False)
    scene.disk.close()


def test_closing_does_not_wait_for_what_hangs(tmp_path):
    scene = Scene(tmp_path, DiskBounds(read_threads=1, close_ns_max=SOON_NS))
    scene.rig.files.plan = gate = Gate("preadv")
    scene.read(101, LATE_NS, At(1))
    gate.wait_for(1)
    scene.read(102, LATE_NS, At(1, segment=2))
    scene.disk.close()
    assert scene.answer(102) == ([FaultKind.CANCELLED], False)
    assert scene.answer(101) == ([FaultKind.CANCELLED], True)
    gate.leave.set()
    assert scene.released(101) == [0]


def test_a_write_that_hangs_keeps_the_directory_locked(tmp_path):
    scene = Scene(tmp_path, DiskBounds(close_ns_max=SOON_NS))
    scene.rig.files.plan = gate = Gate("pwritev")
    address, memory = scene.rig.memory(2 * PAGE_BYTES)
    memory.put(STRIP.data)
    for batch in (101, 102):
        scene.disk.write_strips(batch, places_of([At(1)], [address]), names_of([STRIP]))
    gate.wait_for(1)
    assert scene.bench.read([At(1, segment=2)]) == ([GOOD], [STRIP.data])
    scene.disk.make_segment(103, SegmentPlace(0, 9, 1, PlaneClass.ANCHOR))
    scene.disk.close()
    assert scene.reports.kinds(StripsWritten, 102) == [FaultKind.CANCELLED]
    assert scene.reports.of(StripsWritten, 101) == []
    assert scene.rig.is_locked()
    gate.leave.set()
    scene.rig.settle(lambda: scene.reports.of(StripsWritten, 101))
    assert scene.reports.kinds(StripsWritten, 101) == [GOOD]
    scene.rig.release()


def test_answered_batches_are_not_kept_until_their_deadline(tmp_path):
    scene = Scene(tmp_path)
    for _ in range(200):
        assert scene.bench.read([At(1)])[0] == [GOOD]
    assert len(scene.disk._readers._due) < 150
    scene.disk.close()


def test_reads_beyond_the_bound_are_answered_at_once(tmp_path):
    bounds = DiskBounds(read_threads=1, read_queue_items_max=3, job_bytes=2 * PAGE_BYTES)
    scene = Scene(tmp_path, bounds)
    scene.rig.files.plan = gate = Gate("preadv")
    scene.read(101, LATE_NS, At(1))
    gate.wait_for(1)
    scene.read(102, LATE_NS, *[At(1, segment=2)] * 5)
    kinds = [k for r in scene.reports.of(StripsRead, 102) for k in r.kinds.tolist()]
    assert kinds == [FaultKind.CANCELLED] * 2
    gate.leave.set()
    scene.rig.settle(lambda: len(scene.reports.items(StripsRead, 102)) == 5)
    assert sorted(scene.reports.kinds(StripsRead, 102)) == [GOOD] * 3 + [FaultKind.CANCELLED] * 2
    scene.disk.close()

"""Where a read failed, readers may be in the middle of what had come: its place is let be (I4)."""

import numpy as np
import pytest

from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core.events import ReleaseWanted
from kvd.core.transitions import StripState
from kvd.errors import FaultKind
from kvd.limits import PAGE_BYTES
from kvd.testing.scene import chain_of
from tests.unit.disk_scene import DiskScene, demote, fault_of

FAILED = 4  # Of nine strips: the residual of the second chunk.


@pytest.fixture
def scene() -> DiskScene:
    scene = DiskScene()
    scene.session, scene.chain = scene.join(), chain_of(3)
    scene.put(scene.session, scene.chain)
    scene.save()
    demote(scene)
    return scene


def fail(scene: DiskScene, *, busy: bool = False) -> tuple[asked.ReadStrips, int]:
    """Have one strip of a fetch fail; return what was read, and the fetch's lease."""
    lease = scene.fetch(scene.session, scene.chain).lease
    read, kind = scene.take(asked.ReadStrips), FaultKind.TIMEOUT if busy else FaultKind.IO
    good = np.delete(np.arange(read.strips.count), FAILED)
    none = np.zeros(len(good), np.uint8)
    scene.tell(told.StripsRead(read.batch, good, none, (), False))
    late = np.array([FAILED]), np.array([kind], np.uint8), (fault_of(kind),)
    scene.tell(told.StripsRead(read.batch, *late, busy))
    return read, lease


def places_of(promise) -> set[tuple[int, int]]:
    lane = promise.lanes[0]
    columns = zip(lane.slabs, lane.offsets, strict=True)
    pairs = [zip(s.tolist(), o.tolist(), strict=True) for s, o in columns]
    return {place for pair in pairs for place in pair}


def place_of(read: asked.ReadStrips) -> tuple[int, int]:
    return int(read.strips.slabs[FAILED]), int(read.strips.offsets[FAILED])


def test_what_failed_is_kept_for_who_has_some_of_it(scene: DiskScene) -> None:
    read, lease = fail(scene)
    assert scene.state.bytes_in(StripState.FREEING) == PAGE_BYTES
    again = scene.fetch(scene.session, scene.chain)
    assert again.counts == (3, 3, 3)
    assert place_of(read) not in places_of(again), "a reader is still there"
    scene.settle()
    scene.release(scene.session, again.lease)
    scene.release(scene.session, lease)
    assert scene.state.bytes_in(StripState.FREEING) == 0


def test_what_hung_is_kept_when_it_came_back_as_well(scene: DiskScene) -> None:
    read, lease = fail(scene, busy=True)
    assert scene.state.bytes_in(StripState.QUARANTINED) == PAGE_BYTES
    scene.tell(told.ReadReleased(read.batch, np.array([FAILED])))
    assert scene.state.bytes_in(StripState.QUARANTINED) == 0
    assert scene.state.bytes_in(StripState.FREEING) == PAGE_BYTES
    scene.release(scene.session, lease)
    assert scene.state.bytes_in(StripState.FREEING) == 0


def test_what_failed_with_no_reader_is_free_at_once(scene: DiskScene) -> None:
    lease = scene.fetch(scene.session, scene.chain).lease
    read = scene.take(asked.ReadStrips)
    none = np.zeros(0, np.uint32)
    scene.tell(ReleaseWanted(scene.number(), scene.session, lease, none))
    free = scene.state.bytes_in(StripState.FREE)
    scene.answer(read, fault_of(FaultKind.IO))
    assert scene.state.bytes_in(StripState.FREEING) == 0
    assert scene.state.bytes_in(StripState.FREE) == free + 9 * PAGE_BYTES

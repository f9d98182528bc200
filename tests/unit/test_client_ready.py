"""Mapped fetches of strips that are still read from disk, against a scripted daemon.

The slab is blank where nothing was read: whoever looks there too early finds wrong bytes.
"""

import numpy as np
import pytest

from kvd.client import EXACT, Arrival, PlaneClass, Reason
from kvd.errors import ErrorKind
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import WHOLE, FrameKind
from tests.unit.client_disk import (
    ALL,
    CHUNKS,
    LAYERS,
    asked,
    disk,
    done,
    good,
    looked_up,
    opened,
    stage,
)
from tests.unit.client_peer import DEADLINE_S, LEASE
from tests.unit.test_client_session import until

__all__ = ["disk", "stage"]  # Fixtures.

PLANES = (4, 8, EXACT)  # What the leading classes give.


# ---- arrivals ----


def test_layers_arrive_with_the_pieces_that_they_end_in(stage, disk):
    fetch, number = opened(stage, disk)
    assert fetch.counts == (CHUNKS,) * 3 and fetch.delivered_bytes == 0
    seen, heard = iter(fetch.arrivals()), []
    fetch.on_arrival(heard.append)
    told: list[Arrival] = []
    for plane_class in PlaneClass:
        assert good(fetch, disk, (0, 1), PLANES[plane_class]) == 0
        for _ in range(disk.pieces[plane_class]):
            before = disk.layers(plane_class)
            disk.read(plane_class)
            now = disk.layers(plane_class)
            stage.peer.ready(number, *disk.ready)
            if now == before:
                continue
            told.append(next(seen))
            assert told[-1] == Arrival(plane_class, before, now)
            assert good(fetch, disk, (before, now), PLANES[plane_class]) == CHUNKS
            if now < LAYERS:
                assert good(fetch, disk, (before, now + 1), PLANES[plane_class]) == 0
    assert len(told) > 3, "some class came in steps"
    assert fetch.delivered_bytes == sum(fetch.class_bytes)
    stage.peer.reply(number, pb.FetchDone())
    assert list(seen) == [] and fetch.error is None and fetch.reason == Reason.NONE
    assert good(fetch, disk) == CHUNKS and fetch.verify(3) == CHUNKS
    until(lambda: heard == told, "all is heard")
    assert stage.client.status().counters.checksum_failures == 0


def test_what_is_in_memory_has_arrived_with_the_promise(stage, disk):
    disk.read_class(0)
    disk.read(1)
    opening, number, _ = asked(stage, disk)
    stage.peer.tell(*disk.strips.given())
    stage.peer.promise(number, disk.promise(WHOLE, 1, 0))
    fetch = opening.result(DEADLINE_S)
    seen = iter(fetch.arrivals())
    assert next(seen) == Arrival(PlaneClass.ANCHOR, 0, LAYERS)
    assert next(seen) == Arrival(PlaneClass.RESIDUAL, 0, disk.layers(1))
    assert good(fetch, disk, planes=4) == CHUNKS
    assert good(fetch, disk, (0, disk.layers(1)), 8) == CHUNKS
    assert good(fetch, disk, (0, 1)) == 0
    disk.read_class(1)
    disk.read_class(2)
    stage.peer.ready(number, WHOLE, WHOLE, WHOLE)
    assert [arrival.plane_class for arrival in (next(seen), next(seen))] == [1, 2]
    assert good(fetch, disk) == CHUNKS


@pytest.mark.parametrize("ready", [(), (WHOLE,) * 3])
def test_a_promise_of_what_is_there_has_arrived_at_once(stage, disk, ready):
    for plane_class in PlaneClass:
        disk.read_class(plane_class)
    opening, number, _ = asked(stage, disk)
    stage.peer.tell(*disk.strips.given())
    promise = disk.promise()
    promise.ready = bytes(ready)
    stage.peer.promise(number, promise)
    fetch = opening.result(DEADLINE_S)
    assert fetch.delivered_bytes == sum(fetch.class_bytes)
    assert list(fetch.arrivals()) == [Arrival(c, 0, LAYERS) for c in PlaneClass]
    assert good(fetch, disk) == CHUNKS


def test_layers_that_overtook_those_before_wait_for_them(stage, disk):
    fetch, number = opened(stage, disk)
    seen = iter(fetch.arrivals())
    disk.read_class(2)
    disk.read_class(0)
    stage.peer.ready(number, 0, 0, WHOLE)
    looked_up(stage)
    assert good(fetch, disk, (0, 1)) == 0
    stage.peer.ready(number, WHOLE, 0, WHOLE)
    assert next(seen) == Arrival(PlaneClass.ANCHOR, 0, LAYERS)
    disk.read(1)
    stage.peer.ready(number, WHOLE, 1, WHOLE)
    for plane_class in (PlaneClass.RESIDUAL, PlaneClass.EXACT):
        assert next(seen) == Arrival(plane_class, 0, disk.layers(1))
    assert good(fetch, disk, (0, disk.layers(1))) == CHUNKS


def test_a_class_without_chunks_is_not_waited_for(stage, disk):
    disk.read_class(0)
    opening, number, _ = asked(stage, disk, class_count=1)
    promise = disk.promise(WHOLE, 0, 0)
    lane = promise.lanes[0]
    promise.counts = np.array([CHUNKS, 0, 0], "<u4").tobytes()
    for name, width in (("slabs", 4), ("offsets", 8), ("sizes", 4), ("roots", 8)):
        setattr(lane, name, getattr(lane, name)[: width * CHUNKS])
    stage.peer.tell(*disk.strips.given())
    stage.peer.promise(number, promise)
    fetch = opening.result(DEADLINE_S)
    assert len(list(fetch.arrivals())) == 1


def test_pieces_may_be_ready_before_the_slab_is_mapped(stage, disk):
    opening, number, _ = asked(stage, disk)
    stage.peer.promise(number, disk.promise())
    disk.read_class(0)
    disk.read(1)
    stage.peer.ready(number, *disk.ready)
    looked_up(stage)
    assert not opening.done()
    stage.peer.tell(*disk.strips.given())
    fetch = opening.result(DEADLINE_S)
    assert next(iter(fetch.arrivals())) == Arrival(PlaneClass.ANCHOR, 0, LAYERS)
    assert good(fetch, disk, planes=4) == CHUNKS and good(fetch, disk, (0, 1)) == 0


@pytest.mark.parametrize("counts", [(3, 3, 3), (3, 3, 1), (0, 0, 0)])
def test_the_end_may_come_before_the_slab_is_mapped(stage, disk, counts):
    opening, number, _ = asked(stage, disk)
    stage.peer.promise(number, disk.promise())
    for plane_class in PlaneClass:
        disk.read_class(plane_class)
    stage.peer.reply(number, pb.FetchDone() if counts == (3, 3, 3) else done(counts))
    looked_up(stage)
    stage.peer.tell(*disk.strips.given())
    fetch = opening.result(DEADLINE_S)
    assert fetch.counts == counts and fetch.error is None
    assert len(list(fetch.arrivals())) == sum(count > 0 for count in counts)
    assert good(fetch, disk) == counts[2]


def test_progress_renews_the_lease(stage, disk):
    opening, number, _ = asked(stage, disk)
    stage.peer.tell(*disk.strips.given())
    promise = disk.promise()
    promise.lease_ms = 600
    stage.peer.promise(number, promise)
    opening.result(DEADLINE_S)
    disk.read(0)
    stage.peer.ready(number, *disk.ready)
    assert stage.peer.take(FrameKind.RENEW, pb.RenewRequest)[1].lease == LEASE


def test_a_damaged_table_comes_last_and_is_not_good(stage, disk):
    last_of_layer = int(disk.strips.offsets[1, 0]) + 3 * 16
    fetch, number = opened(stage, disk)
    seen = iter(fetch.arrivals())
    disk.read(0)
    disk.strips.memory[last_of_layer : last_of_layer + 4] = 255
    stage.peer.ready(number, *disk.ready)
    looked_up(stage)
    assert good(fetch, disk, (0, 1), 4) == 0
    disk.read_class(0)
    stage.peer.ready(number, WHOLE, 0, 0)
    assert next(seen) == Arrival(PlaneClass.ANCHOR, 0, LAYERS)
    assert good(fetch, disk, planes=4) == 1
    fetch.release()
    kind = 0
    while kind != FrameKind.RELEASE:
        kind, _, body = stage.peer.receive()
    assert np.frombuffer(pb.ReleaseRequest.FromString(body).corrupt, "<u4").tolist() == [1]


# ---- ends before everything ----


@pytest.mark.parametrize("counts", [(3, 3, 2), (3, 1, 1), (1, 1, 0), (0, 0, 0)])
def test_what_could_not_be_read_is_not_counted(stage, disk, counts):
    fetch, number = opened(stage, disk)
    seen = iter(fetch.arrivals())
    disk.read(0)
    stage.peer.ready(number, *disk.ready)
    first = next(seen)
    for plane_class in PlaneClass:
        disk.read_class(plane_class, but=counts[plane_class])
    stage.peer.reply(number, done(counts))
    rest = list(seen)
    assert fetch.counts == counts
    assert fetch.reason == Reason.READ_FAILED and fetch.error is None
    ends = {arrival.plane_class: arrival.layer_end for arrival in (first, *rest)}
    for plane_class in PlaneClass:
        assert not counts[plane_class] or ends[plane_class] == LAYERS
        assert good(fetch, disk, planes=PLANES[plane_class]) == counts[plane_class]
        # The count at the promise is no mistake of the caller's: it may be all that he knows.
        wanted = {"planes": PLANES[plane_class], "chunks": (0, CHUNKS)}
        assert good(fetch, disk, **wanted) == counts[plane_class]
        wanted["chunks"] = (counts[plane_class], CHUNKS)
        assert fetch.decode(ALL, targets=disk.strips.targets(), **wanted) == 0
        assert fetch.verify(plane_class + 1) == counts[plane_class]
    assert stage.client.status().counters.misses == {"READ_FAILED": 1}
    assert stage.client.status().counters.checksum_failures == 0
    fetch.release()
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].corrupt == b""


def test_who_reads_too_early_what_could_not_be_read_blames_nobody(stage, disk):
    """A daemon may say that all it has is ready before it says that it has less."""
    fetch, number = opened(stage, disk)
    for plane_class in PlaneClass:
        disk.read_class(plane_class, but=1 if plane_class == 2 else None)
    stage.peer.ready(number, WHOLE, WHOLE, WHOLE)
    seen = iter(fetch.arrivals())
    assert [next(seen).plane_class for _ in PlaneClass] == list(PlaneClass)
    assert good(fetch, disk) == 1
    stage.peer.reply(number, done((3, 3, 1)))
    assert list(seen) == [] and fetch.counts == (3, 3, 1)
    assert good(fetch, disk) == 1
    fetch.release()
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].corrupt == b""


def test_at_the_daemons_deadline_what_arrived_stays_good(stage, disk):
    fetch, number = opened(stage, disk)
    disk.read_class(0)
    disk.read(1)
    stage.peer.ready(number, *disk.ready)
    stage.peer.refuse(number, pb.LATE)
    assert len(list(fetch.arrivals())) == 2
    assert fetch.error.kind == ErrorKind.LATE
    assert fetch.counts == (CHUNKS,) * 3 and fetch.reason == Reason.NONE
    assert good(fetch, disk, planes=4) == CHUNKS
    assert good(fetch, disk, (0, disk.layers(1)), 8) == CHUNKS
    assert good(fetch, disk) == 0
    fetch.release()
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == LEASE


def test_at_the_clients_deadline_what_arrived_stays_good(stage, disk):
    fetch, number = opened(stage, disk, deadline_s=0.3)
    disk.read_class(0)
    stage.peer.ready(number, *disk.ready)
    assert list(fetch.arrivals()) == [Arrival(PlaneClass.ANCHOR, 0, LAYERS)]
    assert fetch.error.kind == ErrorKind.LATE
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    # What the daemon says of it afterwards is too late to be of use.
    stage.peer.ready(number, WHOLE, WHOLE, WHOLE)
    stage.peer.reply(number, done((1, 1, 1)))
    looked_up(stage)
    assert good(fetch, disk, planes=4) == CHUNKS and fetch.counts == (CHUNKS,) * 3


def test_a_daemon_that_dies_ends_the_arrivals_and_all_that_is_good(stage, disk):
    fetch, number = opened(stage, disk)
    disk.read_class(0)
    stage.peer.ready(number, *disk.ready)
    seen = iter(fetch.arrivals())
    next(seen)
    stage.peer.hang_up()
    assert list(seen) == []
    assert fetch.error.kind == ErrorKind.LOST
    assert good(fetch, disk, planes=4) == 0
    fetch.release()


def test_a_fetch_released_on_its_way_is_cancelled(stage, disk):
    fetch, number = opened(stage, disk)
    fetch.release()
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == LEASE
    assert list(fetch.arrivals()) == []
    stage.peer.ready(number, 1, 0, 0)
    stage.peer.refuse(number, pb.LATE)
    looked_up(stage)
    assert stage.client.status().connected

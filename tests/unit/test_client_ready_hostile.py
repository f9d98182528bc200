"""Daemons of another mind about what is ready, and how a fetch ended: against a scripted one."""

import numpy as np
import pytest

from kvd.client import Arrival, Delivery, PlaneClass, Reason
from kvd.errors import ErrorKind
from kvd.limits import (
    MIB,
    PAGE_BYTES,
    READ_PIECE_BYTES_MIN,
    READ_PIECES_MAX,
)
from kvd.pieces import read_piece_bytes
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import WHOLE
from tests.unit.client_disk import CHUNKS, LAYERS, asked, disk, done, good, opened, stage
from tests.unit.client_peer import DEADLINE_S
from tests.unit.test_client_session import until

__all__ = ["disk", "stage"]  # Fixtures.


def test_an_unknown_reason_means_no_more_than_the_counts(stage, disk):
    fetch, number = opened(stage, disk)
    for plane_class in PlaneClass:
        disk.read_class(plane_class)
    stage.peer.reply(number, done((2, 2, 2), reason=77))
    list(fetch.arrivals())
    assert fetch.counts == (2, 2, 2) and fetch.reason == Reason.UNAVAILABLE
    assert fetch.error is None and good(fetch, disk) == 2


@pytest.mark.parametrize(
    "end",
    [done((4, 3, 3)), done((3, 3, 4)), done((1, 2, 1)), pb.FetchDone(reason=pb.READ_FAILED),
     pb.FetchDone(reason=pb.READ_FAILED, counts=b"123")],
)  # fmt: skip
def test_an_end_that_cannot_be_meant_ends_the_fetch_and_leaves_what_arrived(stage, disk, end):
    fetch, number = opened(stage, disk)
    disk.read_class(0)
    stage.peer.ready(number, *disk.ready)
    stage.peer.reply(number, end)
    assert list(fetch.arrivals()) == [Arrival(PlaneClass.ANCHOR, 0, LAYERS)]
    assert fetch.error.kind == ErrorKind.INCOMPATIBLE
    assert good(fetch, disk, planes=4) == CHUNKS and good(fetch, disk) == 0
    assert stage.client.status().connected


@pytest.mark.parametrize("ready", [(1, 2, 0), (2, 1, 0), (), (2, 2), (2, 2, 2, 2)])
def test_pieces_that_are_not_there_any_more_end_the_session(stage, disk, ready):
    fetch, number = opened(stage, disk)
    disk.read(0, 2)
    disk.read(1, 2)
    stage.peer.ready(number, *disk.ready)
    stage.peer.ready(number, *ready)
    list(fetch.arrivals())
    assert fetch.error.kind == ErrorKind.INCOMPATIBLE
    until(lambda: not stage.client.status().connected, "the session ended")
    assert good(fetch, disk, (0, 1), 4) == 0


def test_pieces_of_nothing_end_the_session(stage, disk):
    opening, number, _ = asked(stage, disk)
    stage.peer.ready(number, 1, 0, 0)
    assert opening.result(DEADLINE_S).reason in (Reason.INCOMPATIBLE, Reason.LOST)
    until(lambda: not stage.client.status().connected, "the session ended")


def test_a_promise_with_too_few_numbers_is_a_miss(stage, disk):
    opening, number, _ = asked(stage, disk)
    stage.peer.promise(number, disk.promise(1, 0))
    assert opening.result(DEADLINE_S).reason in (Reason.INCOMPATIBLE, Reason.LOST)


def test_byte_delivery_goes_by_its_pieces_alone(stage, disk):
    opening, number, _ = asked(stage, disk, delivery=Delivery.BYTES)
    stage.peer.promise(number, disk.promise())
    fetch = opening.result(DEADLINE_S)
    stage.peer.ready(number, WHOLE, WHOLE, WHOLE)
    stage.peer.ready(number, 0, 0, 0)
    stage.peer.reply(number, done((2, 2, 0)))
    assert list(fetch.arrivals()) == []
    assert fetch.error is None
    assert fetch.counts == (2, 2, 0) and fetch.reason == Reason.READ_FAILED
    assert good(fetch, disk, planes=4) == 0


def test_pieces_are_as_long_as_the_daemon_reads_them():
    rng = np.random.default_rng(7)
    sizes = rng.integers(1, 1 << 14, 500) * PAGE_BYTES
    most = READ_PIECES_MAX * READ_PIECE_BYTES_MIN
    sizes[:4] = PAGE_BYTES, 8 * MIB, most, most + PAGE_BYTES
    pieces = read_piece_bytes(sizes.astype(np.uint32)).tolist()
    pages = [-(-size // (READ_PIECES_MAX * PAGE_BYTES)) for size in sizes.tolist()]
    assert pieces == [max(READ_PIECE_BYTES_MIN, each * PAGE_BYTES) for each in pages]
    assert pieces == [read_piece_bytes(size) for size in sizes.tolist()]

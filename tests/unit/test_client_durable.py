"""The SDK's puts to disk against a scripted daemon: what is said to be durable is."""

import pytest

from kvd.client import Reason
from kvd.limits import PAGE_BYTES
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import DEADLINE_S, Stage, Strips
from tests.unit.test_client_put import (
    COUNT,
    RESERVATION,
    asked,
    give,
    reserved,
    seals,
    slab,
    strips,
)
from tests.unit.test_client_session import counts_reply

__all__ = ["slab", "strips"]  # Fixtures.

HAD = [pb.HAVE] * COUNT


def put_to_disk(stage: Stage, strips: Strips, slab, *, durable: bool, **how):
    """Script a put to disk up to its last seal; return its future."""
    putting, number, request = asked(stage, strips, durability="disk", **how)
    assert request.durability == pb.DURABILITY_DISK
    give(stage, slab)
    stage.peer.reply(number, reserved(request))
    taken = seals(stage, durable=durable)
    assert all(0 < seal.deadline_ms < 1000 * DEADLINE_S for seal in taken), "answered in time"
    return putting


def asked_again(stage: Stage):
    """Take the question whether all of the put is on disk; return number and request."""
    number, request = stage.peer.take(FrameKind.RESERVE, pb.ReserveRequest)
    assert request.durability == pb.DURABILITY_DISK and len(request.chain) == 32 * COUNT
    assert request.sizes == PAGE_BYTES.to_bytes(4, "little") * 3 * COUNT
    return number, request


def sealed_nothing(stage: Stage, *, durable: bool) -> None:
    """Answer the seal that waits for chunks that are had."""
    number, seal = stage.peer.take(FrameKind.SEAL, pb.SealRequest)
    assert (seal.reservation, seal.first, seal.last) == (RESERVATION, 0, True)
    assert seal.sizes == seal.roots == b"" and seal.deadline_ms > 0
    stage.peer.reply(number, pb.SealReply(durable=durable))


def test_what_its_seals_say_is_durable_is_not_asked_about(stage, strips, slab):
    putting = put_to_disk(stage, strips, slab, durable=True)
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.reason, stored.durable) == (COUNT, Reason.NONE, True)


def test_a_put_to_memory_waits_for_no_disk(stage, strips, slab):
    putting, number, request = asked(stage, strips)
    assert request.durability == pb.DURABILITY_MEMORY
    give(stage, slab)
    stage.peer.reply(number, reserved(request))
    assert [seal.deadline_ms for seal in seals(stage, durable=True)] == [0]
    assert not putting.result(DEADLINE_S).durable


@pytest.mark.parametrize("durable", [True, False])
def test_what_was_there_before_is_waited_for(stage, strips, durable):
    putting = stage.start(stage.space.put, strips.chain, strips.tensors, durability="disk")
    stage.peer.take_keyspace()
    number, _ = stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)
    stage.peer.reply(number, counts_reply(COUNT, COUNT, COUNT))
    number, request = asked_again(stage)
    stage.peer.reply(number, reserved(request, HAD, reservation=RESERVATION))
    sealed_nothing(stage, durable=durable)
    stored = putting.result(DEADLINE_S)
    assert (stored.had, stored.refused, stored.durable) == (COUNT, 0, durable)


def test_what_is_on_disk_already_needs_no_seal(stage, strips):
    prepared = stage.space.prepare(strips.tensors)
    putting = stage.start(stage.space.put_strips, strips.chain, prepared, durability="disk")
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.RESERVE, pb.ReserveRequest)
    stage.peer.reply(number, reserved(request, HAD))
    number, request = asked_again(stage)
    stage.peer.reply(number, reserved(request, HAD))
    stored = putting.result(DEADLINE_S)
    assert (stored.had, stored.durable) == (COUNT, True)


def test_a_put_in_two_parts_is_asked_about_as_a_whole(stage, strips, slab):
    putting, number, request = asked(stage, strips, durability="disk")
    give(stage, slab)
    states = [pb.RESERVED, pb.RESERVED, pb.NOT_ADMITTED, pb.NOT_ADMITTED]
    stage.peer.reply(number, reserved(request, states, reason=pb.GROWING))
    seals(stage, durable=False)  # As two of its chunks are nowhere.
    number, request = stage.peer.take(FrameKind.RESERVE, pb.ReserveRequest)
    stage.peer.reply(number, reserved(request))
    seals(stage, durable=True)
    number, request = asked_again(stage)
    stage.peer.reply(number, reserved(request, HAD))
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.durable) == (COUNT, True)


def test_chunks_that_went_meanwhile_are_not_durable(stage, strips, slab):
    putting = put_to_disk(stage, strips, slab, durable=False)
    number, request = asked_again(stage)
    stage.peer.reply(number, reserved(request, [pb.HAVE, pb.HAVE, pb.RESERVED, pb.RESERVED]))
    abort = stage.peer.take(FrameKind.ABORT, pb.AbortRequest)[1]
    assert abort.reservation == RESERVATION
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.reason, stored.durable) == (COUNT, Reason.NONE, False)


def test_a_disk_that_fails_meanwhile_is_a_reason(stage, strips, slab):
    putting = put_to_disk(stage, strips, slab, durable=False)
    stage.peer.refuse(asked_again(stage)[0], pb.UNAVAILABLE)
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.refused, stored.durable) == (COUNT, 0, False)
    assert stored.reason == Reason.UNAVAILABLE


def test_at_its_deadline_a_put_is_stored_and_not_known_to_be_durable(stage, strips, slab):
    putting = put_to_disk(stage, strips, slab, durable=False, deadline_s=0.3)
    asked_again(stage)
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.refused, stored.durable) == (COUNT, 0, False)
    assert stored.reason == Reason.LATE


def test_a_disk_that_fails_refuses_all(stage, strips):
    putting, number, _ = asked(stage, strips, durability="disk")
    stage.peer.refuse(number, pb.UNAVAILABLE)
    stored = putting.result(DEADLINE_S)
    assert (stored.refused, stored.reason) == (COUNT, Reason.UNAVAILABLE)
    assert not stored.durable


def test_a_reservation_of_nothing_is_for_puts_to_disk_alone(stage, strips):
    prepared = stage.space.prepare(strips.tensors)
    putting = stage.start(stage.space.put_strips, strips.chain, prepared)
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.RESERVE, pb.ReserveRequest)
    stage.peer.reply(number, reserved(request, HAD, reservation=RESERVATION))
    stored = putting.result(DEADLINE_S)
    assert stored.reason == Reason.INCOMPATIBLE and stored.refused == COUNT

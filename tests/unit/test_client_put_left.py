"""Puts that are left early, by an interrupt at any step: no reservation of theirs stays."""

import asyncio

import pytest

from kvd.client import put as put_module
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import DEADLINE_S, Stage
from tests.unit.test_client_put import (
    RESERVATION,
    SLAB,
    asked,
    give,
    reserved,
    slab,
    strips,
)

__all__ = ["slab", "strips"]  # Fixtures.


def interrupt(*arguments: object, **named: object) -> None:
    raise KeyboardInterrupt


def aborted(stage: Stage) -> bool:
    """Take the next frame, which is the abort."""
    return stage.peer.take(FrameKind.ABORT, pb.AbortRequest)[1].reservation == RESERVATION


def in_the_way_of_the_answer(stage: Stage, monkeypatch) -> None:
    thread = stage.client._link.thread()
    call = thread.call

    def interrupted(coroutine):
        answer = call(coroutine)
        if isinstance(answer, pb.ReserveReply):
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(thread, "call", interrupted)


def before_it_is_read(stage: Stage, monkeypatch) -> None:
    monkeypatch.setattr(put_module, "Reservation", interrupt)


def before_it_is_filled(stage: Stage, monkeypatch) -> None:
    monkeypatch.setattr(put_module.Put, "_fill", interrupt)


def while_it_is_filled(stage: Stage, monkeypatch) -> None:
    monkeypatch.setattr(put_module, "lay", interrupt)


STEPS = [in_the_way_of_the_answer, before_it_is_read, before_it_is_filled, while_it_is_filled]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_an_interrupt_behind_the_answer_ends_the_reservation(
    stage, strips, slab, monkeypatch, step, durability
):
    step(stage, monkeypatch)
    putting, number, request = asked(stage, strips, durability=durability)
    give(stage, slab)
    stage.peer.reply(number, reserved(request))
    assert aborted(stage)
    with pytest.raises(KeyboardInterrupt):
        putting.result(DEADLINE_S)


def test_a_slab_asked_back_is_given_back_by_a_put_that_was_interrupted(
    stage, strips, slab, monkeypatch
):
    """What was said of it before counted for nothing, as places in it were reserved."""
    in_the_way_of_the_answer(stage, monkeypatch)
    give(stage, slab)
    stage.peer.tell(pb.ToClient(slab_recalled=pb.SlabRecalled(slab=SLAB)))
    assert stage.peer.detached() == SLAB
    putting, number, request = asked(stage, strips)
    stage.peer.reply(number, reserved(request))
    assert aborted(stage)
    assert stage.peer.detached() == SLAB
    with pytest.raises(KeyboardInterrupt):
        putting.result(DEADLINE_S)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_answer_that_crosses_with_a_cancellation_is_undone(stage, is_first):
    """The loop takes in the answer, and cancels who waits, before he has his turn."""
    thread, session = stage.client._link.thread(), stage.client._link.session()

    async def story() -> None:
        requests = session.requests
        task = asyncio.ensure_future(
            requests.request(FrameKind.RESERVE, pb.ReserveRequest(), DEADLINE_S)
        )
        await asyncio.sleep(0)
        body = pb.ReserveReply(reservation=RESERVATION).SerializeToString()
        if not is_first:
            task.cancel()
        requests._on_frame(FrameKind.REPLY, max(requests._open), body)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    thread.call(story())
    stage.peer.take(FrameKind.RESERVE, pb.ReserveRequest)
    assert aborted(stage)


def test_an_answer_to_a_put_that_has_left_is_undone(stage, strips, monkeypatch):
    """Left while its question is under way, and the answer comes as nobody has cancelled it yet."""
    thread = stage.client._link.thread()
    call = thread.call

    def interrupted(coroutine):
        if "ask" in coroutine.__qualname__:
            thread.submit(coroutine)
            raise KeyboardInterrupt
        return call(coroutine)

    monkeypatch.setattr(thread, "call", interrupted)
    putting, number, request = asked(stage, strips)
    with pytest.raises(KeyboardInterrupt):
        putting.result(DEADLINE_S)
    stage.peer.reply(number, reserved(request))
    assert aborted(stage)

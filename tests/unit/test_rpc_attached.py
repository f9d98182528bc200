"""The two ends of an attached session: notices in order, one end, and nothing that needs slabs."""

import asyncio

import numpy as np
import pytest

from kvd.core.effects import DropSlab, LeaseLost, TellDraining
from kvd.core.events import Delivery, FetchWanted, LookupWanted, ReserveWanted
from kvd.errors import ErrorKind, KvdError
from kvd.limits import Limits
from kvd.rpc.attached import NOTICES_WAITING_MAX, AttachStream, NoSlabs, refuse_slabs
from kvd.rpc.session import Session
from kvd.types import Lane
from kvd.v1 import kvd_pb2 as pb


class Inbox:
    """As much of a daemon as a session asks for."""

    limits = Limits()

    def __init__(self) -> None:
        self.ended: list[int] = []

    def now_ns(self) -> int:
        return 0

    def end(self, session: int) -> None:
        self.ended.append(session)


@pytest.fixture
def inbox():
    return Inbox()


@pytest.fixture
def stream():
    return AttachStream()


@pytest.fixture
def session(inbox, stream):
    channel = NoSlabs()
    session = Session(inbox, "a", 0, channel, lambda session: None)
    session.id, session.stream, channel.on_closed = 7, stream, session.end
    return session


def read(stream: AttachStream, count: int) -> list:
    async def take() -> list:
        return [await asyncio.wait_for(stream.next(), 20) for _ in range(count)]

    return asyncio.run(take())


def test_notices_come_in_order_and_then_the_end(session, stream, inbox):
    session.notify(LeaseLost(7, 5))
    session.notify(TellDraining(7))
    assert not session.is_idle()
    session.close(KvdError(ErrorKind.UNAVAILABLE, "the daemon has stopped"))
    assert inbox.ended == [7]
    lost, draining, end, again = read(stream, 4)
    assert (lost, draining) == (pb.Notice(lease_lost=5), pb.Notice(draining=True))
    assert end is again and (end.kind, end.message) == (
        ErrorKind.UNAVAILABLE, "the daemon has stopped",
    )  # fmt: skip
    assert session.is_idle()


def test_the_first_reason_of_an_end_is_the_one_told(session, stream, inbox):
    session.end()
    session.end()
    stream.refuse(0, KvdError(ErrorKind.UNAVAILABLE, "later"))
    [end] = read(stream, 1)
    assert end.kind == ErrorKind.LOST and inbox.ended == [7]


def test_who_waits_is_woken(stream):
    async def play() -> object:
        waiting = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        stream.send(68, 0, pb.Notice(draining=True).SerializeToString())
        return await asyncio.wait_for(waiting, 20)

    assert asyncio.run(play()) == pb.Notice(draining=True)


def test_one_that_reads_no_notices_is_given_up(session):
    for lease in range(NOTICES_WAITING_MAX):
        session.notify(LeaseLost(7, lease + 1))
    with pytest.raises(BlockingIOError):
        session.notify(LeaseLost(7, 1))


def test_it_has_no_slabs_to_be_told_of(session):
    with pytest.raises(OSError, match="no slab channel"):
        session.notify(DropSlab(7, 1))


def test_only_what_needs_slabs_is_refused():
    def fetch(delivery: Delivery) -> FetchWanted:
        return FetchWanted(1, 1, 1, (Lane(),), bytes(32), 3, 0, 0, delivery, 0, 0, 1)

    refuse_slabs(fetch(Delivery.BYTES))
    refuse_slabs(LookupWanted(1, 1, 1, (Lane(),), bytes(32), False))
    sizes = np.full((1, 3), 4096, np.uint32)
    for wish in (
        fetch(Delivery.MAP), ReserveWanted(1, 1, 1, Lane(), b"", bytes(32), sizes, False),
    ):  # fmt: skip
        with pytest.raises(KvdError) as refused:
            refuse_slabs(wish)
        assert refused.value.kind == ErrorKind.INVALID

"""The SDK's prefetch and clear against a scripted daemon: what is asked, answered, missed."""

import asyncio

import numpy as np
import pytest

from kvd.client import AsyncClient, Cleared, Client, Found, KvdError, Lane, Reason
from kvd.client.scope import told_ms
from kvd.errors import ErrorKind
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import Feature, FrameKind
from tests.unit.client_peer import DEADLINE_S, HANDLE, KEYSPACE, Peer, Stage
from tests.unit.test_client_session import until

CHAIN = bytes(range(96))


def counts(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def test_a_prefetch_asks_for_classes_of_lanes_and_says_what_is_stored(stage):
    asking = stage.start(stage.space.prefetch, CHAIN, 2, lanes=[Lane(), Lane(1)])
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.PREFETCH, pb.PrefetchRequest)
    assert (request.keyspace, request.chain, request.class_count) == (HANDLE, CHAIN, 2)
    assert [lane.kv_group for lane in request.lanes] == [0, 1]
    stage.peer.reply(number, pb.PrefetchReply(counts=counts(3, 2, 0)))
    assert asking.result(DEADLINE_S) == Found((3, 2, 0))
    counters = stage.client.status().counters
    assert counters.prefetches == 1 and counters.lookups == 0 and counters.misses == {}


def test_a_prefetch_of_nothing_is_no_miss(stage):
    asking = stage.start(stage.space.prefetch, CHAIN)
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.PREFETCH, pb.PrefetchRequest)
    assert request.class_count == 3 and len(request.lanes) == 1
    stage.peer.reply(number, pb.PrefetchReply(counts=counts(0, 0, 0)))
    assert asking.result(DEADLINE_S) == Found((0, 0, 0))
    assert stage.client.status().counters.misses == {}


@pytest.mark.parametrize("said", [counts(4, 4, 4), counts(1, 2, 0), b"", counts(1)])
def test_counts_that_cannot_be_are_a_miss(stage, said):
    asking = stage.start(stage.space.prefetch, CHAIN)
    stage.peer.take_keyspace()
    number, _ = stage.peer.take(FrameKind.PREFETCH, pb.PrefetchRequest)
    stage.peer.reply(number, pb.PrefetchReply(counts=said))
    assert asking.result(DEADLINE_S).reason == Reason.INCOMPATIBLE


def test_a_clear_says_what_is_gone_once_the_daemon_does(stage):
    asking = stage.start(stage.space.clear, deadline_s=2.0)
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.CLEAR, pb.ClearRequest)
    assert request.keyspace == HANDLE
    assert 1000 < request.deadline_ms < 2000, "the daemon's answer has time to come"
    assert not asking.done()
    stage.peer.reply(number, pb.ClearReply(chunks=1 << 40, held=2))
    assert asking.result(DEADLINE_S) == Cleared(1 << 40, 2)


@pytest.mark.parametrize("kind", [pb.LATE, pb.UNAVAILABLE, pb.OVERLOADED])
def test_refusals_are_reasons(stage, kind):
    reason = Reason[pb.ErrorKind.Name(kind)]
    for verb, frame, message in (
        (lambda: stage.space.prefetch(CHAIN), FrameKind.PREFETCH, pb.PrefetchRequest),
        (stage.space.clear, FrameKind.CLEAR, pb.ClearRequest),
    ):
        asking = stage.start(verb)
        if frame == FrameKind.PREFETCH:
            stage.peer.take_keyspace()
        number, _ = stage.peer.take(frame, message)
        stage.peer.refuse(number, kind)
        assert asking.result(DEADLINE_S).reason == reason


def test_silence_is_late_and_the_session_goes_on(stage):
    asking = stage.start(stage.space.clear, deadline_s=0.2)
    stage.peer.take_keyspace()
    number, _ = stage.peer.take(FrameKind.CLEAR, pb.ClearRequest)
    assert asking.result(DEADLINE_S) == Cleared(0, 0, Reason.LATE)
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    stage.peer.reply(number, pb.ClearReply(chunks=3))
    asking = stage.start(stage.space.prefetch, CHAIN, deadline_s=0.2)
    stage.peer.take(FrameKind.PREFETCH, pb.PrefetchRequest)
    assert asking.result(DEADLINE_S) == Found((0, 0, 0), 0, Reason.LATE)
    assert stage.client.status().connected


def test_a_daemon_that_dies_is_a_reason(stage):
    asking = stage.start(stage.space.clear)
    stage.peer.take_keyspace()
    stage.peer.take(FrameKind.CLEAR, pb.ClearRequest)
    stage.peer.hang_up()
    assert asking.result(DEADLINE_S).reason == Reason.LOST
    until(lambda: not stage.client.status().connected, "the loss is noticed")
    assert stage.space.clear().reason == Reason.DISCONNECTED
    assert stage.space.prefetch(CHAIN).reason == Reason.DISCONNECTED


def test_without_a_daemon_nothing_is_prefetched_or_cleared(tmp_path):
    with Client(tmp_path / "nobody") as client:
        space = client.keyspace(KEYSPACE)
        assert space.prefetch(CHAIN) == Found((0, 0, 0), 0, Reason.DISCONNECTED)
        assert space.clear() == Cleared(0, 0, Reason.DISCONNECTED)


def test_the_callers_own_mistakes_are_raised(stage):
    for mistake in (
        lambda: stage.space.prefetch(b""),
        lambda: stage.space.prefetch(CHAIN, 4),
        lambda: stage.space.prefetch(CHAIN, 0),
        lambda: stage.space.prefetch(CHAIN, deadline_s=0),
        lambda: stage.space.clear(deadline_s=-1),
    ):
        with pytest.raises(KvdError) as raised:
            mistake()
        assert raised.value.kind == ErrorKind.INVALID


def test_the_same_as_coroutines(tmp_path):
    async def play() -> None:
        client = AsyncClient(tmp_path)
        await asyncio.to_thread(peer.welcome)
        assert await client.wait_connected(DEADLINE_S)
        space = client.keyspace(KEYSPACE)
        prefetching = asyncio.ensure_future(space.prefetch(CHAIN, 1))
        await asyncio.to_thread(peer.take_keyspace)
        number, _ = await asyncio.to_thread(peer.take, FrameKind.PREFETCH, pb.PrefetchRequest)
        peer.reply(number, pb.PrefetchReply(counts=counts(2, 0, 0)))
        assert await prefetching == Found((2, 0, 0))
        clearing = asyncio.ensure_future(space.clear())
        number, _ = await asyncio.to_thread(peer.take, FrameKind.CLEAR, pb.ClearRequest)
        peer.reply(number, pb.ClearReply(chunks=2, held=1))
        assert await clearing == Cleared(2, 1)
        with pytest.raises(KvdError):
            await space.prefetch(CHAIN, 7)
        await client.close()

    peer = Peer(tmp_path)
    asyncio.run(play())
    peer.close()


@pytest.mark.parametrize(("left_s", "expected_ms"), [(10, 9950), (0.1, 90), (0.0001, 1)])
def test_a_stated_deadline_leaves_the_answer_its_way(left_s, expected_ms):
    assert told_ms(left_s) == expected_ms


# ---- of a daemon that does not know them ----


def test_what_a_daemon_does_not_know_is_not_asked():
    stage = Stage(features=Feature.READY)
    try:
        assert stage.space.prefetch(CHAIN) == Found((0, 0, 0), 0, Reason.INCOMPATIBLE)
        assert stage.space.clear() == Cleared(0, 0, Reason.INCOMPATIBLE)
        # The session is well, and the next frame is one that any daemon knows.
        asking = stage.start(stage.space.lookup, CHAIN)
        stage.peer.take_keyspace()
        number, _ = stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)
        stage.peer.reply(number, pb.LookupReply(counts=counts(1, 1, 1)))
        assert asking.result(DEADLINE_S).counts == (1, 1, 1)
    finally:
        stage.close()


def test_nor_by_coroutines(tmp_path):
    async def play() -> None:
        client = AsyncClient(tmp_path)
        await asyncio.to_thread(peer.welcome)
        assert await client.wait_connected(DEADLINE_S)
        space = client.keyspace(KEYSPACE)
        assert (await space.prefetch(CHAIN)).reason == Reason.INCOMPATIBLE
        assert (await space.clear()).reason == Reason.INCOMPATIBLE
        await client.close()

    peer = Peer(tmp_path)
    peer.features = 0
    asyncio.run(play())
    peer.close()

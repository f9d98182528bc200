"""Rates of a tenant: what is beyond them waits or is refused, and is nobody else's business.

Counted, not timed: a tenant at its limit gets little, while another gets everything.
"""

import numpy as np
import pytest

from kvd.client import Client, Reason
from kvd.errors import ErrorKind
from kvd.rpc import grpc_reading, grpc_service
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.client_story import KEYSPACE
from tests.e2e.process import DEADLINE_S
from tests.e2e.rawclient import (
    RawClient,
    Refused,
    chain_of,
    keyspace_message,
    small_keyspace,
)
from tests.e2e.remote_node import A_TOKEN, B_TOKEN, Attached, channel_to, refusal, remote_node
from tests.e2e.strips import Stored, fetch_request, lookup, register
from tests.e2e.test_daemon_delivery import assert_complete, collect

ASKED = 300
PER_SECOND = 0.01  # So that a test gets one and no second.


def test_requests_beyond_the_rate_are_refused_and_others_are_not(short_directory):
    with remote_node(short_directory, rates={"requests_per_second": 5}) as node:
        other = node.put("b")
        client = node.clients["a"] = RawClient(node.here.directory / "a")
        neighbour = node.clients["b"]
        # Nothing is put: while memory grows that takes as many tries as it takes.
        keyspace = register(client, keyspace_message(small_keyspace("remote")))
        ours = Stored(keyspace, chain_of(5), {})
        refused = 0
        for _ in range(ASKED):
            try:
                assert lookup(client, ours)[0] == [0] * 3
            except Refused as error:
                assert error.kind == pb.OVERLOADED and error.retry_after_ms > 0
                assert "tenant a is at 5 requests_per_second" in error.message
                refused += 1
            assert lookup(neighbour, other)[0] == [5] * 3
        assert 0 < refused < ASKED
        reading = node.here.daemon.observer.read()
        assert reading["kvd_rate_refused_total"] == {("a",): refused}


def test_the_rate_is_of_all_sessions_and_doors_of_a_tenant(short_directory):
    rates = {"requests_per_second": PER_SECOND}
    with remote_node(short_directory, rates=rates) as node, channel_to(node.here.tcp) as channel:
        ours, more, other = (Attached(channel, token) for token in (A_TOKEN, A_TOKEN, B_TOKEN))
        assert ours.register()
        for session in (ours, more):
            error = refusal(session.register)
            assert "requests_per_second" in error.details()
            assert int(dict(error.trailing_metadata())["kvd-retry-after-ms"]) > 1000
        with Client(node.here.directory / "a", "test", DEADLINE_S) as client:
            assert client.wait_connected(DEADLINE_S)
            space = client.keyspace(KEYSPACE)
            # The SDK goes without: no exception, and a reason.
            assert space.lookup(space.chain(np.arange(16))).reason == Reason.OVERLOADED
        for _ in range(ASKED):
            assert other.register()


GARBAGE = b"\xff" * 9


def test_what_cannot_be_meant_is_counted_and_within_the_rate_too(short_directory):
    """Each costs a look, and there is no end of them."""
    rates = {"requests_per_second": PER_SECOND}
    with remote_node(short_directory, rates=rates) as node, channel_to(node.here.tcp) as channel:
        client = node.clients["a"] = RawClient(node.here.directory / "a")
        kinds = []
        for number in range(1, ASKED):
            client.stream.send(FrameKind.LOOKUP, number, GARBAGE if number % 2 else b"")
            with pytest.raises(Refused) as refused:
                client.answer(number, FrameKind.LOOKUP)
            kinds.append(refused.value.kind)
        assert kinds == [pb.INVALID] + [pb.OVERLOADED] * (ASKED - 2)
        session = Attached(channel, A_TOKEN)
        call = channel.stream_stream("/kvd.v1.Kvd/Lookup")
        error = refusal(lambda: list(call(iter([GARBAGE]), **session.credentials)))
        assert "requests_per_second" in error.details()
        reading = node.here.daemon.observer.read()
        assert reading["kvd_rate_refused_total"] == {("a",): ASKED - 1}
        refusals = {("a", ErrorKind.INVALID): 1, ("a", ErrorKind.OVERLOADED): ASKED - 1}
        assert reading["kvd_refused_requests_total"] == refusals


def test_calls_that_are_refused_at_the_door_are_counted(short_directory, monkeypatch):
    with remote_node(short_directory) as node, channel_to(node.here.tcp) as channel:
        session = Attached(channel, A_TOKEN)
        call = channel.stream_stream("/kvd.v1.Kvd/Lookup")

        def refused_as(messages) -> str:
            return refusal(lambda: list(call(messages, **session.credentials))).code().name

        assert refused_as(iter([])) == refused_as(iter([GARBAGE])) == "INVALID_ARGUMENT"
        monkeypatch.setattr(grpc_reading, "READING_SECONDS", 0.0)
        assert refused_as(iter([])) == "DEADLINE_EXCEEDED"
        monkeypatch.setattr(grpc_service, "CALLS_MAX", 0)
        assert refused_as(iter([GARBAGE])) == "RESOURCE_EXHAUSTED"
        assert node.here.daemon.observer.read()["kvd_refused_requests_total"] == {
            ("a", ErrorKind.INVALID): 2, ("a", ErrorKind.LATE): 1, ("a", ErrorKind.OVERLOADED): 1,
        }  # fmt: skip


@pytest.mark.parametrize("by", ["socket", "tcp"])
def test_bytes_beyond_the_rate_wait_and_others_do_not(short_directory, by):
    with (
        remote_node(short_directory, rates={"bytes_per_second": 1}) as node,
        channel_to(node.here.tcp) as channel,
    ):
        stored, other = node.put("a"), node.put("b")
        request = fetch_request(stored, delivery=pb.DELIVERY_BYTES)
        slow = _begun(node.clients["a"], Attached(channel, A_TOKEN), request, by)
        # The first piece goes at once; the second is due when the first has passed, in hours.
        assert next(slow)
        neighbour = node.clients["b"]
        for _ in range(10):
            request = fetch_request(other, delivery=pb.DELIVERY_BYTES)
            number = neighbour.start(FrameKind.FETCH, request)
            neighbour.answer(number, FrameKind.FETCH)
            plenty = pb.Credit(bytes=1 << 40).SerializeToString()
            neighbour.stream.send(FrameKind.CREDIT, number, plenty)
            pieces, _ = collect(neighbour, number)
            assert_complete(pieces, other)
        ours = node.clients["a"]
        assert lookup(ours, stored)[0] == [5] * 3, "its requests are answered all the same"
        deliveries = node.here.daemon._hands._deliveries.values()
        assert [delivery._delivered_bytes for delivery in deliveries] == [next(slow)]
        slow.close()


def _begun(client, session, request, by: str):
    """Begin a fetch; yield the pieces that came, at least one, and then how many bytes."""
    if by == "tcp":
        request.keyspace = session.register()
        call = session.stub.Fetch(request, **session.credentials)
        assert next(call).promise.lease
        piece = next(call).piece
        yield piece
        yield len(piece.data)
        call.cancel()
        return
    number = client.start(FrameKind.FETCH, request)
    client.answer(number, FrameKind.FETCH)
    client.stream.send(FrameKind.CREDIT, number, pb.Credit(bytes=1 << 40).SerializeToString())
    place, data = client.answer(number, FrameKind.FETCH)
    yield place
    yield len(data)

"""The gRPC door of a daemon with a data directory: what is ready, prefetch, clear."""

import grpc
import numpy as np
import pytest

from kvd.client.messages import keyspace_message
from kvd.v1 import kvd_pb2 as pb
from kvd.v1 import kvd_pb2_grpc as pb_grpc
from kvd.wire import FEATURES, WHOLE
from tests.e2e.rawclient import Channel
from tests.e2e.ssd_node import CHUNKS, KEYSPACE, Node, stored, until
from tests.e2e.test_daemon_grpc import bearer, refusal


@pytest.fixture
def node(short_directory):
    made = Node(short_directory)
    yield made
    made.close()


@pytest.fixture
def stub(node):
    """Have everything on disk and nothing in memory."""
    stored(node)
    node.restart()
    with grpc.insecure_channel(f"unix:{node.daemon.tenant / 'grpc.sock'}") as channel:
        yield pb_grpc.KvdStub(channel)


def counts(data: bytes) -> list[int]:
    return np.frombuffer(data, "<u4").tolist()


def registered(node, stub) -> int:
    request = pb.RegisterKeyspaceRequest(keyspace=keyspace_message(KEYSPACE))
    return stub.RegisterKeyspace(request, **bearer(node.client.token)).keyspace


def told(node, stub, delivery, keyspace=0, token="") -> list[pb.FetchReply]:
    """Fetch everything; again while there is no room to read into."""
    request = pb.FetchRequest(
        keyspace=keyspace or registered(node, stub), lanes=[pb.Lane()], chain=node.chain(),
        class_count=3, delivery=delivery,
    )  # fmt: skip
    replies: list[pb.FetchReply] = []

    def has_room() -> bool:
        replies[:] = stub.Fetch(request, **bearer(token or node.client.token))
        return replies[0].promise.reason != pb.NO_ROOM

    until(has_room, "there is room to read into")
    assert counts(replies[0].promise.counts) == [CHUNKS] * 3
    return replies


def test_a_mapped_fetch_says_what_is_ready(node, stub):
    first, *more, last = told(node, stub, pb.DELIVERY_MAP)
    assert len(first.promise.ready) == 3 and min(first.promise.ready) < WHOLE
    before = first.promise.ready
    for reply in more:
        assert all(now >= was for now, was in zip(reply.ready.ready, before, strict=True))
        before = reply.ready.ready
    assert before == bytes([WHOLE] * 3)
    assert last.done.reason == pb.SHORTFALL_REASON_NONE and last.done.counts == b""
    again = told(node, stub, pb.DELIVERY_MAP)
    assert len(again) == 2 and again[0].promise.ready == b""


@pytest.mark.parametrize("features", [0, FEATURES])
def test_a_client_that_knows_no_ready_is_told_when_all_is_there(node, stub, features):
    channel = Channel(node.daemon.tenant)
    welcome, _ = channel.hello(features=features)
    registration = pb.RegisterKeyspaceRequest(keyspace=keyspace_message(KEYSPACE))
    keyspace = stub.RegisterKeyspace(registration, **bearer(welcome.token)).keyspace
    replies = told(node, stub, pb.DELIVERY_MAP, keyspace, welcome.token)
    if features:
        assert replies[0].promise.ready != b""
    else:
        assert [reply.WhichOneof("event") for reply in replies] == ["promise", "done"]
        assert replies[0].promise.ready == b"" and replies[1].done == pb.FetchDone()
    channel.close()


def test_bytes_from_disk_are_pieces_as_ever(node, stub):
    _, *pieces, last = told(node, stub, pb.DELIVERY_BYTES)
    assert all(reply.HasField("piece") for reply in pieces)
    assert last.done.delivered_bytes == sum(len(reply.piece.data) for reply in pieces)
    classes = [reply.piece.plane_class for reply in pieces]
    assert classes == sorted(classes) and set(classes) == {0, 1, 2}


def test_prefetch_and_clear(node, stub):
    credentials = bearer(node.client.token)
    keyspace = registered(node, stub)
    request = pb.PrefetchRequest(
        keyspace=keyspace, lanes=[pb.Lane()], chain=node.chain(), class_count=2
    )
    until(
        lambda: counts(stub.Prefetch(request, **credentials).counts) == [CHUNKS, CHUNKS, 0],
        "there is room to read into",
    )
    request.class_count = 4
    error = refusal(lambda: stub.Prefetch(request, **credentials))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    cleared = stub.Clear(pb.ClearRequest(keyspace=keyspace), **credentials)
    assert (cleared.chunks + cleared.held) == CHUNKS
    lookup = pb.LookupRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=node.chain())
    assert counts(stub.Lookup(lookup, **credentials).counts) == [0, 0, 0]

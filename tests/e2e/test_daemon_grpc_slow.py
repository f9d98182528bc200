"""Clients of gRPC that do not read what they asked for: bounded, and whole when they go on."""

import contextlib

import grpc
import pytest

from kvd.limits import MIB, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.v1 import kvd_pb2_grpc as pb_grpc
from tests.e2e.process import running
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import fetch_request, lookup, put, register
from tests.e2e.test_daemon_delivery import CELLS, LAYERS, assert_complete, resident_bytes
from tests.e2e.test_daemon_grpc import bearer

STREAMS, CHUNKS, CELL_BYTES = 6, 20, 40_000


@pytest.fixture
def daemon(tmp_path):
    with running(tmp_path / "d") as daemon:
        yield daemon


@contextlib.contextmanager
def stub_of(daemon):
    options = [("grpc.max_receive_message_length", Limits().frame_bytes_max)]
    with grpc.insecure_channel(f"unix:{daemon.tenant / 'grpc.sock'}", options) as channel:
        yield pb_grpc.KvdStub(channel)


def assert_whole(replies, stored) -> None:
    assert replies.pop().HasField("done")
    pieces = [reply.piece for reply in replies if reply.HasField("piece")]
    assert sum(len(piece.data) for piece in pieces) > 36 * MIB
    assert_complete([(p.plane_class, p.chunk, p.offset, p.data) for p in pieces], stored)


def test_streams_that_are_not_read_are_bounded(daemon):
    """A few pieces and the library's buffers for each: not the 37 MiB that each was promised."""
    client, other = RawClient(daemon.tenant), RawClient(daemon.tenant)
    keyspace = keyspace_message(small_keyspace("big", LAYERS))
    stored = put(client, register(client, keyspace), chain_of(CHUNKS), CELLS, CELL_BYTES)
    register(other, keyspace)
    with stub_of(daemon) as stub:
        who = bearer(client.welcome.token)
        request = fetch_request(stored, delivery=pb.DELIVERY_BYTES)
        # What the library itself takes for a first stream is not looked at.
        assert_whole(list(stub.Fetch(request, **who)), stored)
        before = resident_bytes(daemon)
        streams = [stub.Fetch(request, **who) for _ in range(STREAMS)]
        assert all(next(stream).HasField("promise") for stream in streams)
        for _ in range(100):
            assert lookup(other, stored)[0] == [CHUNKS] * 3
        assert resident_bytes(daemon) - before < 12 * MIB
        for stream in streams:
            assert_whole(list(stream), stored)
    client.close()
    other.close()

"""Chunks and questions at the sizes where messages end: whole, or refused by the bound's name."""

from dataclasses import replace

import grpc
import numpy as np
import pytest

from kvd.limits import GIB, KIB, MIB, PAGE_BYTES, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.v1.kvd_pb2_grpc import KvdStub
from kvd.wire import FrameKind
from tests.e2e.process import DEADLINE_S, in_process
from tests.e2e.rawclient import RawClient, Refused, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import end_of_cells, fetch_request, make_strip, put, read_mapped, register

LAYERS, CELLS = 2, 4
LIMITS = replace(Limits(), slab_bytes=64 * MIB)
OLD_CLIENT_BYTES = 4 * MIB  # What gRPC takes in where nobody says otherwise.


@pytest.fixture(scope="module")
def tenant(tmp_path_factory):
    with in_process(tmp_path_factory.mktemp("d"), LIMITS, 256 * MIB) as directory:
        yield directory


@pytest.fixture
def client(tenant):
    made = RawClient(tenant)
    yield made
    made.close()


def of_cells(client, name: str, cell_bytes: int):
    """Put one chunk whose strips have four cells of that size."""
    keyspace = register(client, keyspace_message(small_keyspace(name, LAYERS)))
    return put(client, keyspace, chain_of(1), CELLS, cell_bytes)


@pytest.mark.parametrize(
    "strip_bytes",
    [4 * MIB - PAGE_BYTES, 4 * MIB, 4 * MIB + PAGE_BYTES, 20 * MIB],
    ids=lambda size: f"{size // KIB}KiB",
)
def test_a_chunk_beyond_a_message_comes_whole_to_an_old_client(tenant, client, strip_bytes):
    """By gRPC with its own defaults, as pieces; and mapped."""
    cell_bytes = (strip_bytes - PAGE_BYTES) // CELLS
    assert make_strip(CELLS, cell_bytes, 0).size == strip_bytes
    stored = of_cells(client, f"big {strip_bytes}", cell_bytes)
    read_mapped(client, stored)
    metadata = (("authorization", f"Bearer {client.welcome.token}"),)
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES)
    got = {index: np.zeros(strip.size, np.uint8) for (_, index), strip in stored.strips.items()}
    with grpc.insecure_channel(f"unix:{tenant / 'grpc.sock'}") as channel:
        for reply in KvdStub(channel).Fetch(request, metadata=metadata, timeout=DEADLINE_S):
            assert reply.ByteSize() <= OLD_CLIENT_BYTES // 3
            if reply.HasField("piece"):
                piece = reply.piece
                end = piece.offset + len(piece.data)
                got[piece.plane_class][piece.offset : end] = np.frombuffer(piece.data, np.uint8)
            if reply.HasField("promise"):
                lease = reply.promise.lease
    for (_, index), strip in stored.strips.items():
        end = end_of_cells(strip, CELLS)
        assert np.array_equal(got[index][:end], strip[:end])
    client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=lease))


@pytest.mark.parametrize("size", [LIMITS.slab_bytes + PAGE_BYTES, 3 * GIB])
def test_a_strip_beyond_a_slab_is_refused_by_both_numbers(client, size):
    keyspace = register(client, keyspace_message(small_keyspace("vast", LAYERS)))
    sizes = np.array([PAGE_BYTES, PAGE_BYTES, size], "<u4").tobytes()
    request = pb.ReserveRequest(keyspace=keyspace, lane=pb.Lane(), chain=chain_of(1), sizes=sizes)
    with pytest.raises(Refused) as refused:
        client.call(FrameKind.RESERVE, request)
    assert refused.value.kind == pb.INVALID
    for word in (str(size), str(LIMITS.slab_bytes), "chunk_tokens"):
        assert word in refused.value.message


@pytest.mark.parametrize("count", [65_536, 100_000])
def test_a_question_of_many_chunks_is_answered_or_refused_by_the_bounds_name(client, count):
    keyspace = register(client, keyspace_message(small_keyspace("many", LAYERS)))
    chain = np.random.default_rng(1).bytes(32 * count)
    request = pb.LookupRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=chain)
    if count <= LIMITS.chunks_per_request_max:
        reply = client.call(FrameKind.LOOKUP, request)
        assert np.frombuffer(reply.counts, "<u4").tolist() == [0, 0, 0]
        return
    with pytest.raises(Refused) as refused:
        client.call(FrameKind.LOOKUP, request)
    assert refused.value.kind == pb.INVALID
    for word in (str(count), "chunks_per_request_max", str(LIMITS.chunks_per_request_max)):
        assert word in refused.value.message


def test_a_message_beyond_the_limit_is_refused_with_both_sizes(tenant, client):
    metadata = (("authorization", f"Bearer {client.welcome.token}"),)
    request = pb.LookupRequest(keyspace=1, lanes=[pb.Lane()], chain=bytes(LIMITS.frame_bytes_max))
    where = f"unix:{tenant / 'grpc.sock'}"
    with grpc.insecure_channel(where) as channel, pytest.raises(grpc.RpcError) as refused:
        KvdStub(channel).Lookup(request, metadata=metadata, timeout=DEADLINE_S)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(LIMITS.frame_bytes_max) in refused.value.details()
    assert client.welcome.frame_bytes_max == LIMITS.frame_bytes_max, "and it was told before"

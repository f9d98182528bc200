"""The gRPC door: the same answers as the socket's, for those whose session lives."""

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kvd.limits import MIB, Limits
from kvd.rpc.grpc_call import STATUS
from kvd.v1 import kvd_pb2 as pb
from kvd.v1 import kvd_pb2_grpc as pb_grpc
from kvd.wire import FrameKind
from tests.e2e.process import running
from tests.e2e.rawclient import (
    Channel,
    RawClient,
    Refused,
    chain_of,
    keyspace_message,
    small_keyspace,
)
from tests.e2e.strips import fetch_request, put, register
from tests.e2e.test_daemon_delivery import CELL_BYTES, CELLS, LAYERS, assert_complete, collect

DEADLINE_S = 20.0
CHUNKS = 7


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("g"), "--tenant", "default", "--tenant", "b") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(daemon):
    client = RawClient(daemon.tenant)
    yield client
    client.close()


@pytest.fixture(scope="module")
def stored(client):
    keyspace = register(client, keyspace_message(small_keyspace("grpc", LAYERS)))
    return put(client, keyspace, chain_of(CHUNKS), CELLS, CELL_BYTES)


@pytest.fixture(scope="module")
def channel(daemon):
    limit = Limits().frame_bytes_max
    options = [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", 2 * limit),
    ]
    with grpc.insecure_channel(f"unix:{daemon.tenant / 'grpc.sock'}", options) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel):
    return pb_grpc.KvdStub(channel)


def bearer(token: str) -> dict:
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": DEADLINE_S}


def refusal(call) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value


def lookup_request(stored) -> pb.LookupRequest:
    return pb.LookupRequest(keyspace=stored.keyspace, lanes=[pb.Lane()], chain=stored.chain)


# ---- who may ----


def test_without_a_token_only_health_answers(channel, stub, stored):
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "kvd.v1.Kvd"):
        request = health_pb2.HealthCheckRequest(service=service)
        reply = health.Check(request, timeout=DEADLINE_S)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    request = lookup_request(stored)
    for metadata in ((), (("authorization", "Bearer "),), (("authorization", "Basic x"),)):
        error = refusal(lambda m=metadata: stub.Lookup(request, metadata=m, timeout=DEADLINE_S))
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    error = refusal(lambda: list(stub.Fetch(fetch_request(stored), timeout=DEADLINE_S)))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    error = refusal(lambda: reflected(channel, {"timeout": DEADLINE_S}))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_token_that_was_never_given_is_none(client, stub, stored):
    number, _, secret = client.welcome.token.partition(".")
    for token in (
        f"{number}.{secret[:-1]}x",
        f"{int(number) + 1}.{secret}",
        f"{'9' * 4400}.{secret}"[:4000],
        f"-1.{secret}",
        secret,
        number,
    ):
        error = refusal(lambda t=token: stub.Lookup(lookup_request(stored), **bearer(t)))
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_token_dies_with_its_session(daemon, stub, stored):
    leaver = RawClient(daemon.tenant)
    register(leaver, keyspace_message(small_keyspace("grpc", LAYERS)))
    credentials = bearer(leaver.welcome.token)
    assert stub.Lookup(lookup_request(stored), **credentials).counts
    leaver.stream.close()
    with pytest.raises(EOFError):
        leaver.channel.receive()
    error = refusal(lambda: stub.Lookup(lookup_request(stored), **credentials))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_token_is_of_one_tenant(daemon, client, stored):
    path = f"unix:{daemon.directory / 'b' / 'grpc.sock'}"
    with grpc.insecure_channel(path) as other:
        error = refusal(
            lambda: pb_grpc.KvdStub(other).Lookup(
                lookup_request(stored), **bearer(client.welcome.token)
            )
        )
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_session_needs_no_stream_for_grpc(daemon, stub, stored):
    channel = Channel(daemon.tenant)
    welcome, _ = channel.hello()
    message = keyspace_message(small_keyspace("grpc", LAYERS))
    reply = stub.RegisterKeyspace(message, **bearer(welcome.token))
    request = lookup_request(stored)
    request.keyspace = reply.keyspace
    counts = stub.Lookup(request, **bearer(welcome.token)).counts
    assert np.frombuffer(counts, "<u4").tolist() == [CHUNKS] * 3
    channel.close()


# ---- the same answers ----


def reflected(channel, credentials: dict) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    [reply] = stub.ServerReflectionInfo(iter([request]), **credentials)
    return [service.name for service in reply.list_services_response.service]


def test_reflection_lists_the_services(channel, client):
    assert "kvd.v1.Kvd" in reflected(channel, bearer(client.welcome.token))


def test_lookup_lease_renew_release_by_either_door(client, stub, stored):
    credentials = bearer(client.welcome.token)
    request = lookup_request(stored)
    assert client.call(FrameKind.LOOKUP, request) == stub.Lookup(request, **credentials)
    request.lease = True
    granted = stub.Lookup(request, **credentials)
    renewed = client.call(FrameKind.RENEW, pb.RenewRequest(lease=granted.lease))
    assert renewed == stub.Renew(pb.RenewRequest(lease=granted.lease), **credentials)
    stub.Release(pb.ReleaseRequest(lease=granted.lease), **credentials)
    with pytest.raises(Refused) as refused:
        client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=granted.lease))
    assert refused.value.kind == pb.LOST


def test_reserve_abort_and_seal_by_grpc(client, stub, stored):
    credentials = bearer(client.welcome.token)
    sizes = np.full((2, 3), 4096, "<u4").tobytes()
    request = pb.ReserveRequest(
        keyspace=stored.keyspace, lane=pb.Lane(), chain=chain_of(2, seed=900), sizes=sizes
    )
    first = stub.Reserve(request, **credentials)
    assert list(first.states) == [pb.RESERVED] * 2
    stub.Abort(pb.AbortRequest(reservation=first.reservation), **credentials)
    second = client.call(FrameKind.RESERVE, request)
    seal = pb.SealRequest(
        reservation=second.reservation, sizes=sizes, roots=bytes(48), profile=1, last=True
    )
    assert list(stub.Seal(seal, **credentials).states) == [pb.SEALED] * 2


def test_promises_are_the_same_by_either_door(client, stub, stored):
    number = client.start(FrameKind.FETCH, fetch_request(stored))
    by_socket = client.answer(number, FrameKind.FETCH)
    client.answer(number, FrameKind.FETCH)
    replies = list(stub.Fetch(fetch_request(stored), **bearer(client.welcome.token)))
    assert [reply.WhichOneof("event") for reply in replies] == ["promise", "done"]
    by_grpc = replies[0].promise
    assert by_grpc.lease != by_socket.lease
    by_grpc.lease = by_socket.lease
    assert by_grpc == by_socket


def test_pieces_are_the_same_by_either_door(client, stub, stored):
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES)
    number = client.start(FrameKind.FETCH, request)
    client.answer(number, FrameKind.FETCH)
    plenty = pb.Credit(bytes=1 << 40).SerializeToString()
    client.stream.send(FrameKind.CREDIT, number, plenty)
    by_socket, done = collect(client, number)
    replies = list(stub.Fetch(request, **bearer(client.welcome.token)))
    by_grpc = [
        (r.piece.plane_class, r.piece.chunk, r.piece.offset, r.piece.data) for r in replies[1:-1]
    ]
    assert by_grpc == by_socket
    assert replies[-1].done == done
    assert max(len(data) for *_, data in by_grpc) <= MIB
    assert_complete(by_grpc, stored)


def test_a_call_that_is_given_up_stops_its_delivery(client, stub, stored):
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES, rate_bits=1)
    leases = []
    for _ in range(Limits().requests_per_session_max + 1):
        call = stub.Fetch(request, **bearer(client.welcome.token))
        leases.append(next(call).promise.lease)
        call.cancel()
    for lease in leases:
        client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=lease))


def test_a_callers_deadline_is_the_fetchs(client, stub, stored):
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES, rate_bits=1)
    credentials = bearer(client.welcome.token) | {"timeout": 0.3}
    error = refusal(lambda: list(stub.Fetch(request, **credentials)))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


# ---- errors ----


def test_errors_keep_their_kind_and_words(client, stub, stored):
    credentials = bearer(client.welcome.token)
    request = lookup_request(stored)
    request.chain = bytes(33)
    with pytest.raises(Refused) as by_socket:
        client.call(FrameKind.LOOKUP, request)
    by_grpc = refusal(lambda: stub.Lookup(request, **credentials))
    assert by_grpc.code() == STATUS[by_socket.value.kind] == grpc.StatusCode.INVALID_ARGUMENT
    assert by_grpc.details() == by_socket.value.message
    lost = refusal(lambda: stub.Release(pb.ReleaseRequest(lease=999_999), **credentials))
    assert lost.code() == grpc.StatusCode.ABORTED
    disk = pb.ReserveRequest(
        keyspace=stored.keyspace, chain=bytes(range(32)), sizes=np.full(3, 4096, "<u4").tobytes(),
        durability=pb.DURABILITY_DISK,
    )  # fmt: skip
    assert refusal(lambda: stub.Reserve(disk, **credentials)).code() == (
        grpc.StatusCode.UNAVAILABLE
    )


def test_an_overload_says_when_to_try_again(daemon, stub):
    client = RawClient(daemon.tenant)
    credentials = bearer(client.welcome.token)
    keyspace = register(client, keyspace_message(small_keyspace("overload", LAYERS)))
    sizes = np.full((1, 3), 4096, "<u4").tobytes()
    for n in range(Limits().reservations_per_session_max):
        request = pb.ReserveRequest(
            keyspace=keyspace, lane=pb.Lane(), chain=chain_of(1, seed=n), sizes=sizes
        )
        stub.Reserve(request, **credentials)
    error = refusal(lambda: stub.Reserve(request, **credentials))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = dict(error.trailing_metadata())
    assert int(trailing["kvd-retry-after-ms"]) > 0
    client.close()


def test_a_message_beyond_the_limit_is_refused(client, stub, stored):
    request = lookup_request(stored)
    request.chain = bytes(Limits().frame_bytes_max)
    error = refusal(lambda: stub.Lookup(request, **bearer(client.welcome.token)))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.Lookup(lookup_request(stored), **bearer(client.welcome.token)).counts

"""What a call sends is read once it is known whose call it is, and then within bounds."""

import logging
import socket
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2

from kvd.limits import Limits
from kvd.rpc import grpc_reading, grpc_service
from kvd.rpc.grpc_service import CONNECTIONS_PER_SESSION, NO_CREDENTIAL, NO_TOKEN
from kvd.v1 import kvd_pb2 as pb
from tests.e2e.process import DEADLINE_S
from tests.e2e.remote_node import (
    A_TOKEN,
    Attached,
    bearer,
    channel_to,
    refusal,
    remote_node,
    until,
)

KVD = "/kvd.v1.Kvd/"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with remote_node(tmp_path_factory.mktemp("g")) as node:
        yield node


@pytest.fixture
def channel(node):
    with channel_to(node.here.tcp) as channel:
        yield channel


@pytest.fixture
def silent():
    """Yield messages that never come: a call that sends its head and no more."""
    over = threading.Event()

    def messages():
        over.wait(DEADLINE_S)
        yield from ()

    yield messages
    over.set()


def begin(channel, method: str, messages, token: str = ""):
    call = channel.stream_stream(method)
    more = bearer(token) if token else {"timeout": DEADLINE_S}
    return call(messages, **more)


@pytest.mark.parametrize("method", ["Lookup", "Reserve", "Seal", "Fetch"])
def test_who_has_no_token_is_refused_unread(channel, silent, method):
    error = refusal(lambda: list(begin(channel, KVD + method, silent())))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED and error.details() == NO_TOKEN


def test_who_has_no_credential_attaches_unread(channel, silent):
    error = refusal(lambda: list(begin(channel, KVD + "Attach", silent())))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED and error.details() == NO_CREDENTIAL


def test_health_is_told_unread(channel, silent):
    [reply] = begin(channel, "/grpc.health.v1.Health/Check", silent())
    serving = health_pb2.HealthCheckResponse.SERVING
    assert health_pb2.HealthCheckResponse.FromString(reply).status == serving


@pytest.mark.parametrize("method", ["Lookup", "Fetch", "Attach"])
def test_what_is_no_message_is_an_answer_and_no_line_of_log(channel, caplog, method):
    token = A_TOKEN if method == "Attach" else Attached(channel, A_TOKEN).welcome.token
    with caplog.at_level(logging.WARNING):
        error = refusal(lambda: list(begin(channel, KVD + method, iter([b"\xff" * 9]), token)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == f"9 bytes are no {method}Request"
    assert not caplog.records


def test_a_call_without_a_message(channel):
    token = Attached(channel, A_TOKEN).welcome.token
    error = refusal(lambda: list(begin(channel, KVD + "Renew", iter([]), token)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "the call ended without a message"


def test_messages_on_their_way_are_bounded_in_number_and_time(channel, silent, monkeypatch):
    monkeypatch.setattr(grpc_reading, "READING_SECONDS", 0.5)
    session = Attached(channel, A_TOKEN)
    calls = [
        begin(channel, KVD + "Lookup", silent(), session.welcome.token)
        for _ in range(2 * grpc_reading.READING_MAX)
    ]
    for call in calls:
        error = refusal(lambda call=call: list(call))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
    error = refusal(lambda: session.stub.Renew(pb.RenewRequest(lease=1), **session.credentials))
    assert error.code() == grpc.StatusCode.ABORTED, "there is room again"


@pytest.mark.parametrize("method", ["Renew", "Lookup", "Fetch"])
def test_a_call_whose_session_ends_before_its_message_came_is_answered(
    channel, monkeypatch, method
):
    reading, come = threading.Event(), threading.Event()
    read = grpc_reading.Reading.data

    async def noted(*arguments):
        reading.set()
        return await read(*arguments)

    def messages():
        assert come.wait(DEADLINE_S)
        yield getattr(pb, f"{method}Request")().SerializeToString()

    def has_ended() -> bool:
        error = refusal(lambda: session.stub.Renew(pb.RenewRequest(), **session.credentials))
        return error.code() == grpc.StatusCode.UNAUTHENTICATED

    session = Attached(channel, A_TOKEN)
    monkeypatch.setattr(grpc_reading.Reading, "data", noted)
    call = begin(channel, KVD + method, messages(), session.welcome.token)
    assert reading.wait(DEADLINE_S)
    session.call.cancel()
    until(has_ended, "the session ends with its call")
    come.set()
    error = refusal(lambda: list(call))
    assert error.code() == grpc.StatusCode.ABORTED and "session" in error.details()


def test_attaches_whose_message_has_not_come_are_calls_of_their_tenant(
    channel, silent, monkeypatch
):
    reading = threading.Semaphore(0)
    read = grpc_reading.Reading.data

    async def noted(*arguments):
        reading.release()
        return await read(*arguments)

    monkeypatch.setattr(grpc_reading.Reading, "data", noted)
    monkeypatch.setattr(grpc_service, "CALLS_MAX", 2)
    calls = [begin(channel, KVD + "Attach", silent(), A_TOKEN) for _ in range(2)]
    assert all(reading.acquire(timeout=DEADLINE_S) for _ in calls)
    error = refusal(lambda: Attached(channel, A_TOKEN))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "2 calls" in error.details()
    for call in calls:
        call.cancel()

    def has_room() -> Attached | None:
        try:
            return Attached(channel, A_TOKEN)
        except grpc.RpcError:
            return None

    sessions = [until(has_room, "there is room again") for _ in range(4)]
    for session in sessions:
        session.call.cancel()


# ---- connections ----

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def is_served(path) -> socket.socket | None:
    """Return a connection that was answered with settings, or None for one that was closed."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(DEADLINE_S)
    try:
        connection.connect(str(path))
        connection.sendall(PREFACE)
        if connection.recv(9):
            return connection
    except ConnectionError:
        pass
    connection.close()
    return None


@pytest.mark.parametrize("door", ["a/grpc.sock", "admin.sock"])
def test_connections_of_a_socket_are_bounded(short_directory, door):
    with remote_node(short_directory, Limits(sessions_max=2)) as node:
        path = node.here.directory / door
        held = [is_served(path) for _ in range(2 * CONNECTIONS_PER_SESSION)]
        assert all(held)
        assert is_served(path) is None
        held.pop().close()
        again = until(lambda: is_served(path), "there is room again")
        for connection in (*held, again):
            connection.close()

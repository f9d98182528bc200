"""Those who are nobody, or somebody else, at the TCP port and at the sockets."""

import contextlib
import logging
import shutil
import socket
import ssl

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvd.limits import Limits
from kvd.rpc import tokens
from kvd.rpc.audit import LINES_AT_ONCE
from kvd.rpc.grpc_service import (
    CALLS_MAX,
    CONNECTIONS_PER_SESSION,
    NO_CREDENTIAL,
    NO_TOKEN,
)
from kvd.v1 import kvd_pb2 as pb
from kvd.v1 import kvd_pb2_grpc as pb_grpc
from tests.e2e.certificates import DAY, Authority
from tests.e2e.rawclient import RawClient
from tests.e2e.remote_node import (
    A_NEXT,
    A_TOKEN,
    B_TOKEN,
    Attached,
    bearer,
    channel_to,
    refusal,
    remote_node,
    until,
    write_tokens,
)
from tests.e2e.strips import fetch_request

SETTINGS, PING = 4, 6  # Kinds of frames.
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def tls_files(authority, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    issued = authority.issue("localhost", addresses=("127.0.0.1",))
    certificate, key = issued.write(directory, "server")
    client_ca = directory / "ca.crt"
    client_ca.write_bytes(authority.pem)
    return {"certificate": certificate, "key": key, "client_ca": client_ca}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with remote_node(tmp_path_factory.mktemp("h")) as node:
        node.put("a")
        node.put("b")
        yield node


@pytest.fixture(scope="module")
def tls(tmp_path_factory, tls_files):
    with remote_node(tmp_path_factory.mktemp("m"), **tls_files) as node:
        yield node


@pytest.fixture
def channel(node):
    with channel_to(node.here.tcp) as channel:
        yield channel


def unix(node, tenant: str) -> str:
    return f"unix:{node.here.directory / tenant / 'grpc.sock'}"


def denied(call, words: str) -> None:
    error = refusal(call)
    assert error.code() == UNAUTHENTICATED and error.details() == words, error


def renew(session_token: str):
    return lambda channel: pb_grpc.KvdStub(channel).Renew(
        pb.RenewRequest(lease=1), **bearer(session_token)
    )


# ---- without a credential, or with a wrong one ----


@pytest.mark.parametrize(
    "token",
    ["", "x" * 40, A_TOKEN.upper(), A_TOKEN[:-1], A_TOKEN + " ", " " + A_TOKEN, A_TOKEN[9:],
     "# made by a test", "1." + "a" * 32, "x" * 4000],
)  # fmt: skip
def test_what_is_no_token_attaches_nobody(channel, token):
    denied(lambda: Attached(channel, token), NO_CREDENTIAL)


def test_without_a_credential_only_health_answers(node, channel):
    health = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=20).status == serving
    error = refusal(lambda: list(health.Watch(health_pb2.HealthCheckRequest(), timeout=20)))
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    stub = pb_grpc.KvdStub(channel)
    for metadata in ((), bearer(A_TOKEN)["metadata"]):  # A tenant's own token is none of a session.
        for call in (
            lambda m=metadata: stub.Lookup(pb.LookupRequest(), metadata=m, timeout=20),
            lambda m=metadata: stub.Reserve(pb.ReserveRequest(), metadata=m, timeout=20),
            lambda m=metadata: list(stub.Fetch(pb.FetchRequest(), metadata=m, timeout=20)),
        ):
            denied(call, NO_TOKEN)


def test_another_tenants_token_at_a_tenants_socket(node):
    with channel_to(unix(node, "a")) as channel:
        denied(lambda: Attached(channel, B_TOKEN), NO_CREDENTIAL)
        assert Attached(channel, A_TOKEN).register()


def test_very_long_metadata(channel):
    long = (("authorization", "Bearer " + "x" * 100_000),)
    call = pb_grpc.KvdStub(channel).Attach(pb.AttachRequest(), metadata=long, timeout=20)
    assert refusal(lambda: list(call)).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert Attached(channel, A_TOKEN).register()


def test_a_compressed_message_is_refused(channel):
    stub = Attached(channel, A_TOKEN).stub
    error = refusal(
        lambda: stub.Lookup(
            pb.LookupRequest(chain=bytes(1 << 20)), compression=grpc.Compression.Gzip,
            **bearer("1.x"),
        )
    )  # fmt: skip
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED


# ---- tokens of sessions ----


def test_a_sessions_token_is_good_on_its_own_way_only(node, channel):
    attached = Attached(channel, A_TOKEN).welcome.token
    with RawClientOf(node, "a") as client, channel_to(unix(node, "a")) as socket:
        assert refusal(lambda: renew(attached)(channel)).code() == grpc.StatusCode.ABORTED
        denied(lambda: renew(attached)(socket), NO_TOKEN)
        denied(lambda: renew(client.welcome.token)(channel), NO_TOKEN)
        by_path = Attached(socket, A_TOKEN).welcome.token
        denied(lambda: renew(by_path)(channel), NO_TOKEN)
        with channel_to(unix(node, "b")) as other:
            denied(lambda: renew(by_path)(other), NO_TOKEN)


class RawClientOf:
    def __init__(self, node, tenant: str) -> None:
        self._path = node.here.directory / tenant

    def __enter__(self) -> RawClient:
        self._client = RawClient(self._path)
        return self._client

    def __exit__(self, *failure: object) -> None:
        self._client.close()


def test_calls_after_the_stream_ended(node, channel):
    session = Attached(channel, A_TOKEN)
    keyspace = session.register()
    fetch = fetch_request(node.stored["a"], delivery=pb.DELIVERY_BYTES, rate_bits=1)
    fetch.keyspace = keyspace
    under_way = session.stub.Fetch(fetch, **session.credentials)
    assert next(under_way).promise.lease
    session.call.cancel()
    # What is under way ends with the session, and says so.
    assert refusal(lambda: list(under_way)).code() == grpc.StatusCode.ABORTED
    denied(lambda: renew(session.welcome.token)(channel), NO_TOKEN)


def test_a_tenants_calls_are_bounded(node, channel, monkeypatch):
    monkeypatch.setattr("kvd.rpc.grpc_service.CALLS_MAX", 3)
    assert CALLS_MAX > 3
    ours, other = Attached(channel, A_TOKEN), Attached(channel, B_TOKEN)
    fetch = fetch_request(node.stored["a"], delivery=pb.DELIVERY_BYTES, rate_bits=1)
    fetch.keyspace = ours.register()
    calls = [ours.stub.Fetch(fetch, **ours.credentials) for _ in range(3)]
    assert all(next(call).promise.lease for call in calls)
    error = refusal(lambda: renew(ours.welcome.token)(channel))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "tenant a" in error.details()
    assert other.register()
    for call in calls:
        call.cancel()
    until(
        lambda: (
            refusal(lambda: renew(ours.welcome.token)(channel)).code() == grpc.StatusCode.ABORTED
        ),
        "there is room again",
    )


# ---- connections ----


def frame(kind: int, body: bytes = b"") -> bytes:
    """Return a frame of HTTP/2 of the whole connection."""
    return len(body).to_bytes(3, "big") + bytes([kind, 0, 0, 0, 0, 0]) + body


def dial(node) -> socket.socket:
    host, _, port = node.here.tcp.partition(":")
    connection = socket.create_connection((host, int(port)), 20)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS))
    return connection


def test_a_flood_of_pings_is_cut_off(node):
    with dial(node) as connection:
        heard = b""
        connection.sendall(frame(PING, bytes(8)) * 10)
        while data := connection.recv(1 << 16):
            heard += data
        assert b"too_many_pings" in heard


def test_connections_are_bounded(short_directory):
    with remote_node(short_directory, Limits(sessions_max=2)) as node:
        held = [dial(node) for _ in range(2 * CONNECTIONS_PER_SESSION)]
        assert all(connection.recv(1) for connection in held)
        with dial(node) as one_more, contextlib.suppress(ConnectionResetError):
            assert one_more.recv(1) == b""
        for connection in held:
            connection.close()
        until(lambda: _is_taken(node), "the ends of connections are not seen")
        with channel_to(node.here.tcp) as channel:
            assert Attached(channel, A_TOKEN).register()


def _is_taken(node) -> bool:
    with dial(node) as connection, contextlib.suppress(ConnectionResetError):
        return connection.recv(1) != b""
    return False


# ---- TLS ----


def credentials(authority: Authority, pair=None) -> grpc.ChannelCredentials:
    key, certificate = (pair.key, pair.certificate) if pair else (None, None)
    return grpc.ssl_channel_credentials(authority.pem, key, certificate)


def port_of(node) -> str:
    return f"localhost:{node.here.tcp.rpartition(':')[2]}"


def test_a_certificates_name_is_its_tenant(tls, authority):
    for name, tenant in (("client-a", "a"), ("client-b", "b")):
        with channel_to(port_of(tls), credentials(authority, authority.issue(name))) as channel:
            session = Attached(channel)
            assert session.register()
            sessions = tls.here.daemon._state.sessions
            assert sessions[session.welcome.session].tenant == tenant


def test_certificates_that_do_not_shake_hands(tls, authority):
    stranger = Authority("another")
    for pair in (
        None,
        stranger.issue("client-a"),
        authority.issue("client-a", until=-DAY),
    ):
        with channel_to(port_of(tls), credentials(authority, pair)) as channel:
            error = refusal(lambda c=channel: Attached(c, A_TOKEN))
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error


def test_without_tls_at_a_tls_port(tls):
    with channel_to(tls.here.tcp) as channel:
        assert refusal(lambda: Attached(channel, A_TOKEN)).code() == grpc.StatusCode.UNAVAILABLE


def test_a_client_refuses_a_server_of_another_authority(tls, authority):
    stranger = Authority("another")
    with channel_to(port_of(tls), credentials(stranger, authority.issue("client-a"))) as channel:
        assert refusal(lambda: Attached(channel)).code() == grpc.StatusCode.UNAVAILABLE


def test_a_certificate_and_a_token_have_to_agree(tls, authority):
    with channel_to(port_of(tls), credentials(authority, authority.issue("client-b"))) as channel:
        denied(lambda: Attached(channel, A_TOKEN), NO_CREDENTIAL)
        denied(lambda: Attached(channel, "x" * 40), NO_CREDENTIAL)
        assert Attached(channel, B_TOKEN).register()
    with channel_to(port_of(tls), credentials(authority, authority.issue("nobody"))) as channel:
        denied(lambda: Attached(channel), NO_CREDENTIAL)
        assert Attached(channel, A_TOKEN).register()


def test_a_sessions_token_under_another_tenants_certificate(tls, authority):
    a, b = (credentials(authority, authority.issue(f"client-{each}")) for each in "ab")
    with channel_to(port_of(tls), a) as ours, channel_to(port_of(tls), b) as other:
        token = Attached(ours).welcome.token
        denied(lambda: renew(token)(other), NO_TOKEN)
        assert refusal(lambda: renew(token)(ours)).code() == grpc.StatusCode.ABORTED


def test_a_certificate_is_taken_over_when_it_changes(short_directory, authority, tls_files):
    files = {name: short_directory / path.name for name, path in tls_files.items()}
    for name, path in tls_files.items():
        shutil.copy(path, files[name])
    with remote_node(short_directory, **files) as node:
        host, _, port = node.here.tcp.partition(":")
        first = ssl.get_server_certificate((host, int(port)))
        fresh = authority.issue("localhost", addresses=("127.0.0.1",))
        fresh.write(short_directory, "server")
        second = ssl.get_server_certificate((host, int(port)))
        assert first.encode() == tls_files["certificate"].read_bytes()
        assert second.encode() == fresh.certificate
        files["key"].write_bytes(b"no key at all")
        assert ssl.get_server_certificate((host, int(port))).encode() == fresh.certificate


# ---- floods, and changes of mind ----


def test_a_flood_of_bad_tokens_costs_few_lines(node, channel, caplog):
    with caplog.at_level(logging.WARNING, "kvd.audit"):
        before, observer = len(caplog.records), node.here.daemon.observer
        counted = observer.read()["kvd_denied_total"].get(("attach",), 0)
        for n in range(300):
            refusal(lambda n=n: Attached(channel, f"{n:040d}"))
        assert Attached(channel, A_TOKEN).register()
    lines = [record.getMessage() for record in caplog.records[before:]]
    assert observer.read()["kvd_denied_total"][("attach",)] == counted + 300
    assert len(lines) <= LINES_AT_ONCE + 10, "300 attempts within a minute"
    assert not any("0" * 30 in line for line in lines), "no credential is in the log"


def test_tokens_are_rotated_without_a_restart(short_directory, monkeypatch):
    monkeypatch.setattr(tokens, "LOOK_EVERY_NS", 0)
    with remote_node(short_directory) as node, channel_to(node.here.tcp) as channel:
        old = Attached(channel, A_TOKEN)
        denied(lambda: Attached(channel, A_NEXT), NO_CREDENTIAL)
        write_tokens(node.a_tokens, A_TOKEN, A_NEXT)
        assert Attached(channel, A_NEXT).register() and Attached(channel, A_TOKEN).register()
        write_tokens(node.a_tokens, A_NEXT)
        denied(lambda: Attached(channel, A_TOKEN), NO_CREDENTIAL)
        assert Attached(channel, A_NEXT).register()
        assert old.register(), "a session lives on"
        node.a_tokens.chmod(0o644)
        denied(lambda: Attached(channel, A_NEXT), NO_CREDENTIAL)
        node.a_tokens.chmod(0o600)
        assert Attached(channel, A_NEXT).register()
        node.a_tokens.unlink()
        denied(lambda: Attached(channel, A_NEXT), NO_CREDENTIAL)
        assert Attached(channel, B_TOKEN).register()

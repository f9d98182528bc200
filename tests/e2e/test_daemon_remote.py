"""Sessions by Attach: what they may do, and that they end with their stream, whatever ends that."""

import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

from kvd.clock import NS_PER_S
from kvd.limits import Limits
from kvd.rpc import grpc_service
from kvd.v1 import kvd_pb2 as pb
from kvd.v1 import kvd_pb2_grpc as pb_grpc
from kvd.wire import FEATURES, Feature
from tests.e2e.process import ROOT, Daemon
from tests.e2e.rawclient import chain_of
from tests.e2e.remote_node import (
    A_TOKEN,
    B_TOKEN,
    CHUNKS,
    Attached,
    bearer,
    channel_to,
    refusal,
    remote_node,
    until,
    write_tokens,
)
from tests.e2e.strips import fetch_request
from tests.e2e.test_daemon_delivery import assert_complete


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with remote_node(tmp_path_factory.mktemp("r")) as node:
        node.put("a")
        yield node


@pytest.fixture(params=["tcp", "unix"])
def channel(node, request):
    unix = f"unix:{node.here.directory / 'a' / 'grpc.sock'}"
    with channel_to(node.here.tcp if request.param == "tcp" else unix) as channel:
        yield channel


@pytest.fixture
def tcp(node):
    with channel_to(node.here.tcp) as channel:
        yield channel


def lookup(session: Attached, keyspace: int, chunks: int = CHUNKS) -> list[int]:
    request = pb.LookupRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=chain_of(chunks))
    return np.frombuffer(session.stub.Lookup(request, **session.credentials).counts, "<u4").tolist()


# ---- what it is told, and may ----


def test_the_welcome_states_versions_features_and_bounds(channel):
    welcome = Attached(channel, A_TOKEN).welcome
    assert welcome.protocol == 1 and welcome.features == FEATURES
    assert welcome.session and welcome.token and welcome.epoch and not welcome.nonce
    limits = Limits()
    assert welcome.frame_bytes_max == limits.frame_bytes_max
    assert welcome.bounds.chunks_per_request_max == limits.chunks_per_request_max
    assert welcome.bounds.lease_ms == limits.lease_ttl_ns // 1_000_000


def test_only_common_features_are_in_the_welcome(tcp):
    assert Attached(tcp, A_TOKEN, features=0).welcome.features == 0
    later = (1 << 63) | Feature.CLEAR
    assert Attached(tcp, A_TOKEN, features=later).welcome.features == Feature.CLEAR


def test_a_hello_that_cannot_be_is_refused(tcp):
    stub = Attached(tcp, A_TOKEN).stub
    for hello, code in (
        (pb.Hello(), grpc.StatusCode.INVALID_ARGUMENT),
        (pb.Hello(protocol_min=7, protocol_max=9), grpc.StatusCode.FAILED_PRECONDITION),
        (
            pb.Hello(protocol_min=1, protocol_max=1, client="x" * 257),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ):
        request = pb.AttachRequest(hello=hello)
        error = refusal(lambda r=request: list(stub.Attach(r, **bearer(A_TOKEN))))
        assert error.code() == code


def test_what_was_put_by_the_sockets_is_fetched_by_bytes(node, channel):
    session, stored = Attached(channel, A_TOKEN), node.stored["a"]
    keyspace = session.register()
    assert lookup(session, keyspace) == [CHUNKS] * 3
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES)
    request.keyspace = keyspace
    promise, *pieces, done = session.stub.Fetch(request, **session.credentials)
    got = [(r.piece.plane_class, r.piece.chunk, r.piece.offset, r.piece.data) for r in pieces]
    assert_complete(got, stored)
    assert done.done.delivered_bytes == sum(len(r.piece.data) for r in pieces)
    release = pb.ReleaseRequest(lease=promise.promise.lease)
    session.stub.Release(release, **session.credentials)


def test_a_tenant_sees_its_own_chunks_only(node, tcp):
    other = Attached(tcp, B_TOKEN)
    assert lookup(other, other.register()) == [0, 0, 0]


def test_what_needs_mapped_memory_is_refused_by_name(node, channel):
    session = Attached(channel, A_TOKEN)
    request = fetch_request(node.stored["a"])
    request.keyspace = session.register()
    error = refusal(lambda: list(session.stub.Fetch(request, **session.credentials)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "delivery" in error.details() and "BYTES" in error.details()
    reserve = pb.ReserveRequest(
        keyspace=request.keyspace, lane=pb.Lane(), chain=chain_of(1, seed=9000),
        sizes=np.full(3, 4096, "<u4").tobytes(),
    )  # fmt: skip
    error = refusal(lambda: session.stub.Reserve(reserve, **session.credentials))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "Reserve" in error.details()


# ---- its end ----


def is_dead(session: Attached, by: grpc.Channel) -> bool:
    """Return whether its token is none any more, asked on another connection."""
    try:
        pb_grpc.KvdStub(by).Renew(pb.RenewRequest(lease=1), **session.credentials)
    except grpc.RpcError as error:
        return error.code() == grpc.StatusCode.UNAUTHENTICATED
    return False


def test_a_session_ends_with_its_stream(node, channel):
    session = Attached(channel, A_TOKEN)
    keyspace = session.register()
    session.call.cancel()
    assert isinstance(session.next(), grpc.RpcError)
    until(lambda: refused(session, keyspace), "its token is dead")


def refused(session: Attached, keyspace: int) -> bool:
    try:
        lookup(session, keyspace)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED
        return True
    return False


def test_an_ended_session_owns_nothing(short_directory):
    limits = Limits(sessions_max=6)  # Of which each of two tenants may attach three.
    with remote_node(short_directory, limits) as node, channel_to(node.here.tcp) as channel:
        stored = node.put("a")
        other = Attached(channel, B_TOKEN)
        for _ in range(3 * limits.sessions_max):
            session = until(lambda: attached_or_none(channel), "a session has ended")
            request = fetch_request(stored, delivery=pb.DELIVERY_BYTES, rate_bits=1)
            request.keyspace = session.register()
            next(session.stub.Fetch(request, **session.credentials))
            session.call.cancel()
        kept = until(lambda: attached_or_none(channel), "a session has ended")
        until(lambda: len(node.here.daemon._state.sessions) == 3, "only the living are left")
        assert not node.here.daemon._state.leases
        assert kept.register() and other.register()


def test_a_tenant_cannot_take_all_sessions(short_directory):
    with (
        remote_node(short_directory, Limits(sessions_max=7)) as node,
        channel_to(node.here.tcp) as channel,
    ):
        ours = [Attached(channel, A_TOKEN) for _ in range(3)]
        error = refusal(lambda: Attached(channel, A_TOKEN))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "tenant a has 3 attached sessions" in error.details()
        assert all(Attached(channel, B_TOKEN).register() for _ in range(3))
        assert all(session.register() for session in ours)


def attached_or_none(channel: grpc.Channel) -> Attached | None:
    try:
        return Attached(channel, A_TOKEN)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(error.trailing_metadata())["kvd-retry-after-ms"]) > 0
        return None


def test_a_killed_client_is_gone_at_once(node, tcp):
    program = (
        "import sys; from tests.e2e.remote_node import *\n"
        "with channel_to(sys.argv[1]) as channel:\n"
        "    print(Attached(channel, A_TOKEN).welcome.token, flush=True); sys.stdin.read()"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program, node.here.tcp],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    with client:
        token = client.stdout.readline().strip()
        watcher = Attached(tcp, A_TOKEN)
        watcher.welcome.token, own = token, watcher.welcome.token
        assert not is_dead(watcher, tcp)
        client.send_signal(signal.SIGKILL)
        until(lambda: is_dead(watcher, tcp), "its session has ended")
        watcher.welcome.token = own
        assert watcher.register()


def test_a_peer_that_falls_silent_is_found(short_directory, monkeypatch):
    monkeypatch.setattr(grpc_service, "KEEPALIVE_MS", 1000)
    monkeypatch.setattr(grpc_service, "KEEPALIVE_TIMEOUT_MS", 3000)
    with (
        remote_node(short_directory) as node,
        Cable(node.here.tcp) as cable,
        channel_to(cable.address) as through,
        channel_to(node.here.tcp) as direct,
    ):
        session = Attached(through, A_TOKEN)
        assert session.register() and not is_dead(session, direct)
        cable.cut()
        until(lambda: is_dead(session, direct), "its session has ended")


class Cable:
    """Carries bytes between a client and the daemon until it is cut; neither is told of that."""

    def __init__(self, target: str) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._target, self._cut = target, threading.Event()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def cut(self) -> None:
        self._cut.set()

    def __enter__(self) -> "Cable":
        return self

    def __exit__(self, *failure: object) -> None:
        for each in (self._listening, *self._ends):
            each.close()

    def _accept(self) -> None:
        near, _ = self._listening.accept()
        host, port = self._target.rsplit(":", 1)
        far = socket.create_connection((host, int(port)))
        self._ends += [near, far]
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        while not self._cut.is_set() and (data := source.recv(1 << 16)):
            if not self._cut.is_set():
                sink.sendall(data)


def test_a_lost_lease_and_draining_are_told(short_directory):
    limits = Limits(lease_ttl_ns=NS_PER_S // 10, tick_ns=NS_PER_S // 20)
    with remote_node(short_directory, limits) as node, channel_to(node.here.tcp) as channel:
        node.put("a")
        session = Attached(channel, A_TOKEN)
        request = pb.LookupRequest(
            keyspace=session.register(), lanes=[pb.Lane()], chain=chain_of(CHUNKS), lease=True
        )
        lease = session.stub.Lookup(request, **session.credentials).lease
        assert session.next().lease_lost == lease
        node.here.drain()
        assert session.next().draining
        end = session.next()
        assert end.code() == grpc.StatusCode.UNAVAILABLE and "stopped" in end.details()
        error = refusal(lambda: Attached(channel, A_TOKEN))
        assert error.code() == grpc.StatusCode.UNAVAILABLE


# ---- as a process, by its configuration ----


def configured(directory: Path, text: str) -> Daemon:
    config = directory / "kvd.toml"
    config.write_text(text)
    return Daemon(directory / "run", "--config", str(config), "--dram", "64MiB")


def test_a_configured_port_is_open_to_its_tokens(short_directory):
    tokens = write_tokens(short_directory / "tokens", A_TOKEN)
    text = f'[tcp]\nlisten = "127.0.0.1:0"\n[tenants.a]\ntoken_file = "{tokens}"\n'
    daemon = configured(short_directory, text)
    try:
        line = daemon.wait_line("gRPC on tcp")
        with channel_to(re.search(r"127\.0\.0\.1:[0-9]+", line)[0]) as channel:
            session = Attached(channel, A_TOKEN)
            assert session.register()
            assert_shown(daemon, session)
            daemon.send(signal.SIGTERM)
            assert session.next().draining
            assert session.next().code() == grpc.StatusCode.UNAVAILABLE
        assert daemon.wait() == 0, daemon.lines
    finally:
        daemon.stop()


def assert_shown(daemon: Daemon, session: Attached) -> None:
    """See that operators are shown an attached session: from where, and that it has no user."""
    command = [sys.executable, "-m", "kvd.cli.admin", "sessions"]
    command += ["--directory", str(daemon.directory)]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert shown.returncode == 0, shown.stderr
    [row] = [line for line in shown.stdout.splitlines() if "ipv4:127.0.0.1:" in line]
    assert row.split()[:6] == [str(session.welcome.session), "a", "open", "test", "-", "-"], row


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('[tcp]\nlisten = "127.0.0.1:0"\n', "token_file"),
        ('[tcp]\nlisten = "0.0.0.0:0"\n[tenants.a]\ntoken_file = "TOKENS"\n', "certificate"),
        ('[tcp]\nlisten = "127.0.0.1:0"\n[tenants.a]\ntoken_file = "/none"\n', "No such file"),
    ],
)
def test_a_port_that_would_be_open_keeps_it_from_starting(short_directory, text, remedy):
    tokens = write_tokens(short_directory / "tokens", A_TOKEN)
    daemon = configured(short_directory, text.replace("TOKENS", str(tokens)))
    try:
        assert daemon.wait() == 2
        assert remedy in daemon.wait_line("kvd: "), daemon.lines
        assert len(daemon.lines) == 1, daemon.lines
    finally:
        daemon.stop()

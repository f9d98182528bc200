"""Start, second start, stop and exhaustion of the whole process."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest

from kvd.admin.asking import AdminClient
from kvd.config import ADMIN_SOCKET
from kvd.v1 import admin_pb2 as admin
from kvd.v1 import kvd_pb2 as pb
from kvd.v1.kvd_pb2_grpc import KvdStub
from kvd.wire import FrameKind
from tests.e2e.counted import free_port, scrape
from tests.e2e.process import DEADLINE_S, ROOT, Daemon, running
from tests.e2e.rawclient import (
    Channel,
    RawClient,
    Refused,
    chain_of,
    keyspace_message,
    small_keyspace,
)
from tests.e2e.strips import fetch_request, lookup, put, read_mapped, register

CELLS = 4
SOCKETS = ("session.sock", "slabs.sock", "grpc.sock")


def serve(*flags: str, environment=None, python=()) -> subprocess.CompletedProcess:
    """Run a daemon that is expected to refuse, and return what it said."""
    return subprocess.run(
        [sys.executable, *python, "-m", "kvd.cli.main", "serve", *flags],
        capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip


def assert_one_line(done: subprocess.CompletedProcess, *words: str) -> None:
    assert done.returncode == 2, done
    lines = done.stderr.strip().split("\n")
    assert len(lines) == 1 and lines[0].startswith("kvd: "), done.stderr
    assert all(word in lines[0] for word in words), lines


# ---- start ----


def test_readiness_names_directory_dram_and_the_sockets_are_there(short_directory):
    with running(short_directory) as daemon:
        [line] = daemon.lines
        assert f"ready on {short_directory}, dram 128MiB" in line
        for name in SOCKETS:
            path = daemon.tenant / name
            assert path.is_socket() and path.stat().st_mode & 0o777 == 0o600
        assert daemon.tenant.stat().st_mode & 0o777 == 0o700


def test_other_users_that_may_connect_can_reach_the_sockets(short_directory):
    directory = short_directory / "d"
    with running(directory, "--allow-uid", "12345") as daemon:
        assert directory.stat().st_mode & 0o777 == 0o755
        assert daemon.tenant.stat().st_mode & 0o777 == 0o755
        assert all((daemon.tenant / name).stat().st_mode & 0o777 == 0o666 for name in SOCKETS)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--dram", "10GB"), ("'10GB'", "GiB", "MiB")),
        (("--directory", "/proc/none"), ("/proc/none",)),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_a_bad_setting_is_refused_in_one_line(flags, words):
    assert_one_line(serve(*flags), *words)


def test_flags_go_over_the_environment(short_directory):
    environment = {"KVD_DRAM": "nonsense", "KVD_DIRECTORY": str(short_directory / "file")}
    (short_directory / "file").write_text("")
    assert_one_line(serve(environment=environment), "KVD_DRAM", "nonsense")
    done = serve("--dram", "64MiB", environment=environment)
    assert_one_line(done, str(short_directory / "file"), "not a directory")


def test_a_file_is_served(short_directory):
    file = short_directory / "kvd.toml"
    file.write_text(f'''
        directory = "{short_directory / "d"}"
        dram.size = "192MiB"
        [tenants.red]
        [tenants.blue]
    ''')
    daemon = Daemon(short_directory / "d", "--config", str(file))
    try:
        line = daemon.wait_line("ready on")
        assert "dram 192MiB, tenants red blue" in line
        for tenant in ("red", "blue"):
            assert lookup_nothing(RawClient(short_directory / "d" / tenant)) == [0, 0, 0]
    finally:
        daemon.stop()


def test_a_mistake_in_the_file_is_refused_in_one_line(short_directory):
    file = short_directory / "kvd.toml"
    file.write_text('[dram]\nsice = "1GiB"')
    done = serve("--config", str(file))
    assert_one_line(done, str(file), "'dram.sice'", "'dram.size'")
    assert_one_line(serve(environment={"KVD_CONFIG": str(file)}), "'dram.sice'")


def test_assertions_cannot_be_switched_off(short_directory):
    done = serve("--directory", str(short_directory), python=("-O",))
    assert_one_line(done, "-O")


def test_version_and_exit_codes_are_told():
    done = subprocess.run(
        [sys.executable, "-m", "kvd.cli.main", "--version"],
        capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("kvd ")
    assert "exit codes" in serve("--help").stdout


def test_a_second_daemon_says_who_is_there_and_the_first_goes_on(short_directory):
    with running(short_directory) as first:
        client = RawClient(first.tenant)
        second = serve("--directory", str(short_directory), "--dram", "64MiB")
        assert_one_line(second, str(short_directory / "kvd.lock"), f"pid {first.process.pid}")
        assert lookup_nothing(client) == [0, 0, 0]
        RawClient(first.tenant).close()


def test_sockets_of_a_dead_daemon_are_replaced(short_directory):
    with running(short_directory) as dead:
        first = RawClient(dead.tenant)
        dead.send(signal.SIGKILL)
        dead.wait()
        with pytest.raises(EOFError):
            first.channel.receive()
        assert (dead.tenant / "grpc.sock").is_socket()
        with running(short_directory) as daemon:
            client = RawClient(daemon.tenant)
            assert client.welcome.epoch != first.welcome.epoch
            assert client.epoch == client.welcome.epoch
            assert lookup_nothing(client) == [0, 0, 0]


def test_what_is_in_the_way_and_no_socket_is_left_alone(short_directory):
    path = short_directory / "default" / "session.sock"
    path.parent.mkdir()
    path.write_text("mine")
    assert_one_line(serve("--directory", str(short_directory)), str(path), "not a socket")
    assert path.read_text() == "mine"


# ---- stop ----


def lookup_nothing(client: RawClient) -> list[int]:
    keyspace = register(client, keyspace_message(small_keyspace("nothing")))
    reply = client.call(
        FrameKind.LOOKUP,
        pb.LookupRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=chain_of(1)),
    )
    return np.frombuffer(reply.counts, "<u4").tolist()


def assert_stopped(daemon: Daemon) -> None:
    assert daemon.wait() == 0, daemon.lines
    assert not any((daemon.tenant / name).exists() for name in SOCKETS)
    assert not any("bug" in line or "Traceback" in line for line in daemon.lines), daemon.lines


def test_an_idle_daemon_stops_at_once(short_directory):
    with running(short_directory) as daemon:
        client = RawClient(daemon.tenant)
        daemon.send(signal.SIGTERM)
        assert client.notice().draining
        kind, number, body = client.stream.receive()
        assert (kind, number) == (FrameKind.ERROR, 0)
        assert pb.Error.FromString(body).kind == pb.UNAVAILABLE
        with pytest.raises(EOFError):
            client.stream.receive()
        assert client.channel.listen().HasField("refused")
        assert_stopped(daemon)


def open_delivery(client: RawClient, model: str):
    """Begin a delivery that waits for credit."""
    keyspace = register(client, keyspace_message(small_keyspace(model)))
    stored = put(client, keyspace, chain_of(3), CELLS, 100)
    number = client.start(FrameKind.FETCH, fetch_request(stored, delivery=pb.DELIVERY_BYTES))
    client.answer(number, FrameKind.FETCH)
    return stored, number


def test_draining_lets_deliveries_end_and_takes_no_new_wishes(short_directory):
    with running(short_directory) as daemon:
        client, idle = RawClient(daemon.tenant), RawClient(daemon.tenant)
        stored, number = open_delivery(client, "drain")
        daemon.send(signal.SIGTERM)
        assert idle.notice().draining and client.notice().draining
        with pytest.raises(Refused) as refused:
            lookup(idle, stored)
        assert refused.value.kind == pb.UNAVAILABLE
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            Channel(daemon.tenant)
        plenty = pb.Credit(bytes=1 << 40).SerializeToString()
        client.stream.send(FrameKind.CREDIT, number, plenty)
        while client.stream.receive()[0] != FrameKind.REPLY:
            pass
        assert_stopped(daemon)


def test_fifty_streams_that_read_nothing_do_not_hold_up_the_bound(short_directory):
    with running(short_directory, "--drain-seconds", "0.2") as daemon:
        writer = RawClient(daemon.tenant)
        stored, _ = open_delivery(writer, "fifty")
        readers = [RawClient(daemon.tenant) for _ in range(49)]
        for reader in readers:
            register(reader, keyspace_message(small_keyspace("fifty")))
            reader.start(FrameKind.FETCH, fetch_request(stored, delivery=pb.DELIVERY_BYTES))
        daemon.send(signal.SIGTERM)
        assert_stopped(daemon)


def test_a_second_signal_ends_the_draining(short_directory):
    with running(short_directory, "--drain-seconds", "3600") as daemon:
        client = RawClient(daemon.tenant)
        open_delivery(client, "twice")
        daemon.send(signal.SIGTERM)
        assert client.notice().draining
        daemon.send(signal.SIGTERM)
        assert_stopped(daemon)


# ---- descriptors ----


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))


def test_without_descriptors_sessions_go_on_and_accepting_resumes(short_directory):
    with running(short_directory, prepare=few_descriptors) as daemon:
        client = RawClient(daemon.tenant)
        keyspace = register(client, keyspace_message(small_keyspace("few")))
        stored = put(client, keyspace, chain_of(2), CELLS, 100)
        crowd = []
        # Connecting succeeds as long as the backlog does; accepting stops long before.
        for _ in range(60):
            waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            waiting.connect(str(daemon.tenant / "slabs.sock"))
            crowd.append(waiting)
        line = daemon.wait_line("accepting at")
        assert "slabs.sock" in line and "LimitNOFILE" in line
        assert lookup(client, stored)[0] == [2, 2, 2]
        for waiting in crowd:
            waiting.close()
        daemon.wait_line("again")
        late = RawClient(daemon.tenant)
        assert lookup_nothing(late) == [0, 0, 0]
        assert lookup(client, stored)[0] == [2, 2, 2]
        assert sum("accepting at" in line for line in daemon.lines) == 2
        daemon.send(signal.SIGTERM)
        assert_stopped(daemon)


def test_without_descriptors_a_session_is_given_what_it_is_to_write(short_directory):
    """The slab of its first put, whoever has taken every descriptor meanwhile."""
    with running(short_directory, prepare=few_descriptors) as daemon:
        client, reader = RawClient(daemon.tenant), RawClient(daemon.tenant)
        keyspaces = [register(c, keyspace_message(small_keyspace("few"))) for c in (client, reader)]
        crowd = []
        for _ in range(60):
            waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            waiting.connect(str(daemon.tenant / "slabs.sock"))
            crowd.append(waiting)
        daemon.wait_line("accepting at")
        for seed in (0, 900):
            stored = put(client, keyspaces[0], chain_of(2, seed), CELLS, 100)
            assert lookup(reader, stored)[0] == [2, 2, 2]
        read_mapped(reader, stored)
        for waiting in crowd:
            waiting.close()
        assert keyspaces[0] == keyspaces[1]
        assert not any("session" in line and "closed" in line for line in daemon.lines)


@pytest.mark.parametrize("disk", (False, True), ids=("memory", "disk"))
def test_nothing_is_imported_once_it_serves(short_directory, disk):
    """For a module's file there may be no descriptor by then, and what wants it would raise."""
    flags = ["--dram", "128MiB", "--metrics-listen", f"127.0.0.1:{free_port()}"]
    if disk:
        flags += ["--data", str(short_directory / "data"), "--ssd", "64MiB"]
    daemon = Daemon(short_directory / "r", *flags, python=("-X", "importtime"))
    try:
        daemon.ready()
        client = RawClient(daemon.tenant)
        keyspace = register(client, keyspace_message(small_keyspace("imports")))
        stored = put(client, keyspace, chain_of(3), CELLS, 100)
        for delivery in (pb.DELIVERY_MAP, pb.DELIVERY_BYTES):
            number = client.start(FrameKind.FETCH, fetch_request(stored, delivery=delivery))
            lease = client.answer(number, FrameKind.FETCH).lease
            plenty = pb.Credit(bytes=1 << 40).SerializeToString()
            client.stream.send(FrameKind.CREDIT, number, plenty)
            while client.stream.receive()[0] not in (FrameKind.REPLY, FrameKind.ERROR):
                pass
            if lease:  # Raw strips fit no root, as the disk's hand may have found.
                corrupt = b"" if delivery == pb.DELIVERY_MAP else bytes(4)
                client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=lease, corrupt=corrupt))
        lookup(client, stored)
        about = {"keyspace": keyspace, "lanes": [pb.Lane()], "chain": stored.chain}
        client.call(FrameKind.PREFETCH, pb.PrefetchRequest(**about, class_count=3))
        client.call(FrameKind.CLEAR, pb.ClearRequest(keyspace=keyspace))
        with grpc.insecure_channel(f"unix:{daemon.tenant / 'grpc.sock'}") as channel:
            metadata = (("authorization", f"Bearer {client.welcome.token}"),)
            asked = pb.LookupRequest(**about)
            KvdStub(channel).Lookup(asked, metadata=metadata, timeout=DEADLINE_S)
        with AdminClient(short_directory / "r" / ADMIN_SOCKET) as asking:
            for name in ("Status", "Sessions", "Tiers", "Keyspaces", "Stats", "Misses", "Pins"):
                asking.call(name, getattr(admin, f"{name}Request")())
        scrape(int(flags[3].rpartition(":")[2]))
        client.close()
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
        daemon.wait_line("stopped")
    finally:
        daemon.stop()
    lines = [line for line in daemon.lines if "import time" in line or line.startswith("kvd: ")]
    serving = next(at for at, line in enumerate(lines) if "ready on" in line)
    end = next(at for at, line in enumerate(lines) if "draining" in line)
    assert serving > 100, "imports are told"
    assert not [line for line in lines[serving:end] if "import time" in line]


def test_a_session_that_finds_no_descriptor_is_refused_by_name(short_directory):
    with running(short_directory, prepare=few_descriptors) as daemon:
        client = RawClient(daemon.tenant)
        channels = []
        with pytest.raises(Refused) as refused:
            for _ in range(60):
                channels.append(Channel(daemon.tenant))
                channels[-1].hello()
        assert refused.value.kind == pb.OVERLOADED and refused.value.retry_after_ms
        assert "all 60 descriptors" in refused.value.message
        assert "LimitNOFILE" in refused.value.message
        assert lookup_nothing(client) == [0, 0, 0]


def test_slabs_leave_descriptors_to_sessions(short_directory):
    with running(short_directory, "--dram", "1GiB", prepare=few_descriptors) as daemon:
        assert "RLIMIT_NOFILE" in daemon.wait_line("slab not made")
        assert lookup_nothing(RawClient(daemon.tenant)) == [0, 0, 0]


def test_grpc_survives_the_want_of_descriptors(short_directory):
    with running(short_directory, prepare=few_descriptors) as daemon:
        client = RawClient(daemon.tenant)
        keyspace = register(client, keyspace_message(small_keyspace("few")))
        request = pb.LookupRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=chain_of(1))
        metadata = (("authorization", f"Bearer {client.welcome.token}"),)
        crowd = []
        for kind, name in ((socket.SOCK_STREAM, "grpc"), (socket.SOCK_SEQPACKET, "slabs")):
            for _ in range(60):
                waiting = socket.socket(socket.AF_UNIX, kind)
                waiting.connect(str(daemon.tenant / f"{name}.sock"))
                crowd.append(waiting)
        daemon.wait_line("accepting at")
        assert lookup_nothing(client) == [0, 0, 0]
        for waiting in crowd:
            waiting.close()
        with grpc.insecure_channel(f"unix:{daemon.tenant / 'grpc.sock'}") as channel:
            stub = KvdStub(channel)
            reply = stub.Lookup(request, metadata=metadata, timeout=DEADLINE_S, wait_for_ready=True)
        assert np.frombuffer(reply.counts, "<u4").tolist() == [0, 0, 0]


# ---- forks ----

FORKER = """
import os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.e2e.rawclient import *
client = RawClient(Path({tenant!r}))
print("in", flush=True)
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


def test_a_forked_child_that_keeps_the_sockets_does_not_keep_the_session(short_directory):
    with running(short_directory) as daemon:
        before = daemon.descriptors("socket:")
        code = FORKER.format(root=str(ROOT), tenant=str(daemon.tenant))
        parent = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout.readline() == "in\n"
        parent.wait(DEADLINE_S)
        # The child lives: its input is open. Yet the daemon lets go of both sockets.
        deadline = time.monotonic() + DEADLINE_S
        client = RawClient(daemon.tenant)
        while daemon.descriptors("socket:") > before + 2:
            assert time.monotonic() < deadline
            lookup_nothing(client)
        parent.stdin.close()

"""`kvd health` and `kvd doctor` at real daemons: serving, draining, none, one that hangs."""

import json
import signal
import socket

import pytest

from kvd.cli.main import main
from kvd.cli.version import version
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.process import running
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import fetch_request, put, register


@pytest.fixture
def health(capsys):
    def ask(*words):
        code = main(["health", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ask


def test_a_daemon_that_serves(health, short_directory):
    with running(short_directory / "run", "--tenant", "red", "--tenant", "blue"):
        own = ("--directory", short_directory / "run")
        both = health(*own, "--tenant", "red", "--tenant", "blue")
        path = short_directory / "run" / "red" / "grpc.sock"
        assert both[0] == 0 and f"{path}: serving\n" in both[1] and both[1].count("\n") == 2
        assert health("--socket", path) == (0, f"{path}: serving\n", "")
        # One tenant that is not there is enough to say so.
        code, out, err = health(*own, "--tenant", "red", "--tenant", "green")
        assert code == 3 and "red/grpc.sock: serving" in out and "green/grpc.sock: no answer" in err
        file = short_directory / "kvd.toml"
        file.write_text(f"directory = '{short_directory}/run'\n[tenants.blue]\n")
        assert health("--config", file)[0] == 0


def test_a_daemon_that_drains_is_alive(health, short_directory):
    with running(short_directory, "--drain-seconds", "3600") as daemon:
        client = RawClient(daemon.tenant)
        keyspace = register(client, keyspace_message(small_keyspace("drain")))
        stored = put(client, keyspace, chain_of(3), 4, 100)
        # A delivery that waits for credit, and the daemon for it.
        number = client.start(FrameKind.FETCH, fetch_request(stored, delivery=pb.DELIVERY_BYTES))
        client.answer(number, FrameKind.FETCH)
        daemon.send(signal.SIGTERM)
        assert client.notice().draining
        path = daemon.tenant / "grpc.sock"
        assert health("--socket", path) == (1, "", f"{path}: not_serving\n")
        assert health("--socket", path, "--alive") == (0, f"{path}: not_serving\n", "")


def test_nobody_there(health, short_directory):
    code, out, err = health("--directory", short_directory / "run", "--seconds", "0.2")
    path = short_directory / "run" / "default" / "grpc.sock"
    assert (code, out, err) == (3, "", f"{path}: no answer\n")


@pytest.mark.parametrize("flag", [(), ("--alive",)])
def test_a_daemon_that_hangs(health, short_directory, flag):
    path = short_directory / "grpc.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        assert health("--socket", path, "--seconds", "0.2", *flag)[0] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--tenant", "a/b"), "'a/b'"), (("--config", "/nowhere.toml"), "/nowhere.toml")],
)
def test_settings_that_are_refused(health, words, said):
    code, out, err = health(*words)
    assert (code, out) == (2, "") and said in err and len(err.splitlines()) == 1
    with pytest.raises(SystemExit) as ended:
        health("--seconds", "0")
    assert ended.value.code == 2


def test_the_doctor_asks_a_daemon_that_runs(short_directory, capsys):
    own = ("--directory", str(short_directory), "--dram", "128MiB")
    with running(short_directory) as daemon:
        code = main(["doctor", "--json", *own])
        report = json.loads(capsys.readouterr().out)
        found = {each["check"]: each for each in report["findings"]}
        assert code == 0 and report["running"] == daemon.process.pid
        assert found["runtime.version"]["found"] == f"it is kvd {version()}"
        sockets = [f for f in report["findings"] if f["check"] == "runtime.sockets"]
        assert len(sockets) == 4 and {each["level"] for each in sockets} == {"ok"}
    assert main(["doctor", "--json", *own]) == 0
    assert json.loads(capsys.readouterr().out)["running"] == 0

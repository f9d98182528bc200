"""`kvd-admin`: every verb against a daemon that is there, away, hung, old and newer."""

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from kvd.admin.asking import AdminClient, NoDaemon
from kvd.cli.admin import VERBS, main
from kvd.client import BlockShape, Client, Dtype, Keyspace
from kvd.config import ADMIN_SOCKET
from kvd.v1 import admin_pb2 as admin
from kvd.v1 import admin_pb2_grpc
from tests.e2e.process import DEADLINE_S, ROOT, running
from tests.e2e.ssd_node import until
from tests.unit.test_cli_figures import read_page

SHAPE = BlockShape.of_attention(layers=2, heads=1, width=16, dtype=Dtype.BF16)
CHUNKS, CHUNK_TOKENS = 6, 64
TOKENS = list(range(CHUNKS * CHUNK_TOKENS))


def keyspace(revision: str = "1") -> Keyspace:
    return Keyspace(model="story", weight_revision=revision, shape=SHAPE)


def tensors(tokens: int) -> list:
    values = np.random.default_rng(1).standard_normal((2, 1, tokens, 16), np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    return [(bits[0], bits[1])] * 2


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    flags = ("--tenant", "default", "--tenant", "other", "--data", str(data), "--ssd", "64MiB")
    with running(tmp_path_factory.mktemp("admin"), *flags) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(daemon):
    with Client(daemon.tenant, "kvd test", DEADLINE_S) as client:
        assert client.wait_connected(DEADLINE_S)
        yield client


@pytest.fixture
def stored(client):
    """Return the handle of a keyspace in which the whole text is stored, in memory and on disk."""
    space = client.keyspace(keyspace())
    assert space.put(space.chain(TOKENS), tensors(len(TOKENS)), durability="disk").durable
    space.lookup(space.chain(TOKENS))
    return space


@pytest.fixture
def run(daemon, capsys):
    """Run a verb in this process; return its exit code, standard output and errors."""

    def run(verb: str, *words: str):
        code = main([verb, "--directory", str(daemon.directory), *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def ask(run):
    def ask(verb: str, *words: str, code: int = 0) -> dict:
        found, out, err = run(verb, "--json", *words)
        assert (found, err) == (code, ""), (out, err)
        return json.loads(out)

    return ask


@pytest.fixture
def text(tmp_path):
    def write(tokens: list[int]) -> str:
        path = tmp_path / "tokens.json"
        path.write_text(json.dumps(tokens))
        return str(path)

    return write


def name_of(ask, revision: str = "1") -> str:
    found = [
        k for k in ask("keyspaces")["keyspaces"] if k["keyspace"]["weight_revision"] == revision
    ]
    return found[0]["digest"][:12]


def test_status(ask, run, stored) -> None:
    until(lambda: ask("status")["state"] == "ready", "memory is not made")
    status = ask("status")
    assert status["problems"] == []
    assert status["tenants"] == ["default", "other"] and status["sessions"] == 1
    dram, ssd = status["tiers"]
    assert sum(c["strips"] for c in dram["classes"]) == 3 * CHUNKS
    assert sum(each["bytes"] for each in dram["states"]) == dram["capacity"]
    assert ssd["classes"] == dram["classes"]
    code, out, _ = run("status")
    assert code == 0 and "no problems" in out and "1 sessions" in out


def test_tiers_by_tenant(ask, run, stored) -> None:
    tiers = ask("tiers")["tiers"]
    assert [tier["name"] for tier in tiers] == ["dram", "ssd"]
    shares = {share["tenant"]: share for share in tiers[0]["tenants"]}
    assert sum(c["strips"] for c in shares["default"]["classes"]) == 3 * CHUNKS
    assert sum(c["strips"] for c in shares["other"]["classes"]) == 0
    assert tiers[1]["directories"][0]["free"] > 0
    assert run("tiers")[1].count("default") == 2


def test_sessions(ask, run, client, stored) -> None:
    [session] = ask("sessions")["sessions"]
    assert (session["pid"], session["uid"]) == (os.getpid(), os.geteuid())
    assert session["client"].startswith("kvd") and session["tenant"] == "default"
    assert str(os.getpid()) in run("sessions")[1]


def test_keyspaces(ask, run, stored) -> None:
    [found] = [k for k in ask("keyspaces")["keyspaces"] if k["keyspace"]["weight_revision"] == "1"]
    assert found["chunks"] == CHUNKS and found["keyspace"]["groups"][0]["layers"] == 2
    assert "2 x k 1x16+v 1x16 bf16, 64 tokens" in run("keyspaces")[1]


def test_lookup_and_explain_of_what_is_whole(ask, run, stored, text) -> None:
    flags = ("--keyspace", name_of(ask), "--tokens", text(TOKENS))
    [lane] = ask("lookup", *flags)["lanes"]
    assert lane["counts"] == lane["in_dram"] == lane["on_disk"] == [CHUNKS] * 3
    assert "all 6 chunks are stored" in run("explain", *flags)[1]


def test_explain_says_where_tokens_part_and_what_never_came(ask, run, stored, text) -> None:
    name = name_of(ask)
    other = [*TOKENS[: 2 * CHUNK_TOKENS], *[7] * CHUNK_TOKENS]
    reply = ask("explain", "--keyspace", name, "--tokens", text(other), code=1)
    assert reply["lanes"][0]["finding"]["verdict"] == "diverges" and reply["lanes"][0]["first"] == 2
    longer = [*TOKENS, *[7] * CHUNK_TOKENS]
    code, out, _ = run("explain", "--keyspace", name, "--tokens", text(longer))
    assert code == 1 and "never_stored" in out and "chunk 6 of 7" in out


def test_explain_finds_another_revision_and_the_last_misses(ask, run, client, stored) -> None:
    space = client.keyspace(keyspace("2"))
    assert space.lookup(space.chain(TOKENS)).counts == (0, 0, 0)
    miss = ask("explain")["misses"][0]
    assert (miss["model"], miss["first"], miss["asked"]) == ("story", 0, CHUNKS)
    assert miss["finding"]["verdict"] == "other_keyspace"
    [difference] = miss["finding"]["alike"][0]["differences"]
    assert difference == {"field": "weight_revision", "asked": "2", "own": "1"}
    assert "other_keyspace" in run("explain")[1]


def test_evict_pin_unpin(ask, run, stored, text) -> None:
    flags = ("--keyspace", name_of(ask), "--tokens", text(TOKENS))
    pin = ask("pin", *flags)
    assert pin["counts"] == [CHUNKS] * 3
    assert ask("evict", "--tenant", "default")["strips"] == 0
    assert [p["pin"] for p in ask("pins")["pins"]] == [pin["pin"]]
    assert run("unpin", str(pin["pin"]))[0] == 0
    evicted = ask("evict", "--tenant", "default")
    assert evicted["strips"] == 3 * CHUNKS and evicted["bytes"] > 0
    [lane] = ask("lookup", *flags)["lanes"]
    assert (lane["counts"], lane["in_dram"]) == ([CHUNKS] * 3, [0] * 3)


def test_pin_brings_back_what_is_on_disk_only(ask, stored, text) -> None:
    flags = ("--keyspace", name_of(ask), "--tokens", text(TOKENS))
    ask("evict", "--tenant", "default")
    pin = ask("pin", "--classes", "1", *flags)
    assert pin["counts"] == [CHUNKS, 0, 0]
    ask("unpin", str(pin["pin"]))


def test_clear_says_what_it_would_do_and_then_does_it(ask, run, stored, text) -> None:
    name = name_of(ask)
    code, out, err = run("clear", "--keyspace", name)
    assert (code, out) == (2, "") and "give --yes" in err
    assert ask("clear", "--keyspace", name, "--yes")["chunks"] == CHUNKS
    flags = ("--keyspace", name, "--tokens", text(TOKENS))
    reply = ask("explain", *flags, code=1)
    finding = reply["lanes"][0]["finding"]
    assert (finding["verdict"], finding["notes"][-1]["why"]) == ("gone", "cleared")
    assert "cleared" in run("explain", *flags)[1]


def test_a_tenant_that_holds_nothing(ask, stored) -> None:
    assert ask("evict", "--tenant", "other", "--lossy") == {"strips": 0, "bytes": 0}
    assert ask("clear", "--tenant", "other", "--yes") == {"chunks": 0, "held": 0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lookup", "--keyspace", "xyz", "--tokens", "/dev/null"), "hexadecimal"),
        (("lookup", "--keyspace", "00000000", "--tokens", "/dev/null"), "means 0 keyspaces"),
        (("unpin", "77"), "there is no pin 77"),
        (("unpin", "-1"), "numbers begin at 1"),
        (("unpin", str(1 << 64)), f"there is no pin {1 << 64}"),
        (("stats", "kvd_nothing"), "'kvd_nothing'"),
        (("evict", "--tenant", "nobody"), "'nobody'"),
        (("evict", "--tenant", "default", "--bytes", "3 bananas"), "'3 bananas'"),
        (("evict", "--tenant", "default", "--bytes", "0"), "above 0"),
        (("evict", "--tenant", "default", "--bytes", "99999999TiB"), "'99999999TiB'"),
        (("clear", "--tenant", "nobody", "--yes"), "'nobody'"),
        (("explain", "--keyspace", "0000"), "--keyspace alone"),
    ],
)
def test_what_is_refused_is_one_line(run, stored, words, said) -> None:
    code, out, err = run(*words)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1


def test_bad_files_of_tokens(ask, run, stored, text, tmp_path) -> None:
    name = name_of(ask)
    short = run("lookup", "--keyspace", name, "--tokens", text(TOKENS[:10]))
    assert short[0] == 2 and "10 tokens" in short[2] and "64" in short[2]
    bad = tmp_path / "bad"
    for content in ("[1, 2", "one two", '["1"]', "[true]", "[-1]" + " " * 9):
        bad.write_text(content)
        code, _, err = run("lookup", "--keyspace", name, "--tokens", str(bad))
        assert code == 2 and err.count("\n") == 1, err
    code, _, err = run("lookup", "--keyspace", name, "--tokens", str(tmp_path / "none"))
    assert code == 2 and "No such file" in err
    code, _, err = run("lookup", "--keyspace", name, "--chain", "abcd")
    assert code == 2 and "32 for each chunk" in err


def test_wrong_usage_is_not_a_traceback(capsys) -> None:
    for words in (["nothing"], [], ["status", "--timeout", "never"], ["evict"], ["pin"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2 and "usage" in capsys.readouterr().err


def words_of(verb: str) -> list[str]:
    """Return flags with which the verb asks the daemon."""
    chain = ["--keyspace", "abcdef", "--chain", "00" * 32]
    whose = ["--tenant", "default"]
    flags = {"lookup": chain, "pin": chain, "unpin": ["1"], "evict": whose}
    return flags.get(verb, []) if verb != "clear" else [*whose, "--yes"]


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_no_daemon(verb, capsys, tmp_path) -> None:
    assert main([verb, "--directory", str(tmp_path), *words_of(verb)]) == 3
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "systemctl start kvd" in said.err


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_a_daemon_that_died_leaves_a_socket(verb, capsys, tmp_path_factory) -> None:
    directory = tmp_path_factory.mktemp("dead")
    import socket

    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / ADMIN_SOCKET))
    assert main([verb, "--directory", str(directory), *words_of(verb)]) == 3
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "no daemon answers" in said.err


def test_a_hung_daemon(capsys, tmp_path_factory) -> None:
    with running(tmp_path_factory.mktemp("hung")) as daemon:
        daemon.send(signal.SIGSTOP)
        try:
            for verb in VERBS:
                if verb.name == "drain":
                    continue  # It waits for as long as the daemon lives.
                words = [verb.name, "--directory", str(daemon.directory), "--timeout", "0.3"]
                assert main([*words, *words_of(verb.name)]) == 3, verb
                said = capsys.readouterr()
                assert "did not answer within" in said.err and said.err.count("\n") == 1
        finally:
            daemon.send(signal.SIGCONT)


class Strange(admin_pb2_grpc.KvdAdminServicer):
    """A daemon that knows one verb only, and answers it with the bytes it is given."""

    def __init__(self) -> None:
        self.data = b""

    def Status(self, request, context):
        return self.data


@pytest.fixture
def strange(tmp_path_factory):
    """Serve a status of any bytes and nothing else."""
    directory, daemon = tmp_path_factory.mktemp("strange"), Strange()
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(
        daemon.Status, admin.StatusRequest.FromString, lambda data: data
    )
    handlers = grpc.method_handlers_generic_handler("kvd.v1.KvdAdmin", {"Status": handler})
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"unix:{directory / ADMIN_SOCKET}")
    server.start()
    yield directory, daemon
    server.stop(None)


def test_an_older_daemon_that_says_less(strange, capsys) -> None:
    directory, daemon = strange
    daemon.data = admin.StatusReply(version="kvd 0.0.1").SerializeToString()
    for flags in ([], ["--json"]):
        assert main(["status", "--directory", str(directory), *flags]) == 0
        said = capsys.readouterr()
        assert "kvd 0.0.1" in said.out and said.err == ""
    assert json.loads(said.out)["tiers"] == []
    for verb in VERBS:
        if verb.name != "status":
            assert main([verb.name, "--directory", str(directory), *words_of(verb.name)]) == 2
            said = capsys.readouterr()
            assert "older than this tool" in said.err and said.err.count("\n") == 1


def test_a_newer_daemon_that_says_more(strange, capsys) -> None:
    directory, daemon = strange
    more = b"\xfa\x3e\x03new\xc0\x3e\x07"  # Fields 1007 and 1000.
    tier = admin.TierInfo(name="cxl", capacity=1 << 30).SerializeToString() + more
    known = admin.StatusReply(version="kvd 9.9", state="dreaming").SerializeToString()
    daemon.data = known + b"\x4a" + bytes([len(tier)]) + tier + more
    assert main(["status", "--directory", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "dreaming" in out and "cxl" in out


def test_output_that_nobody_reads(daemon) -> None:
    command = [sys.executable, "-m", "kvd.cli.admin", "tiers", "--directory", str(daemon.directory)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writing)
    assert done.returncode == 2 and "closed before all was said" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_told_what_to_do(daemon) -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(NoDaemon, match="may not be opened by uid 65534"):
            AdminClient(daemon.directory / ADMIN_SOCKET)
    finally:
        os.seteuid(0)


def test_the_socket_is_the_daemons_own(daemon) -> None:
    assert (daemon.directory / ADMIN_SOCKET).stat().st_mode & 0o777 == 0o600


def test_drain_ends_the_daemon(capsys, tmp_path_factory) -> None:
    with running(tmp_path_factory.mktemp("drain")) as daemon:
        assert main(["drain", "--directory", str(daemon.directory)]) == 0
        assert "has ended" in capsys.readouterr().out
        assert daemon.wait() == 0
        assert not (daemon.directory / ADMIN_SOCKET).exists()


def test_stats_are_the_metrics(ask, run, stored) -> None:
    samples = ask("stats", "kvd_sealed_chunks")["samples"]
    assert {s["name"] for s in samples} == {"kvd_sealed_chunks_total"}
    total = sum(
        s["value"] for s in samples if {"name": "tenant", "value": "default"} in s["labels"]
    )
    assert total >= CHUNKS and all(s["kind"] == "counter" for s in samples)
    histogram = ask("stats", "kvd_loop_lag")["samples"][0]
    assert histogram["buckets"][-1]["le"] is None and histogram["kind"] == "histogram"
    code, out, _ = run("stats", "kvd_sealed_bytes")
    assert code == 0 and "class=anchor" in out and "other" not in out
    assert "other" in run("stats", "--all", "kvd_sealed_bytes")[1]


def test_top_shows_pages_and_ends(ask, run, stored) -> None:
    words = ("--interval", "0.1", "--count", "2")
    code, out, _ = run("top", *words)
    assert code == 0 and out.count("hit rate") == 2 and "kvd test" in out
    code, out, _ = run("top", "--json", *words)
    first, second = map(json.loads, out.splitlines())
    assert code == 0 and first.keys() == second.keys() and second["state"] == "ready"
    assert second["tiers"][0]["classes"]["anchor"] > 0


def test_the_report_is_a_page_that_a_browser_shows(run, stored, tmp_path) -> None:
    output = tmp_path / "report.html"
    code, out, _ = run("report", "--seconds", "0.1", "--output", str(output))
    assert code == 0 and str(output) in out
    checker = read_page(output.read_text())
    assert "Residency by class and tier" in checker.text and "default" in checker.text
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium: the page is parsed, and not looked at in a browser")
    picture = tmp_path / "report.png"
    flags = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
    )  # fmt: skip
    shot = [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}"]
    subprocess.run([*shot, output.as_uri()], check=True, capture_output=True, timeout=60)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    dump = [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    shown = subprocess.run([*dump, output.as_uri()], check=True, capture_output=True, text=True)
    assert shown.stdout.count("<svg") >= 5 and "Hit rates" in shown.stdout


def test_a_report_that_cannot_be_written(run, stored, tmp_path) -> None:
    code, out, err = run("report", "--seconds", "0.1", "--output", str(tmp_path / "no" / "page"))
    assert code == 2 and "No such file" in err and err.count("\n") == 1

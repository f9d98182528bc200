"""The ssd tier of the whole process: what comes back after every kind of end, and how it starts."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from kvd.client import EXACT, Client, Delivery, Reason
from kvd.clock import NS_PER_S
from kvd.config import SsdSettings
from kvd.disk.posix import allocated_bytes
from kvd.limits import MIB, PAGE_BYTES, Limits
from tests.e2e.client_story import (
    ALL,
    CHUNK_TOKENS,
    CHUNKS,
    DEADLINE_S,
    KEYSPACE,
    TOKENS,
    blanks,
    connected,
    equal,
    store,
    tensors,
)
from tests.e2e.process import ROOT, in_process, running


@pytest.fixture
def data(tmp_path):
    return tmp_path / "a", tmp_path / "b"


def ssd_flags(data, size="64MiB"):
    return (*(word for path in data for word in ("--data", str(path))), "--ssd", size)


def chain(client: Client, first: int = 0) -> bytes:
    return client.keyspace(KEYSPACE).chain(np.arange(first, first + TOKENS))


def put_durably(client: Client, first: int = 0, seed: int = 1) -> None:
    space = client.keyspace(KEYSPACE)
    stored = space.put(
        chain(client, first), tensors(seed), durability="disk", deadline_s=DEADLINE_S
    )
    assert stored.durable and stored.stored + stored.had == CHUNKS, stored


def assert_there(client: Client, first: int = 0, seed: int = 1, **how) -> None:
    targets, deadline = blanks(), time.monotonic() + DEADLINE_S
    while True:
        with client.keyspace(KEYSPACE).fetch(chain(client, first), **how) as fetch:
            list(fetch.arrivals())
            good, reason = fetch.decode(ALL, EXACT, targets), fetch.reason
        # Just after its start the daemon has no memory yet to read into.
        if reason != Reason.NO_ROOM:
            break
        assert time.monotonic() < deadline
    assert good == CHUNKS, (fetch.counts, reason)
    assert equal(targets, tensors(seed))


def stop(daemon) -> None:
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.lines
    assert not any("bug" in line or "Traceback" in line for line in daemon.lines), daemon.lines


def said(daemon, words: str) -> bool:
    """Return whether a line so far has the words; what a host lacks may be said before."""
    return any(words in line for line in daemon.lines)


def allocated(data) -> int:
    return sum(allocated_bytes(path) for path in data)


def test_what_was_acknowledged_durable_survives_a_kill(short_directory, data):
    with running(short_directory, *ssd_flags(data)) as daemon:
        put_durably(connected(daemon.tenant))
        daemon.send(signal.SIGKILL)
        daemon.wait()
    with running(short_directory, *ssd_flags(data)) as daemon:
        assert said(daemon, f"{CHUNKS} chunks in ") and said(daemon, "segments of 4MiB")
        client = connected(daemon.tenant)
        assert client.keyspace(KEYSPACE).lookup(chain(client)).counts == (CHUNKS,) * 3
        assert_there(client)
        stop(daemon)
    with running(short_directory, *ssd_flags(reversed(data))) as daemon:
        client = connected(daemon.tenant)
        assert_there(client, delivery=Delivery.BYTES)
        assert_there(client, delivery=Delivery.MAP)


def test_all_that_was_sealed_is_there_after_a_stop(short_directory, data):
    with running(short_directory, *ssd_flags(data)) as daemon:
        client = connected(daemon.tenant)
        store(client)
        stop(daemon)
    with running(short_directory, *ssd_flags(data)) as daemon:
        assert_there(connected(daemon.tenant))


def test_disk_holds_what_dram_does_not_and_stays_within_its_budget(short_directory, data):
    count = 24
    with running(short_directory, *ssd_flags(data, "16MiB"), "--dram", "1MiB") as daemon:
        client = connected(daemon.tenant)
        for number in range(count):
            put_durably(client, number * TOKENS, number)
        assert allocated(data) <= 16 * MIB
        for number in range(count):
            assert_there(client, number * TOKENS, number)
        for number in range(count, 5 * count):
            client.keyspace(KEYSPACE).put(chain(client, number * TOKENS), tensors(number))
            assert allocated(data) <= 16 * MIB
        stop(daemon)
    assert allocated(data) <= 16 * MIB


def test_a_damaged_catalog_is_said_once_and_begun_anew(short_directory, data):
    with running(short_directory, *ssd_flags(data)) as daemon:
        put_durably(connected(daemon.tenant))
        stop(daemon)
    file = data[0] / "catalog" / "data.mdb"
    file.write_bytes(b"\xa5" * file.stat().st_size)
    with running(short_directory, *ssd_flags(data)) as daemon:
        damaged, *_, summary, _ = daemon.lines
        assert "damaged" in damaged and "given up" in damaged
        assert "0 chunks in 0 segments" in summary
        assert not any(os.listdir(path / "segments") for path in data)
        client = connected(daemon.tenant)
        assert client.keyspace(KEYSPACE).lookup(chain(client)).counts == (0, 0, 0)
        put_durably(client)
        stop(daemon)
    with running(short_directory, *ssd_flags(data)) as daemon:
        assert_there(connected(daemon.tenant))


def test_segments_that_are_gone_cost_their_strips_only(short_directory, data):
    with running(short_directory, *ssd_flags(data[:1])) as daemon:
        put_durably(connected(daemon.tenant))
        stop(daemon)
    segments = [each for path in data[:1] for each in (path / "segments").iterdir()]
    exact = max(segments, key=lambda path: path.read_bytes()[48])
    exact.unlink()
    with running(short_directory, *ssd_flags(data[:1])) as daemon:
        assert said(daemon, f"1 segments are gone, and with them the strips of {CHUNKS} chunks")
        client = connected(daemon.tenant)
        counts = client.keyspace(KEYSPACE).lookup(chain(client)).counts
        assert counts == (CHUNKS, CHUNKS, 0)
        stop(daemon)
    with running(short_directory, *ssd_flags(data[:1])) as daemon:
        assert said(daemon, "chunks in 2 segments")


def serve(directory, *flags: str) -> subprocess.CompletedProcess:
    """Run a daemon that is expected to refuse."""
    words = ["-m", "kvd.cli.main", "serve", "--directory", str(directory), *flags]
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT
    )


def assert_refused(done: subprocess.CompletedProcess, *words: str) -> None:
    lines = done.stderr.strip().split("\n")
    assert done.returncode == 2 and len(lines) == 1, done
    assert all(word in lines[0] for word in words), lines


def test_what_cannot_be_is_refused_in_one_line(short_directory, data):
    with running(short_directory / "r", *ssd_flags(data)) as daemon:
        again = serve(short_directory / "s", *ssd_flags(data))
        assert_refused(again, str(data[0]), f"pid {daemon.process.pid}")
        put_durably(connected(daemon.tenant))
        stop(daemon)
    assert_refused(serve(short_directory / "s", "--data", str(data[0])), "2 data directories")
    assert_refused(serve(short_directory / "s", *ssd_flags(data, "9MiB")), "ssd is 9MiB", "--ssd")
    (data[0] / "superblock").write_bytes(b"no")
    assert_refused(serve(short_directory / "s", *ssd_flags(data)), str(data[0]), "superblock")


def put_until(client: Client, done) -> None:
    """Put the same chunks durably until the answer is `done`."""
    deadline = time.monotonic() + DEADLINE_S
    space = client.keyspace(KEYSPACE)
    while not done(space.put(chain(client), tensors(), durability="disk", deadline_s=1)):
        assert time.monotonic() < deadline


def test_a_directory_that_fails_is_done_without_until_it_works_again(short_directory, data, caplog):
    caplog.set_level(logging.INFO, "kvd.ssd")
    limits = replace(Limits(), probe_ns=NS_PER_S // 10, tick_ns=NS_PER_S // 50)
    settings = SsdSettings(data[:1], 64 * MIB)
    with in_process(short_directory, limits, 16 * MIB, settings) as tenant:
        client = connected(tenant)
        canary = data[0] / "canary"
        canary.unlink()
        canary.mkdir()
        put_until(client, lambda stored: stored.reason == Reason.UNAVAILABLE)
        store(client)
        assert_there(client)
        canary.rmdir()
        canary.write_bytes(bytes(PAGE_BYTES))
        # What was stored meanwhile in memory only is written of itself.
        put_until(client, lambda stored: stored.durable and stored.had == CHUNKS)
        client.close()
    said = [r.getMessage().split(" ", 3)[3] for r in caplog.records if r.name == "kvd.ssd"]
    assert len(said) == 2 and said[0].startswith("is degraded") and said[1] == "works again"


BROKEN = """
import sys
from kvd.disk.writing import Writer
from kvd.cli.main import main
def fail(self):
    raise AssertionError("a thread's end")
Writer._work = fail
sys.exit(main(sys.argv[1:]))
"""


def test_a_thread_that_fails_ends_the_daemon_as_a_bug(short_directory, data):
    words = ["serve", "--directory", str(short_directory), *ssd_flags(data)]
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *words],
        capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 70 and "bug: AssertionError: a thread's end" in done.stderr, done


def test_the_default_place_is_used_when_only_a_size_is_named(short_directory, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(short_directory / "state"))
    with running(short_directory / "r", "--ssd", "32MiB") as daemon:
        assert said(daemon, f"ssd 32MiB on {short_directory / 'state' / 'kvd'}: 0 chunks")
        assert len(chain(connected(daemon.tenant))) == TOKENS // CHUNK_TOKENS * 32
        stop(daemon)

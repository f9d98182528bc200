"""One tenant at its quotas while another floods a daemon: the quiet one loses nothing."""

import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kvd.client import EXACT, Client, Reason
from tests.e2e.process import DEADLINE_S, Daemon
from tests.e2e.test_client_pressure import CHUNKS, KEYSPACE, LAYERS, prefix

QUIET, FLOOD = range(50), range(10_000, 10_330)  # A prefix has 24 strips of one page each.
QUOTAS = {"dram": "4MiB", "ssd": "6MiB"}  # Two slabs of four, and a part of the segments.
SETTINGS = """
[dram]
size = "8MiB"
[ssd]
data = ["{data}"]
budget = "26MiB"
[tenants.burst]
[tenants.quiet]
"""


@contextmanager
def daemon_of(directory: Path, **quotas: str):
    """Yield a daemon with two tenants, one of which has these quotas."""
    settings = directory / "kvd.toml"
    lines = [f'{name} = "{size}"' for name, size in quotas.items()]
    settings.write_text(SETTINGS.format(data=directory / "data") + "\n".join(lines) + "\n")
    daemon = Daemon(directory / "run", "--config", str(settings))
    try:
        yield daemon
    finally:
        daemon.stop()


@contextmanager
def client_of(daemon: Daemon, tenant: str):
    client = Client(daemon.directory / tenant, tenant, DEADLINE_S)
    try:
        assert client.wait_connected(DEADLINE_S), client.status().reason
        yield client.keyspace(KEYSPACE)
    finally:
        client.close()


def put(space, number: int, durability: str = "memory"):
    """Put again while memory grows, or changes hands."""
    tokens, tensors = prefix(number)
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while True:
        stored = space.put(space.chain(tokens), tensors, durability=durability)
        if not stored.refused or time.monotonic() > deadline:
            return stored
        pause.wait(0.02)


def hits(space, numbers: range) -> int:
    """Return how many of these prefixes are there, all of them."""
    return sum(space.lookup(space.chain(prefix(n)[0])).counts[2] == CHUNKS for n in numbers)


def flood(daemon: Daemon, failures: list) -> threading.Thread:
    def run() -> None:
        with client_of(daemon, "burst") as space:
            for number in FLOOD:
                stored = put(space, number, "disk" if number % 10 == 0 else "memory")
                if stored.refused:
                    failures.append(stored)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_hits_of_a_quiet_tenant_do_not_fall(short_directory):
    """Part of what it stored is on disk only; the flood is more than all that the tiers hold."""
    with daemon_of(short_directory, **QUOTAS) as daemon:
        daemon.ready()
        with client_of(daemon, "quiet") as space:
            for number in QUIET:
                assert put(space, number, "disk").durable
            failures: list = []
            flooding = flood(daemon, failures)
            seen = [hits(space, QUIET)]
            while flooding.is_alive():
                seen.append(hits(space, QUIET))
            flooding.join()
            assert not failures
            seen.append(hits(space, QUIET))
            with client_of(daemon, "burst") as other:
                assert hits(other, FLOOD) < len(FLOOD) * 3 // 4, "the flood shows nothing"
            assert set(seen) == {len(QUIET)}
            for number in QUIET[::7]:
                _read(space, number)


def _read(space, number: int) -> None:
    tokens, tensors = prefix(number)
    with space.fetch(space.chain(tokens)) as fetch:
        for _ in fetch.arrivals():
            pass
        targets = [[np.zeros_like(tensor) for tensor in row] for row in tensors]
        assert fetch.decode((0, LAYERS), EXACT, targets) == CHUNKS, fetch.reason
    for ours, theirs in zip(targets, tensors, strict=True):
        assert all(map(np.array_equal, ours, theirs))


def test_a_quota_that_is_lowered_keeps_what_is_newest(short_directory):
    with daemon_of(short_directory, **QUOTAS) as daemon:
        daemon.ready()
        with client_of(daemon, "quiet") as space:
            for number in QUIET[:20]:
                assert put(space, number, "disk").durable
    with daemon_of(short_directory, dram="2MiB", ssd="1MiB") as daemon:
        daemon.ready()
        with client_of(daemon, "quiet") as space:
            deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
            while (left := hits(space, QUIET[:20])) > 11:
                assert time.monotonic() < deadline, left
                pause.wait(0.05)
            assert left >= 5
            assert put(space, 99, "disk").durable


def test_what_a_quota_cannot_hold_is_refused_by_its_name(short_directory):
    with daemon_of(short_directory, dram="2MiB") as daemon:
        daemon.ready()
        with client_of(daemon, "quiet") as space:
            held = []
            for number in range(21):
                put(space, number)
                held.append(space.fetch(space.chain(prefix(number)[0])))
            tokens, tensors = prefix(99)
            stored = space.put(space.chain(tokens), tensors)
            assert stored.refused and stored.reason == Reason.QUOTA, stored
            for fetch in held:
                fetch.release()
            assert not put(space, 99).refused


@pytest.mark.parametrize(
    ("quotas", "told"),
    (
        ({"dram": "1MiB"}, "dram quota of tenant quiet is 1MiB, less than a slab"),
        ({"dram": "8MiB"}, "leave no slab of 2MiB to burst"),
        ({"ssd": "20MiB"}, "can be promised of"),
    ),
)
def test_a_daemon_with_quotas_that_cannot_be_kept_does_not_start(short_directory, quotas, told):
    with daemon_of(short_directory, **quotas) as daemon:
        assert told in daemon.wait_line_or_end(told), daemon.lines
        assert daemon.process.wait(DEADLINE_S) == 2

"""Restarts by a service manager: dram is kept, no client call fails, no stale byte is believed."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from kvd.client import Client, Reason
from kvd.client.session import Session
from tests.e2e import client_story as story
from tests.e2e.process import DEADLINE_S
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.ssd_node import until
from tests.e2e.strips import put, register
from tests.e2e.supervising import Supervisor, managed

DRAM = ("--dram", "192MiB")
RESTARTS = 4
STOP_SECONDS = 10.0


@pytest.fixture
def manager(short_directory):
    with managed(short_directory / "run", *DRAM) as made:
        yield made


def restart(manager: Supervisor) -> None:
    assert manager.stop(signal.SIGTERM) == 0, manager.daemon.lines
    manager.start()


def connected(client: Client) -> Client:
    assert client.wait_connected(DEADLINE_S), client.status().reason
    return client


def read_all(client: Client) -> bool:
    """Return whether all of the story's chunks are there, right to the bit."""
    return story.read_all(connected(client))


# ---- dram over a restart ----


def test_dram_is_kept_without_any_disk(manager):
    manager.start()
    with Client(manager.tenant, "test", DEADLINE_S) as client:
        story.store(connected(client))
        for _ in range(RESTARTS):
            epoch = client.status().epoch
            restart(manager)
            manager.daemon.wait_line("12 chunks of the daemon before are in dram")
            until(lambda: client.status().connected, "the client is back")
            assert client.status().epoch != epoch and read_all(client)
        assert client.status().counters.checksum_failures == 0
    assert not manager.store  # It was taken out of the store when it was taken over.


def test_slabs_are_written_again_behind_a_restart(short_directory):
    """More than dram holds is put, again and again, through slabs that were taken over."""
    with managed(short_directory / "run", "--dram", "64MiB") as manager:
        manager.start()
        with Client(manager.tenant, "test", DEADLINE_S) as client:
            for turn in range(3):
                connected(client)
                stored = 0
                for seed in range(12):
                    space = client.keyspace(story.KEYSPACE)
                    chain = space.chain(np.arange(story.TOKENS) + 10_000 * (12 * turn + seed))
                    stored += space.put(chain, story.tensors(seed)).stored
                assert stored == 12 * story.CHUNKS
                assert manager.daemon.descriptors("memfd:kvd-slab") == 2
                restart(manager)


def test_with_a_disk_nothing_is_read_from_it(short_directory):
    data = short_directory / "data"
    flags = ("--data", str(data), "--ssd", "384MiB")
    with managed(short_directory / "run", "--dram", "256MiB", *flags) as manager:
        manager.start()
        with Client(manager.tenant, "test", DEADLINE_S) as client:
            story.store(connected(client))
            restart(manager)
            connected(client)
            before = read_bytes(manager)
            assert read_all(client) and read_bytes(manager) - before < 100_000
            # The same chunks from the disk alone: the catalog was not told of another put.
            assert manager.stop(signal.SIGKILL) == -signal.SIGKILL
            manager.start()
            until(lambda: read_from_disk(client), "it comes from the disk")
            assert read_bytes(manager) > 100_000


def slabs_of(client: Client) -> list:
    return list(client._link.current.slabs._slabs.values())


def read_from_disk(client: Client) -> bool:
    targets = story.blanks()
    with client.keyspace(story.KEYSPACE).fetch(story.chain_of(client)) as fetch:
        list(fetch.arrivals())
        count = fetch.decode(story.ALL, story.EXACT, targets)
        return count == story.CHUNKS and story.equal(targets, story.tensors())


def read_bytes(manager: Supervisor) -> int:
    counts = Path(f"/proc/{manager.daemon.process.pid}/io").read_text()
    return int(counts.split("rchar: ")[1].split()[0])


# ---- what must not be believed ----


def test_after_a_kill_dram_is_cold(manager):
    manager.start()
    with Client(manager.tenant, "test", DEADLINE_S) as client:
        story.store(connected(client))
        assert manager.stop(signal.SIGKILL) == -signal.SIGKILL
        manager.start()
        space = connected(client).keyspace(story.KEYSPACE)
        assert space.lookup(story.chain_of(client)).counts == (0, 0, 0)


def test_what_a_store_still_holds_after_a_kill_is_stale(manager):
    """As if the word to forget it had been lost: the bytes may be others by now."""
    manager.start()
    with Client(manager.tenant, "test", DEADLINE_S) as client:
        story.store(connected(client))
        assert manager.stop(signal.SIGTERM) == 0
        held = {name: [os.dup(number) for number in kept] for name, kept in manager.store.items()}
        manager.start()
        connected(client)
        assert manager.stop(signal.SIGKILL) == -signal.SIGKILL
        manager.store.update(held)
        manager.start()
        manager.daemon.wait_line("did not end in order")
        space = connected(client).keyspace(story.KEYSPACE)
        assert space.lookup(story.chain_of(client)).counts == (0, 0, 0)
        assert not manager.store


def test_of_another_size_of_slabs_nothing_is_taken_over(manager):
    manager.start()
    with Client(manager.tenant, "test", DEADLINE_S) as client:
        story.store(connected(client))
        assert manager.stop(signal.SIGTERM) == 0
        manager.flags = ("--dram", "32MiB")
        manager.start()
        manager.daemon.wait_line("now they have")
        assert not manager.store


def test_without_a_supervising_nothing_is_kept(short_directory):
    from tests.e2e.process import running

    with running(short_directory) as daemon:
        RawClient(daemon.tenant)
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
        assert not any("kept" in line for line in daemon.lines)


def test_a_writer_that_does_not_detach_keeps_its_slab_to_itself(manager, monkeypatch):
    """It may write on in its old mapping: its slab is read, and never written by others."""
    monkeypatch.setattr(Session, "_detach_if_due", lambda self: None)
    manager.start()
    with Client(manager.tenant, "test", DEADLINE_S) as client:
        story.store(connected(client))
        [written] = [slab for slab in slabs_of(client) if slab.writable]
        inside = written.mapping.head(written.size)
        restart(manager)
        until(lambda: client.status().connected, "the client is back")
        assert read_all(client)
        space = client.keyspace(story.KEYSPACE)
        for seed in range(5):
            chain = space.chain(np.arange(story.TOKENS) + 10_000 * (seed + 1))
            assert space.put(chain, story.tensors(seed)).stored == story.CHUNKS
        assert written.mapping.head(written.size) == inside and read_all(client)


# ---- under load ----


@dataclass
class Load:
    """One client that puts and fetches until it is told to stop, and checks every bit."""

    tenant: Path
    number: int
    calls: int = 0
    hits: int = 0
    stored: int = 0
    wrong: list[str] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        with Client(self.tenant, f"load {self.number}", DEADLINE_S) as client:
            space = client.keyspace(story.KEYSPACE)
            while not stop.is_set():
                seed = self.calls % 5 + 10 * self.number
                chain = space.chain(np.arange(story.TOKENS) + 1000 * seed)
                self._turn(space, chain, story.tensors(seed))

    def _turn(self, space, chain: bytes, ours) -> None:
        self.calls += 3
        self.stored += space.put(chain, ours).stored
        space.lookup(chain)
        with space.fetch(chain, deadline_s=5.0) as fetch:
            targets = story.blanks()
            count = fetch.decode(story.ALL, story.EXACT, targets)
            self.hits += count == story.CHUNKS
            rows = slice(0, count * story.CHUNK_TOKENS)
            pairs = zip(sum(ours, []), sum(targets, []), strict=True)
            if not all(np.array_equal(a[:, rows], b[:, rows]) for a, b in pairs):
                self.wrong.append(f"client {self.number}, call {self.calls}, {count} chunks")


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_no_call_fails_over_restarts(short_directory, disk):
    flags = ("--data", str(short_directory / "data"), "--ssd", "384MiB") if disk else ()
    with managed(short_directory / "run", "--dram", "256MiB", *flags) as manager:
        manager.start()
        stop = threading.Event()
        loads = [Load(manager.tenant, number) for number in range(3)]
        with ThreadPoolExecutor(len(loads)) as pool:
            running = [pool.submit(load.run, stop) for load in loads]
            try:
                for _ in range(RESTARTS):
                    before = [load.hits for load in loads]
                    until(
                        lambda before=before: all(
                            load.hits > hits + 3 for load, hits in zip(loads, before, strict=True)
                        ),
                        "everybody is served",
                    )
                    restart(manager)
                    manager.daemon.wait_line("of the daemon before")
            finally:
                stop.set()
            for one in running:
                one.result(DEADLINE_S)  # An exception of a client's call is raised here.
        assert not [each for load in loads for each in load.wrong]


# ---- sockets and time ----


def test_while_no_daemon_runs_connections_wait_and_calls_miss(manager):
    manager.start()
    with Client(manager.tenant, "test", DEADLINE_S) as client:
        story.store(connected(client))
        assert manager.stop(signal.SIGTERM) == 0
        space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
        late = (Reason.DISCONNECTED, Reason.UNAVAILABLE, Reason.LATE)
        assert space.fetch(chain, deadline_s=0.2).reason in late
        assert space.put(chain, story.tensors(), deadline_s=0.2).stored == 0
        assert space.lookup(chain, deadline_s=0.2).counts == (0, 0, 0)
        fresh = Client(manager.tenant, "fresh", DEADLINE_S)  # Connects to the queue.
        manager.start()
        connected(fresh)
        assert read_all(client) and read_all(fresh)
        fresh.close()


def test_passed_sockets_stay_and_own_ones_go(manager):
    manager.start()
    assert (manager.tenant / "grpc.sock").is_socket()
    assert manager.stop(signal.SIGTERM) == 0
    assert sorted(path.name for path in manager.tenant.iterdir()) == ["session.sock", "slabs.sock"]


@pytest.mark.parametrize("swap", ["kinds", "names", "not listening"])
def test_wrong_sockets_are_refused_in_one_line(short_directory, swap):
    import socket

    with managed(short_directory / "run", *DRAM) as manager:
        made = manager.sockets
        match swap:
            case "kinds":
                made["session.default"], made["slabs.default"] = made.values()
                made |= {
                    "session.default": made["slabs.default"],
                    "slabs.default": made["session.default"],
                }
                word = "SOCK_STREAM"
            case "names":
                made["session.blue"] = made.pop("session.default")
                word = "session.blue"
            case _:
                made["session.default"].close()
                made["session.default"] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                word = "does not listen"
        daemon = manager.begin()
        assert daemon.wait() == 2
        [line] = [line for line in daemon.lines if "kvd:" in line]
        assert word in line


def test_a_client_that_hangs_does_not_hold_up_the_end(short_directory):
    """It has a reservation open and a slab in its hands, and is stopped."""
    with managed(short_directory / "run", *DRAM, "--drain-seconds", "1") as manager:
        manager.start()
        client = story.connected(manager.tenant)
        story.store(client)
        raw = RawClient(manager.tenant)
        keyspace = register(raw, keyspace_message(small_keyspace("hangs")))
        put(raw, keyspace, chain_of(2), 4, 100)
        assert manager.stop(signal.SIGTERM) == 0
        manager.start()
        assert read_all(client)
        client.close()


def test_the_manager_is_told_what_happens_and_watches(short_directory):
    with managed(short_directory / "run", *DRAM, watchdog_s=1.0) as manager:
        manager.start()
        for _ in range(3):
            assert manager.beats.acquire(timeout=DEADLINE_S)
        until(lambda: "dram 3 of 3 slabs" in manager.statuses, "all slabs are there")
        manager.daemon.send(signal.SIGTERM)
        assert manager.next_told() == "STOPPING=1"
        assert manager.daemon.wait() == 0
        assert manager.statuses[0].startswith("starting") and "draining" in manager.statuses

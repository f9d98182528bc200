"""The SDK when something dies, hangs, forks, stops or is damaged: misses, and never wrong bytes."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvd.client import EXACT, Client, Delivery, Reason, Space
from kvd.clock import NS_PER_MS
from kvd.errors import ErrorKind
from kvd.limits import MIB, Limits
from tests.e2e import client_story as story
from tests.e2e.process import DEADLINE_S, Daemon, in_process, playing, running

STORY = "tests.e2e.client_story"
LARGE_TOKENS = 16 * 256
SHORT = replace(
    Limits(),
    lease_ttl_ns=300 * NS_PER_MS,
    quarantine_ns=100 * NS_PER_MS,
    tick_ns=20 * NS_PER_MS,
    slab_bytes=4 * MIB,
)


@pytest.fixture
def daemon(short_directory):
    with running(short_directory) as made:
        yield made


def played(name: str, directory: Path) -> tuple[int, str, str]:
    """Play a story to its end; return exit code, output and errors."""
    with playing(STORY, name, directory) as process:
        out, errors = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, errors


def until(condition, what: str) -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.01)


# ---- the daemon ----


def test_a_killed_daemon_is_a_miss_and_hits_resume_after_its_restart(short_directory):
    first = Daemon(short_directory, "--dram", "128MiB").ready()
    client = story.connected(first.tenant)
    story.store(client)
    space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
    mapped = space.fetch(chain)
    fetch = space.fetch(chain, delivery=Delivery.BYTES, rate_bits=1_000_000)
    seen = fetch.arrivals()
    next(seen)
    first.process.kill()
    list(seen)
    assert fetch.error is not None and fetch.error.kind == ErrorKind.LOST
    until(lambda: not client.status().connected, "the loss is noticed")
    assert mapped.decode(story.ALL, EXACT, story.blanks()) == 0
    assert space.lookup(chain).reason == Reason.DISCONNECTED
    assert space.put(chain, story.tensors()).refused == story.CHUNKS
    first.wait()
    epoch = client.status().epoch
    second = Daemon(short_directory, "--dram", "128MiB").ready()
    assert client.wait_connected(DEADLINE_S) and client.status().epoch != epoch
    assert space.lookup(chain).counts == (0, 0, 0)
    story.store(client)
    assert story.read_all(client)
    fetch.release()
    mapped.release()
    client.close()
    second.stop()


def test_a_stopped_daemon_costs_one_deadline_and_is_met_again(daemon):
    with Client(daemon.tenant, deadline_s=2.5) as client:
        assert client.wait_connected(DEADLINE_S)
        story.store(client)
        space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
        daemon.send(signal.SIGSTOP)
        assert space.lookup(chain).reason == Reason.LATE
        until(lambda: not client.status().connected, "the hung daemon is left")
        assert space.lookup(chain).reason == Reason.DISCONNECTED
        assert space.fetch(chain).reason == Reason.DISCONNECTED
        daemon.send(signal.SIGCONT)
        assert client.wait_connected(DEADLINE_S)
        assert story.read_all(client)


def test_a_draining_daemon_refuses_and_goes(daemon):
    client = story.connected(daemon.tenant)
    story.store(client)
    daemon.send(signal.SIGTERM)
    until(lambda: not client.status().connected, "it has left")
    assert client.keyspace(story.KEYSPACE).lookup(story.chain_of(client)).counts == (0, 0, 0)
    client.close()


# ---- the client ----


def test_a_client_killed_in_its_put_leaves_nothing_and_its_space_comes_back(daemon):
    code, out, _ = played("dies_in_its_put", daemon.tenant)
    assert code == -signal.SIGKILL and out == "filled\n"
    with story.connected(daemon.tenant) as client:
        space = client.keyspace(story.KEYSPACE)
        assert space.lookup(story.chain_of(client)).counts == (0, 0, 0)
        # All of the memory can be filled: nothing is held for the dead.
        prepared = space.prepare(story.tensors(2, LARGE_TOKENS))
        stored = 0
        while stored + prepared.sizes.sum(dtype=np.int64) < 120 * MIB:
            result = space.put_strips(_large(space, stored), prepared)
            assert result.stored == prepared.count, result
            stored += result.size_bytes
            assert space.lookup(_large(space, 0)).counts[2] == prepared.count
        story.store(client)
        assert story.read_all(client)


def test_a_fork_leaves_both_with_what_is_theirs(daemon):
    code, out, errors = played("forks", daemon.tenant)
    assert (code, out, errors) == (0, "child reads\nparent reads\n", "")


def test_children_that_leave_at_once_harm_nothing(daemon):
    assert played("forks_and_leaves_at_once", daemon.tenant) == (0, "unharmed\n", "")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("ends", 0, ""), ("ends_early", 0, ""), ("raises", 1, "an error in main\n")],
)
def test_a_process_ends_when_it_wants_to(daemon, name, code, words):
    assert played(name, daemon.tenant) == (code, "open\n", words)


def test_a_process_ends_without_a_daemon_too(short_directory):
    assert played("ends_without_a_daemon", short_directory) == (0, "missed\n", "")


def test_too_few_descriptors_are_one_clear_message(daemon):
    with story.connected(daemon.tenant) as client:
        story.store(client)
        code, out, errors = played("lacks_descriptors", daemon.tenant)
        assert (code, errors) == (0, ""), errors
        counted, told = out.splitlines()
        assert counted == "0 UNAVAILABLE" and "ulimit -n" in told
        assert story.read_all(client)


# ---- leases ----


def test_a_client_stopped_until_its_lease_is_lost_gets_no_wrong_byte(short_directory):
    with in_process(short_directory, SHORT, 8 * MIB) as tenant, story.connected(tenant) as client:
        story.store(client)
        space = client.keyspace(story.KEYSPACE)
        rows = story.tensors(3, LARGE_TOKENS)
        with playing(STORY, "is_stopped", tenant) as process:
            assert process.stdout.readline() == "holds\n"
            process.send_signal(signal.SIGSTOP)
            # Fill the memory until what it has a view of is something else.
            put = 0
            while space.lookup(story.chain_of(client)).counts[2] or put < 8:
                put += 1
                space.put(_large(space, put), rows)
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "good 0 error LOST\n"


def _large(space: Space, number: int) -> bytes:
    """Return the chain of a prefix that is like no other."""
    return space.chain(np.arange(LARGE_TOKENS) + 1000 + number)


def test_a_reader_slower_than_its_lease_loses_it(short_directory):
    with in_process(short_directory, SHORT, 16 * MIB) as tenant, story.connected(tenant) as client:
        story.store(client)
        space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
        fetch = space.fetch(chain)
        until(lambda: client.status().counters.leases_lost == 1, "the lease is lost")
        assert fetch.decode(story.ALL, EXACT, story.blanks()) == 0
        assert fetch.error is not None and fetch.error.kind == ErrorKind.LOST
        fetch.release()
        assert story.read_all(client)


def test_a_reader_that_goes_on_keeps_its_lease(short_directory):
    with in_process(short_directory, SHORT, 16 * MIB) as tenant, story.connected(tenant) as client:
        story.store(client)
        with client.keyspace(story.KEYSPACE).fetch(story.chain_of(client)) as fetch:
            until_s = time.monotonic() + 4 * SHORT.lease_ttl_ns / 1e9
            while time.monotonic() < until_s:
                assert fetch.decode(story.ALL, EXACT, story.blanks()) == story.CHUNKS
        assert client.status().counters.leases_lost == 0


def test_bytes_that_have_come_stay_good_without_a_lease(short_directory):
    with in_process(short_directory, SHORT, 16 * MIB) as tenant, story.connected(tenant) as client:
        story.store(client)
        space = client.keyspace(story.KEYSPACE)
        fetch = space.fetch(story.chain_of(client), delivery=Delivery.BYTES)
        list(fetch.arrivals())
        until(lambda: client.status().counters.leases_lost == 1, "the lease is lost")
        targets = story.blanks()
        assert fetch.decode(story.ALL, EXACT, targets) == story.CHUNKS
        assert story.equal(targets, story.tensors())
        fetch.release()


# ---- damage ----


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write into another process's slab")
@pytest.mark.parametrize("plane_class", [0, 1, 2])
@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_flipped_byte_is_a_miss_is_counted_and_is_replaced(daemon, plane_class, delivery):
    with story.connected(daemon.tenant) as client:
        story.store(client)
        space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
        with space.fetch(chain) as fetch:
            promised = fetch.hold.granted.strips._promised
            slab = int(promised.slabs[plane_class][5])
            # Behind the table of 8 cells, in the first cell.
            _flip(daemon, slab, int(promised.offsets[plane_class][5]) + 8 * 16 + 9)
        with space.fetch(chain, delivery=delivery) as fetch:
            list(fetch.arrivals())
            assert fetch.decode(story.ALL, EXACT, story.blanks()) == 5
        assert client.status().counters.checksum_failures == 1
        until(lambda: space.lookup(chain).counts[2] == 5, "the chunk is set aside")
        with space.fetch(chain) as fetch:
            assert fetch.counts[2] == 5
        stored = space.put(chain, story.tensors())
        assert stored.stored >= 1 and stored.refused == 0
        assert story.read_all(client)


def _flip(daemon: Daemon, slab: int, offset: int) -> None:
    directory = Path(f"/proc/{daemon.process.pid}/fd")
    names = [link for link in directory.iterdir() if f"kvd-slab-{slab} " in os.readlink(link) + " "]
    with open(names[0], "r+b") as memory:
        memory.seek(offset)
        byte = memory.read(1)[0]
        memory.seek(offset)
        memory.write(bytes([byte ^ 0x10]))


# ---- bounds ----


def test_more_than_the_memory_holds_is_refused_with_a_reason(short_directory):
    with in_process(short_directory, SHORT, 8 * MIB) as tenant, story.connected(tenant) as client:
        space = client.keyspace(story.KEYSPACE)
        chain = space.chain(np.arange(8 * LARGE_TOKENS))
        count = len(chain) // 32
        stored = space.put(chain, story.tensors(4, 8 * LARGE_TOKENS))
        assert 0 < stored.stored < count and stored.refused == count - stored.stored
        assert stored.reason in (Reason.CAPACITY, Reason.GROWING)
        assert space.lookup(chain).counts[0] > 0

"""A daemon that is killed, or ends in order and leaves its dram, in the middle of a read and a put.

Whoever was in the middle goes on in memory of the daemon before; nothing of that is called good
there, and nothing of it is in what the next daemon offers.
"""

import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from kvd.client import EXACT, Client, Delivery, Reason
from kvd.client import put as put_module
from tests.e2e import client_story as story
from tests.e2e.process import DEADLINE_S
from tests.e2e.ssd_node import until
from tests.e2e.supervising import Supervisor, managed

GONE = (Reason.LOST, Reason.DISCONNECTED, Reason.UNAVAILABLE)


@pytest.fixture
def manager(short_directory):
    # Little time to drain: what is in the middle of something is not waited for.
    flags = ("--dram", "256MiB", "--drain-seconds", "0.3")
    with managed(short_directory / "run", *flags) as made:
        made.start()
        yield made


@pytest.fixture
def client(manager):
    with Client(manager.tenant, "in the middle", DEADLINE_S) as client:
        assert client.wait_connected(DEADLINE_S)
        story.store(client)
        yield client


def restart(manager: Supervisor, client: Client, how: signal.Signals) -> None:
    """Restart the daemon and wait until the client is connected to the new one."""
    epoch = client.status().epoch
    code = manager.stop(how)
    assert code == (0 if how == signal.SIGTERM else -how), manager.daemon.lines
    manager.start()
    until(lambda: client.status().epoch != epoch and client.status().connected, "it is back")


class Middle:
    """A place in a thread's work where it waits until the test says so."""

    def __init__(self) -> None:
        self._there, self._go_on = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def run(self, work) -> Future:
        """Begin the work in a thread; return once it is in the middle."""
        future = self._pool.submit(work)
        until(lambda: self._there.is_set() or future.done(), "it is in the middle")
        return future

    def wait(self) -> None:
        if not self._there.is_set():
            self._there.set()
            assert self._go_on.wait(2 * DEADLINE_S)

    def go_on(self) -> None:
        self._go_on.set()

    def close(self) -> None:
        self.go_on()
        self._pool.shutdown()


@pytest.fixture
def middle():
    made = Middle()
    yield made
    made.close()


def put_others(client: Client, count: int = 6) -> None:
    """Put other prefixes, and read them back bit by bit."""
    space = client.keyspace(story.KEYSPACE)
    for number in range(1, count):
        chain, ours = space.chain(np.arange(story.TOKENS) + 9000 * number), story.tensors(number)
        stored = space.put(chain, ours)
        assert stored.stored + stored.had == story.CHUNKS, stored
        targets = story.blanks()
        with space.fetch(chain) as fetch:
            assert fetch.decode(story.ALL, EXACT, targets) == story.CHUNKS
        assert story.equal(targets, ours)


@pytest.mark.parametrize("how", (signal.SIGKILL, signal.SIGTERM), ids=("killed", "kept"))
def test_a_reader_in_the_middle_of_a_decode(manager, client, middle, how):
    """Its mapping is as it was, or another's by now: it cannot know, so it is not good."""
    with client.keyspace(story.KEYSPACE).fetch(story.chain_of(client)) as fetch:
        strips = fetch.hold.granted.strips
        real = strips.decode

        def slow(*arguments) -> int:
            middle.wait()
            return real(*arguments)

        strips.decode = slow
        targets = story.blanks()
        read = middle.run(lambda: fetch.decode(story.ALL, EXACT, targets))
        restart(manager, client, how)
        put_others(client)
        middle.go_on()
        assert read.result(DEADLINE_S) == 0
        assert fetch.decode(story.ALL, EXACT, targets) == 0 and fetch.error is not None
    kept = client.keyspace(story.KEYSPACE).lookup(story.chain_of(client)).counts[2]
    assert kept == (story.CHUNKS if how == signal.SIGTERM else 0)
    story.store(client)
    assert story.read_all(client)
    assert client.status().counters.checksum_failures == 0


def test_a_reader_of_pieces_keeps_what_came(manager, client):
    rate = 400_000  # Some seconds for all of it: a busy machine may take one to end the daemon.
    space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
    with space.fetch(chain, delivery=Delivery.BYTES, rate_bits=rate) as fetch:
        seen = next(iter(fetch.arrivals()))
        restart(manager, client, signal.SIGTERM)
        list(fetch.arrivals())
        assert fetch.error is not None and fetch.delivered_bytes < sum(fetch.class_bytes)
        assert (
            fetch.decode((0, seen.layer_end), 4, story.blanks()[: seen.layer_end]) == story.CHUNKS
        )
        assert fetch.decode(story.ALL, EXACT, story.blanks()) == 0


@pytest.mark.parametrize(
    ("stage", "how"),
    [("_lay", signal.SIGKILL), ("_lay", signal.SIGTERM), ("_seal", signal.SIGTERM)],
    ids=("filling, killed", "filling, kept", "sealing, kept"),
)
def test_a_writer_in_the_middle_of_a_put(manager, client, middle, monkeypatch, how, stage):
    """Strips are laid once more behind the restart, as a copy under way would lay them."""
    space = client.keyspace(story.KEYSPACE)
    chain, ours = space.chain(np.arange(story.TOKENS) + 5), story.tensors(5)
    real_lay, real_seal = put_module.Put._lay, put_module.Put._seal

    def lay(self, *arguments, **named):
        roots = real_lay(self, *arguments, **named)
        if stage == "_lay":
            middle.wait()
            real_lay(self, *arguments, **named)
        return roots

    def seal(self, *arguments, **named):
        if stage == "_seal":
            middle.wait()
        return real_seal(self, *arguments, **named)

    monkeypatch.setattr(put_module.Put, "_lay", lay)
    monkeypatch.setattr(put_module.Put, "_seal", seal)
    put = middle.run(lambda: space.put(chain, ours))
    restart(manager, client, how)
    with Client(manager.tenant, "another", DEADLINE_S) as other:
        assert other.wait_connected(DEADLINE_S)
        monkeypatch.setattr(put_module.Put, "_lay", real_lay)
        put_others(other)
        middle.go_on()
        stored = put.result(DEADLINE_S)
        assert stored.stored == 0 and stored.refused == story.CHUNKS and stored.reason in GONE
        put_others(other)
        assert other.keyspace(story.KEYSPACE).lookup(chain).counts == (0, 0, 0)
        kept = other.keyspace(story.KEYSPACE).lookup(story.chain_of(other)).counts[2]
        assert kept == (story.CHUNKS if how == signal.SIGTERM else 0)
        assert space.put(chain, ours).stored == story.CHUNKS
        assert not kept or story.read_all(other)
        assert other.status().counters.checksum_failures == 0

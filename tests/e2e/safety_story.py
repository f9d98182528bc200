"""Programs around the SDK, run as processes of their own, about forks, stops and descriptors.

`python -m tests.e2e.safety_story NAME DIRECTORY`; what it prints is what the test reads.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvd.client import EXACT, Client, Delivery
from kvd.client import put as put_module
from tests.e2e.client_story import (
    ALL,
    CHUNKS,
    DEADLINE_S,
    KEYSPACE,
    TOKENS,
    blanks,
    chain_of,
    connected,
    equal,
    read_all,
    say,
    store,
    tensors,
)
from tests.e2e.ssd_node import until

ROUNDS, CHILDREN = 4, 3


# ---- descriptors ----


def lacks_descriptors_for_a_while(directory: Path) -> None:
    """Reach the limit of open files before the slabs come, then have enough again."""
    client = connected(directory)
    space, chain = client.keyspace(KEYSPACE), chain_of(client)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 1, hard))
    pieces = space.fetch(chain, delivery=Delivery.BYTES)  # Needs none.
    list(pieces.arrivals())
    for _ in range(3):
        say(space.fetch(chain).reason.name)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    targets = blanks()
    assert pieces.decode(ALL, EXACT, targets) == CHUNKS and equal(targets, tensors())
    threading.Event().wait(1.5)
    say(f"{space.fetch(chain).reason.name} while something is held")
    connects = client.status().counters.connects
    pieces.release()
    until(lambda: client.status().counters.connects > connects, "connected anew")
    assert client.wait_connected(DEADLINE_S) and client.status().slab_failure == ""
    say(f"reads {read_all(client)} lost {client.status().counters.leases_lost}")


# ---- forks ----


def _mine(number: int) -> np.ndarray:
    return np.arange(TOKENS) + 10_000 * (number + 1)


def _work(client: Client, number: int) -> None:
    """Put and read, again and again; raise AssertionError for a byte that is another's."""
    space = client.keyspace(KEYSPACE)
    for turn in range(ROUNDS):
        chain, ours = space.chain(_mine(100 * number + turn)), tensors(100 * number + turn)
        stored = space.put(chain, ours)
        assert stored.stored + stored.had == CHUNKS, stored
        for delivery in Delivery:
            targets = blanks()
            with space.fetch(chain, delivery=delivery) as fetch:
                list(fetch.arrivals())
                assert fetch.decode(ALL, EXACT, targets) == CHUNKS and equal(targets, ours)


def _inherited() -> list[str]:
    """Return what this process has mapped or open of the daemon's."""
    found = [line for line in Path("/proc/self/maps").read_text().splitlines() if "kvd-" in line]
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if "memfd:kvd" in link:
                found.append(link)
    return found


def _sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += "socket:" in os.readlink(f"/proc/self/fd/{name}")
    return count


def _child(client: Client, number: int) -> None:
    found = [line for line in _inherited() if "kvd-slab" in line]
    assert not found, found
    assert not _sockets(), "the sockets are the parent's"
    assert client.wait_connected(DEADLINE_S)
    _work(client, number)
    assert client.status().counters.leases_lost == 0


def forks_while_it_works(directory: Path) -> None:
    """Children of os.fork and of multiprocessing, made in the middle of puts and fetches."""
    client = connected(directory)
    store(client)
    held = client.keyspace(KEYSPACE).fetch(chain_of(client))
    workers = [threading.Thread(target=_work, args=(client, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    forked = os.fork()
    if forked == 0:
        _child(client, 50)
        sys.exit(0)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_child, args=(client, 10 + n)) for n in range(CHILDREN)]
    for child in children:
        child.start()
    for worker in workers:
        worker.join(DEADLINE_S)
        assert not worker.is_alive()
    for child in children:
        child.join(DEADLINE_S)
        assert child.exitcode == 0
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    targets = blanks()
    assert held.decode(ALL, EXACT, targets) == CHUNKS and equal(targets, tensors())
    _work(client, 60)
    counters = client.status().counters
    say(f"connects {counters.connects} lost {counters.leases_lost} {counters.checksum_failures}")


def dies_before_its_child(directory: Path) -> None:
    """Be killed while a child goes on with the same client, which is a session of its own."""
    client = connected(directory)
    store(client)
    held = client.keyspace(KEYSPACE).fetch(chain_of(client))
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    assert held.decode(ALL, EXACT, blanks()) == 0
    _child(client, 70)
    say(f"reads {read_all(client)}")


# ---- stops ----


def stops_in_its_put(directory: Path) -> None:
    """Stop when places are reserved and filled; go on when somebody says so."""
    real, stopped = put_module.Put._lay, []

    def lay(self, *arguments, **named):
        roots = real(self, *arguments, **named)
        if not stopped:
            stopped.append(True)
            say("laid")
            os.kill(os.getpid(), signal.SIGSTOP)
            # The bytes once more, as a copy that was under way would bring them.
            real(self, *arguments, **named)
        return roots

    put_module.Put._lay = lay
    client = connected(directory)
    stored = client.keyspace(KEYSPACE).put(chain_of(client), tensors())
    say(f"stored {stored.stored} had {stored.had} refused {stored.refused} {stored.reason.name}")
    store(client)
    say(f"reads {read_all(client)}")


STORIES: dict[str, Callable[[Path], None]] = {
    story.__name__: story
    for story in (
        lacks_descriptors_for_a_while, forks_while_it_works, dies_before_its_child,
        stops_in_its_put,
    )
}  # fmt: skip


if __name__ == "__main__":
    STORIES[sys.argv[1]](Path(sys.argv[2]))

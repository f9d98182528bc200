"""Small programs around the SDK, run as processes of their own: each plays one story and exits.

`python -m tests.e2e.client_story NAME DIRECTORY`; what it prints is what the test reads.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvd.client import EXACT, BlockShape, Client, Delivery, Dtype, Keyspace
from kvd.client import put as put_module

LAYERS, HEADS, WIDTH, CHUNK_TOKENS, CHUNKS = 2, 2, 64, 16, 12
TOKENS = CHUNKS * CHUNK_TOKENS
ALL = (0, LAYERS)
DEADLINE_S = 30.0
KEYSPACE = Keyspace(
    "story", "r1", BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16),
    chunk_tokens=CHUNK_TOKENS,
)  # fmt: skip


def tensors(seed: int = 1, tokens: int = TOKENS):
    rng = np.random.default_rng(seed)
    shape = (HEADS, tokens, WIDTH)

    def one() -> np.ndarray:
        bits = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16)

    return [[one(), one()] for _ in range(LAYERS)]


def blanks():
    return [[np.zeros((HEADS, TOKENS, WIDTH), np.uint16) for _ in range(2)] for _ in range(LAYERS)]


def equal(ours, theirs) -> bool:
    return all(
        np.array_equal(a, b)
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def connected(directory: Path) -> Client:
    client = Client(directory, "story", deadline_s=DEADLINE_S)
    assert client.wait_connected(DEADLINE_S)
    return client


def chain_of(client: Client) -> bytes:
    return client.keyspace(KEYSPACE).chain(np.arange(TOKENS))


def store(client: Client, seed: int = 1) -> None:
    stored = client.keyspace(KEYSPACE).put(chain_of(client), tensors(seed))
    assert stored.stored + stored.had == CHUNKS, stored


def say(line: str) -> None:
    print(line, flush=True)


def read_all(client: Client) -> bool:
    """Return whether everything comes back as `tensors` made it."""
    targets = blanks()
    with client.keyspace(KEYSPACE).fetch(chain_of(client)) as fetch:
        return fetch.decode(ALL, EXACT, targets) == CHUNKS and equal(targets, tensors())


# ---- stories ----


def dies_in_its_put(directory: Path) -> None:
    """Be killed after places were reserved and filled, before their seal."""

    def killed(*arguments: object, **named: object) -> None:
        say("filled")
        os.kill(os.getpid(), signal.SIGKILL)

    put_module.Put._seal = killed
    client = connected(directory)
    client.keyspace(KEYSPACE).put(chain_of(client), tensors())


def forks(directory: Path) -> None:
    """Fork while a fetch is held; both go on, each for itself."""
    client = connected(directory)
    store(client)
    space, chain = client.keyspace(KEYSPACE), chain_of(client)
    held = space.fetch(chain)
    pieces = space.fetch(chain, delivery=Delivery.BYTES, rate_bits=2_000_000)
    child = os.fork()
    if child == 0:
        assert held.decode(ALL, EXACT, blanks()) == 0, "the memory is the parent's"
        list(pieces.arrivals())
        held.release()
        assert client.wait_connected(DEADLINE_S)
        assert read_all(client)
        say("child reads")
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    targets = blanks()
    assert held.decode(ALL, EXACT, targets) == CHUNKS and equal(targets, tensors())
    list(pieces.arrivals())
    assert pieces.error is None
    targets = blanks()
    assert pieces.decode(ALL, EXACT, targets) == CHUNKS and equal(targets, tensors())
    assert client.status().counters.connects == 1
    assert client.status().counters.leases_lost == 0
    say("parent reads")


def forks_and_leaves_at_once(directory: Path) -> None:
    """Fork children that do nothing with the SDK, and one that leaves without clean-up."""
    client = connected(directory)
    store(client)
    held = client.keyspace(KEYSPACE).fetch(chain_of(client))
    for leave in (sys.exit, os._exit):
        child = os.fork()
        if child == 0:
            leave(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
    assert held.decode(ALL, EXACT, blanks()) == CHUNKS
    assert client.status().counters.connects == 1
    say("unharmed")


def is_stopped(directory: Path) -> None:
    """Hold a fetch, wait to be told, then read."""
    client = connected(directory)
    fetch = client.keyspace(KEYSPACE).fetch(chain_of(client))
    targets = blanks()
    assert fetch.decode(ALL, EXACT, targets) == CHUNKS
    say("holds")
    sys.stdin.readline()
    good = fetch.decode(ALL, EXACT, blanks())
    say(f"good {good} error {fetch.error.kind.name if fetch.error else None}")


def lacks_descriptors(directory: Path) -> None:
    """Reach the limit of open files before the slabs come."""
    client = connected(directory)
    assert client.keyspace(KEYSPACE).lookup(chain_of(client)).counts[0] == CHUNKS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened) + 1, hard))
    fetch = client.keyspace(KEYSPACE).fetch(chain_of(client))
    say(f"{fetch.counts[0]} {fetch.reason.name}")
    say(client.status().slab_failure)


def _with_everything_open(directory: Path) -> None:
    client = connected(directory)
    store(client)
    space, chain = client.keyspace(KEYSPACE), chain_of(client)
    # Kept alive past the end of main, as a module's globals would.
    sys.modules[__name__].kept = (  # type: ignore[attr-defined]
        space.fetch(chain),
        space.fetch(chain, delivery=Delivery.BYTES, rate_bits=100_000),
        space.lookup(chain, lease=True),
        client,
    )
    say("open")


def ends(directory: Path) -> None:
    _with_everything_open(directory)


def ends_early(directory: Path) -> None:
    _with_everything_open(directory)
    os._exit(0)


def raises(directory: Path) -> None:
    _with_everything_open(directory)
    raise SystemExit("an error in main")


def ends_without_a_daemon(directory: Path) -> None:
    client = Client(directory)
    client.keyspace(KEYSPACE).lookup(chain_of(client))
    say("missed")


STORIES: dict[str, Callable[[Path], None]] = {
    story.__name__: story
    for story in (
        dies_in_its_put, forks, forks_and_leaves_at_once, is_stopped, lacks_descriptors,
        ends, ends_early, raises, ends_without_a_daemon,
    )
}  # fmt: skip


if __name__ == "__main__":
    STORIES[sys.argv[1]](Path(sys.argv[2]))

"""Many readers and writers on little memory: every byte that is called good is the right one."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from kvd.client import EXACT, BlockShape, Client, Delivery, Dtype, Keyspace, Space
from kvd.clock import NS_PER_MS
from kvd.limits import MIB, Limits
from tests.e2e.process import DEADLINE_S, in_process

LAYERS, HEADS, WIDTH, CHUNK_TOKENS, CHUNKS = 2, 1, 32, 16, 8
TOKENS = CHUNKS * CHUNK_TOKENS
SECONDS = 3.0
PREFIXES = 60
KEYSPACE = Keyspace(
    "pressure", "r1", BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16),
    chunk_tokens=CHUNK_TOKENS,
)  # fmt: skip
CALM = replace(Limits(), slab_bytes=1 * MIB)
HASTY = replace(
    CALM, lease_ttl_ns=5 * NS_PER_MS, quarantine_ns=2 * NS_PER_MS, tick_ns=1 * NS_PER_MS
)


def prefix(number: int):
    """Return the tokens and tensors of a prefix: both follow from its number."""
    rng = np.random.default_rng(number)
    shape = (HEADS, TOKENS, WIDTH)

    def one() -> np.ndarray:
        bits = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16)

    return np.arange(TOKENS) + 1000 * number, [[one(), one()] for _ in range(LAYERS)]


class Actor(threading.Thread):
    """Does one thing until `over`; keeps what went wrong."""

    def __init__(self, space: Space, seed: int, over: threading.Event) -> None:
        super().__init__()
        self.space, self.rng, self.over = space, np.random.default_rng(seed), over
        self.failure, self.pause = "", threading.Event()
        self.good_chunks = 0

    def run(self) -> None:
        while not self.over.is_set() and not self.failure:
            number = int(self.rng.integers(PREFIXES))
            tokens, tensors = prefix(number)
            self.act(self.space.chain(tokens), tensors)

    def act(self, chain: bytes, tensors) -> None:
        raise NotImplementedError


class Writer(Actor):
    def act(self, chain: bytes, tensors) -> None:
        stored = self.space.put(chain, tensors)
        if stored.stored + stored.had + stored.refused != CHUNKS:
            self.failure = f"{stored}"
        self.good_chunks += stored.stored


class Reader(Actor):
    def act(self, chain: bytes, tensors) -> None:
        delivery = Delivery(int(self.rng.integers(2)))
        with self.space.fetch(chain, delivery=delivery) as fetch:
            for _ in fetch.arrivals():
                pass
            self.pause.wait(float(self.rng.random()) * 0.01)  # Slower than some leases live.
            targets = [[np.zeros_like(tensor) for tensor in row] for row in tensors]
            good = fetch.decode((0, LAYERS), EXACT, targets)
            if good < fetch.counts[2] and fetch.error is None:
                self.failure = (
                    f"{good} of {fetch.counts} promised by {delivery.name}, and no reason"
                )
        self.good_chunks += good
        end = good * CHUNK_TOKENS
        for ours, theirs in zip(targets, tensors, strict=True):
            for target, tensor in zip(ours, theirs, strict=True):
                if not np.array_equal(target[:, :end], tensor[:, :end]):
                    self.failure = f"wrong bytes in {good} chunks by {delivery.name}"


def acting(
    actors: Sequence[Actor], over: threading.Event, seconds: float, enough: Callable[[], bool]
) -> Iterator[None]:
    """Yield again and again while all act: for `seconds`, and on until it was `enough`.

    A slow machine takes longer to see as much; DEADLINE_S is for one that sees nothing.
    """
    begun_s = time.monotonic()
    for actor in actors:
        actor.start()
    while (spent_s := time.monotonic() - begun_s) < seconds or not enough():
        failures = [actor.failure for actor in actors if actor.failure]
        if failures or spent_s > DEADLINE_S:
            break
        yield
        over.wait(0.02)
    over.set()
    for actor in actors:
        actor.join(2 * DEADLINE_S)
        assert not actor.is_alive() and not actor.failure, actor.failure
    assert enough(), [actor.good_chunks for actor in actors]


def good_of(actors: Sequence[Actor]) -> int:
    """Return how many chunks they stored, or read and found right."""
    return sum(actor.good_chunks for actor in actors)


@pytest.mark.parametrize("limits", [CALM, HASTY], ids=["calm", "hasty"])
def test_no_wrong_byte_is_called_good(short_directory, limits):
    with in_process(short_directory, limits, 2 * MIB) as tenant:
        clients = [Client(tenant, f"client {index}") for index in range(2)]
        assert all(client.wait_connected(20) for client in clients)
        spaces = [client.keyspace(KEYSPACE) for client in clients]
        over = threading.Event()
        writers = [Writer(space, seed, over) for seed, space in enumerate(spaces)]
        readers = [Reader(space, 10 + seed, over) for seed, space in enumerate(spaces * 2)]

        def enough() -> bool:
            return good_of(writers) > CHUNKS and good_of(readers) > CHUNKS

        for _ in acting(writers + readers, over, SECONDS, enough):
            pass
        for client in clients:
            assert client.status().counters.checksum_failures == 0
            client.close()

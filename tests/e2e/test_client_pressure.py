"""Many readers and writers on little memory: every byte that is called good is the right one."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from kvd.client import EXACT, BlockShape, Client, Delivery, Dtype, Keyspace, Space
from kvd.clock import NS_PER_MS
from kvd.limits import MIB, Limits
from tests.e2e.process import in_process

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
    """Does one thing until the time is over; keeps what went wrong."""

    def __init__(self, space: Space, seed: int, until_s: float) -> None:
        super().__init__()
        self.space, self.rng, self.until_s = space, np.random.default_rng(seed), until_s
        self.failure, self.pause = "", threading.Event()
        self.done = self.good_chunks = 0

    def run(self) -> None:
        while time.monotonic() < self.until_s and not self.failure:
            number = int(self.rng.integers(PREFIXES))
            tokens, tensors = prefix(number)
            self.act(self.space.chain(tokens), tensors)
            self.done += 1

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


@pytest.mark.parametrize("limits", [CALM, HASTY], ids=["calm", "hasty"])
def test_no_wrong_byte_is_called_good(short_directory, limits):
    with in_process(short_directory, limits, 2 * MIB) as tenant:
        clients = [Client(tenant, f"client {index}") for index in range(2)]
        assert all(client.wait_connected(20) for client in clients)
        spaces = [client.keyspace(KEYSPACE) for client in clients]
        until_s = time.monotonic() + SECONDS
        writers = [Writer(space, seed, until_s) for seed, space in enumerate(spaces)]
        readers = [Reader(space, 10 + seed, until_s) for seed, space in enumerate(spaces * 2)]
        for actor in writers + readers:
            actor.start()
        for actor in writers + readers:
            actor.join(60)
            assert not actor.is_alive() and not actor.failure, actor.failure
        assert sum(writer.good_chunks for writer in writers) > CHUNKS
        assert sum(reader.good_chunks for reader in readers) > CHUNKS
        for client in clients:
            assert client.status().counters.checksum_failures == 0
            client.close()

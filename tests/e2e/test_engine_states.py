"""An engine's connector in any order: arrivals, preemption, aborts, a daemon that comes and goes.

Whatever the order, no verb raises, no byte is wrong, and what nobody wants any more holds nothing.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from kvd.admin.asking import AdminClient
from kvd.client import EXACT, BlockShape, Client, Delivery, Dtype, Fetch, Keyspace
from kvd.config import ADMIN_SOCKET
from kvd.limits import MIB, Limits
from kvd.v1 import admin_pb2 as admin
from tests.e2e.process import DEADLINE_S, in_process
from tests.e2e.ssd_node import until

LAYERS, HEADS, WIDTH, CHUNK, CHUNKS_MAX = 2, 1, 8, 16, 6
STEPS, SEEDS, REQUESTS_MAX = 1500, 3, 12
POISON = 0xEEEE
LIMITS = replace(Limits(), slab_bytes=4 * MIB, leases_per_session_max=16)
KEYSPACE = Keyspace(
    "states", "r", BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16), chunk_tokens=CHUNK
)


def tokens_of(prompt: int, count: int) -> np.ndarray:
    """Return the tokens of a prompt; two of them share two chunks, and then part."""
    tokens = np.arange(count) + 1000 * (prompt // 2)
    tokens[2 * CHUNK :] += 500 * (prompt % 2)
    return tokens


def computed(tokens: np.ndarray) -> list:
    base = (0x3C00 + tokens % 1009)[None, :, None].astype(np.uint16)
    return [[np.repeat(base + 31 * k + 7 * n, WIDTH, 2) for k in (0, 1)] for n in range(LAYERS)]


@dataclass(eq=False)
class Request:
    """`fetch` once it is scheduled; `lease` of a lookup; `blocks` once they are allocated."""

    tokens: np.ndarray
    lease: int = 0
    fetch: Fetch | None = None
    blocks: list | None = None
    found: int = 0


class Engine:
    """Requests in any state; each step moves one of them, as a scheduler might."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client, self.space = client, client.keyspace(KEYSPACE)
        self.chance, self.requests = random.Random(seed), []
        self.hits = self.aborted = self.stored = 0
        self.moves = (
            self.arrive, self.lookup, self.allocate, self.schedule, self.preempt, self.resume,
            self.finish, self.finish, self.abort,
        )  # fmt: skip

    def step(self) -> None:
        move = self.chance.choice(self.moves)
        if move == self.arrive or not self.requests:
            self.arrive()
        else:
            move(self.chance.choice(self.requests))

    def arrive(self) -> None:
        if len(self.requests) < REQUESTS_MAX:
            count = self.chance.randint(1, CHUNKS_MAX * CHUNK)
            self.requests.append(Request(tokens_of(self.chance.randrange(6), count)))

    def lookup(self, request: Request) -> None:
        """Polled again and again, with a lease each time or none."""
        chain = self.space.chain(request.tokens)
        if not chain:
            return
        held, lease = request.lease, self.chance.random() < 0.5
        request.lease = self.space.lookup(chain, lease=lease).lease or held
        if held and request.lease != held:
            self.space.release(held)

    def allocate(self, request: Request) -> None:
        shape = (HEADS, len(request.tokens), WIDTH)
        request.blocks = [
            [np.full(shape, POISON, np.uint16) for _ in (0, 1)] for _ in range(LAYERS)
        ]

    def schedule(self, request: Request) -> None:
        """Begin to load; also what was never looked up, and what is loading already."""
        self.preempt(request)
        chain = self.space.chain(request.tokens)
        if chain:
            delivery = self.chance.choice(list(Delivery))
            request.fetch = self.space.fetch(chain, delivery=delivery, lease=request.lease)
            request.lease = 0

    def preempt(self, request: Request) -> None:
        """Take its blocks away, in the middle of its load or not."""
        if request.fetch is not None:
            if self.chance.random() < 0.3:
                next(request.fetch.arrivals(), None)
            request.fetch.release()
        request.fetch = request.blocks = None

    def resume(self, request: Request) -> None:
        if request.blocks is None:
            self.allocate(request)
        if request.fetch is None:
            self.schedule(request)
        if request.blocks is None:
            self.allocate(request)
        self.load(request)

    def load(self, request: Request) -> None:
        """Read what comes, and look whether it is right and nothing else was touched."""
        if request.fetch is None:
            return
        for _ in request.fetch.arrivals():
            pass
        count = min(request.fetch.counts[2], len(request.tokens) // CHUNK)
        good = request.fetch.decode((0, LAYERS), EXACT, request.blocks) if count else 0
        assert good <= count
        end = good * CHUNK
        for row, wanted in zip(request.blocks, computed(request.tokens), strict=True):
            for block, tensor in zip(row, wanted, strict=True):
                assert np.array_equal(block[:, :end], tensor[:, :end])
                assert (block[:, count * CHUNK :] == POISON).all()
        request.found, self.hits = good, self.hits + good

    def finish(self, request: Request) -> None:
        """Compute what was not found, store it all, let go."""
        chain = self.space.chain(request.tokens)
        if chain:
            stored = self.space.put(chain, computed(request.tokens))
            assert stored.stored + stored.had + stored.refused == len(chain) // 32
            self.stored += stored.stored
        self.leave(request)

    def abort(self, request: Request) -> None:
        self.aborted += 1
        self.leave(request)

    def leave(self, request: Request) -> None:
        self.preempt(request)
        if request.lease:
            self.space.release(request.lease)
        self.requests.remove(request)


def held_by(directory: Path) -> list[tuple[int, int]]:
    """Return leases and reservations of every session."""
    with AdminClient(directory / ADMIN_SOCKET) as asking:
        reply = asking.call("Sessions", admin.SessionsRequest())
        return [(session.leases, session.reservations) for session in reply.sessions]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_order_of_an_engines_steps(short_directory, seed):
    chance = random.Random(1000 + seed)
    # So short a deadline that a daemon that is away costs little.
    with Client(short_directory / "default", "engine", 5.0) as client:
        engine, done = Engine(client, seed), 0
        while done < STEPS:
            with in_process(short_directory, LIMITS, 8 * MIB):
                if chance.random() < 0.7:  # Else it steps on while it connects.
                    assert client.wait_connected(DEADLINE_S)
                for _ in range(chance.randint(1, STEPS // 3)):
                    engine.step()
                    done += 1
            for _ in range(chance.randrange(20)):
                engine.step()
        with in_process(short_directory, LIMITS, 8 * MIB):
            assert client.wait_connected(DEADLINE_S)
            for request in list(engine.requests):
                engine.abort(request)
            until(lambda: held_by(short_directory) == [(0, 0)], "nothing is held")
        assert engine.hits > 50 and engine.stored > 50 and engine.aborted > 50
        counters = client.status().counters
        assert counters.connects > 2 and not counters.checksum_failures

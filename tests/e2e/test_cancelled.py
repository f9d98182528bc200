"""Coroutines that are cancelled at any moment: nothing that they were granted stays held."""

import asyncio
import contextlib
import random
import signal
from dataclasses import replace

import numpy as np
import pytest

from kvd.client import AsyncClient, BlockShape, Client, Delivery, Dtype, Keyspace, Reason
from kvd.clock import NS_PER_S
from kvd.config import SsdSettings
from kvd.limits import MIB, Limits
from tests.e2e.process import DEADLINE_S, in_process
from tests.e2e.ssd_node import until
from tests.e2e.test_engine_states import held_by

LAYERS, HEADS, WIDTH, CHUNK, CHUNKS = 2, 2, 32, 16, 5
KEYSPACE = Keyspace(
    "cancelled", "r", BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16), chunk_tokens=CHUNK
)
# A lease outlives the test, unless somebody gives it back.
LIMITS = replace(Limits(), slab_bytes=4 * MIB, lease_ttl_ns=600 * NS_PER_S)
TURNS = 300


async def cancel_at_any_moment(directory, chain) -> int:
    """Ask, and give up after none or some turns of the loop; return how many had an answer."""
    chance, answered = random.Random(52), 0
    async with AsyncClient(directory, "hasty", DEADLINE_S) as client:
        assert await client.wait_connected(DEADLINE_S)
        space = client.keyspace(KEYSPACE)

        async def act(how: int) -> None:
            if how == 0:
                await space.release((await space.lookup(chain, lease=True)).lease)
                return
            kind = chance.choice(list(Delivery))
            async with await space.fetch(chain, delivery=kind, pinned=how == 1) as fetch:
                async for _ in fetch.arrivals():
                    pass

        for _ in range(TURNS):
            task = asyncio.ensure_future(act(chance.randrange(3)))
            turns = chance.choice((0, 1, 2, 3, 5, 8, 50, 1000, None))
            if turns is None:
                await asyncio.wait({task})
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                answered += 1
        await asyncio.to_thread(
            until, lambda: all(held == (0, 0) for held in held_by(directory.parent)), "all is back"
        )
    return answered


def test_nothing_stays_held(short_directory):
    with in_process(short_directory, LIMITS, 16 * MIB) as tenant:
        with Client(tenant, "writer", DEADLINE_S) as client:
            assert client.wait_connected(DEADLINE_S)
            space = client.keyspace(KEYSPACE)
            chain = space.chain(np.arange(CHUNKS * CHUNK))
            ones = np.ones((HEADS, CHUNKS * CHUNK, WIDTH), np.uint16)
            assert space.put(chain, [[ones, ones]] * LAYERS).stored == CHUNKS
        answered = asyncio.run(cancel_at_any_moment(tenant, chain))
        assert answered > TURNS // 20


def test_a_fetch_that_is_refused_leaves_no_lease_of_its_lookup(short_directory):
    """Or that is late, or finds nothing: the lease was given to it, and nobody else can let go."""
    few = replace(LIMITS, requests_per_session_max=16)
    with in_process(short_directory, few, 16 * MIB) as tenant, Client(tenant, "full") as client:
        assert client.wait_connected(DEADLINE_S)
        space = client.keyspace(KEYSPACE)
        chain = space.chain(np.arange(CHUNKS * CHUNK))
        ones = np.ones((HEADS, CHUNKS * CHUNK, WIDTH), np.uint16)
        assert space.put(chain, [[ones, ones]] * LAYERS).stored == CHUNKS
        held = space.lookup(chain, lease=True)
        slow = {"delivery": Delivery.BYTES, "rate_bits": 1}
        fetches = [space.fetch(chain, **slow) for _ in range(few.requests_per_session_max)]
        refused = space.fetch(chain, lease=held.lease)
        assert refused.reason == Reason.OVERLOADED
        until(lambda: held_by(tenant.parent) == [(len(fetches), 0)], "the lookup's lease is back")
        for fetch in fetches:
            fetch.release()
        until(lambda: held_by(tenant.parent) == [(0, 0)], "all is back")
        held = space.lookup(chain, lease=True)
        other = space.chain(np.arange(CHUNKS * CHUNK) + 9)
        assert space.fetch(other, lease=held.lease).reason == Reason.NOT_STORED
        until(lambda: held_by(tenant.parent) == [(0, 0)], "that of another chain, too")
        held = space.lookup(chain, lease=True)
        late = space.fetch(chain, lease=held.lease, deadline_s=1e-6)
        late.release()
        until(lambda: held_by(tenant.parent) == [(0, 0)], "and of a fetch that is late")


class Interrupted(Exception):
    pass


@contextlib.contextmanager
def interrupts():
    """Have the alarm raise, as the keyboard does."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lookup_that_is_interrupted_leaves_no_lease(short_directory):
    """At any moment, as by the keyboard; in a first question of a keyspace and in later ones."""

    chance = random.Random(7)
    with in_process(short_directory, LIMITS, 16 * MIB) as tenant, Client(tenant, "left") as client:
        assert client.wait_connected(DEADLINE_S)
        space = client.keyspace(KEYSPACE)
        chain = space.chain(np.arange(CHUNKS * CHUNK))
        ones = np.ones((HEADS, CHUNKS * CHUNK, WIDTH), np.uint16)
        assert space.put(chain, [[ones, ones]] * LAYERS).stored == CHUNKS
        left = 0
        with interrupts():
            for _ in range(150):
                found = None
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 4e-4))
                    found = space.lookup(chain, lease=True)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
                if found is None:
                    left += 1
                else:
                    space.release(found.lease)
        # One that is interrupted between its answer and its caller is nobody's; it has its time.
        until(lambda: held_by(tenant.parent)[0][0] <= left // 4, "the leases are back")
        assert left > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_a_put_that_is_interrupted_leaves_no_reservation(short_directory, durability):
    """At any moment; what it held is there for the next one at once."""
    chance, disk = random.Random(8), SsdSettings((short_directory / "data",), 64 * MIB)
    with in_process(short_directory, LIMITS, 16 * MIB, disk) as tenant, Client(tenant) as client:
        assert client.wait_connected(DEADLINE_S)
        space = client.keyspace(KEYSPACE)
        ones = np.ones((HEADS, CHUNKS * CHUNK, WIDTH), np.uint16)
        left = 0
        with interrupts():
            for turn in range(150):
                chain = space.chain(np.arange(CHUNKS * CHUNK) + turn)
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-3))
                    space.put(chain, [[ones, ones]] * LAYERS, durability=durability)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    left += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
        until(lambda: held_by(tenant.parent) == [(0, 0)], "the reservations are back")
        assert left > 10
        chain = space.chain(np.arange(CHUNKS * CHUNK) + 1000)
        assert space.put(chain, [[ones, ones]] * LAYERS).stored == CHUNKS

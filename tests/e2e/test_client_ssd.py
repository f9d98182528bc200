"""The SDK against a daemon with data directories: durable puts, prefetches, fetches from disk."""

import asyncio
import contextlib
import time
from pathlib import Path

import numpy as np
import pytest

from kvd.client import (
    EXACT,
    Arrival,
    AsyncClient,
    Client,
    Delivery,
    Found,
    PlaneClass,
    Reason,
)
from kvd.limits import MIB
from tests.e2e.process import DEADLINE_S, Daemon
from tests.e2e.ssd_node import (
    ALL,
    CHUNK_TOKENS,
    CHUNKS,
    KEYSPACE,
    LAYERS,
    OTHER,
    Node,
    equal,
    stored,
    tensors,
    until,
)


@pytest.fixture
def node(short_directory):
    made = Node(short_directory)
    yield made
    made.close()


# ---- durable ----


@pytest.mark.parametrize("delivery", list(Delivery))
def test_what_is_said_to_be_durable_survives_a_kill(node, delivery):
    stored(node)
    node.restart()
    assert node.space().lookup(node.chain()).counts == (CHUNKS,) * 3
    with node.fetch(delivery=delivery) as fetch:
        assert fetch.counts == (CHUNKS,) * 3 and fetch.reason == Reason.NONE
        assert fetch.delivered_bytes < sum(fetch.class_bytes)
        ends = [0, 0, 0]
        for arrival in fetch.arrivals():  # All layers in order, none before the class before.
            assert arrival.layer_begin == ends[arrival.plane_class] < arrival.layer_end
            ends[arrival.plane_class] = arrival.layer_end
            assert ends == sorted(ends, reverse=True)
        assert fetch.error is None and ends == [LAYERS] * 3
        assert equal(fetch, tensors())
    assert node.client.status().counters.checksum_failures == 0


def test_what_was_put_to_memory_can_be_made_durable_later(node):
    assert not stored(node, "memory").durable
    made = stored(node)
    assert (made.stored, made.had, made.durable) == (0, CHUNKS, True)
    node.restart()
    with node.fetch() as fetch:
        list(fetch.arrivals())
        assert equal(fetch, tensors())


def test_a_put_to_disk_keeps_its_deadline(node):
    """Which is too short for any disk: it is stored, and nobody says that it is durable."""
    stored(node, "memory", OTHER)  # So that there is memory.
    prepared = node.space().prepare(tensors())
    begin = time.monotonic()
    made = node.space().put_strips(node.chain(), prepared, durability="disk", deadline_s=0.02)
    assert time.monotonic() - begin < 2.0
    assert made.stored + made.refused == CHUNKS
    assert made.durable or made.reason == Reason.LATE
    stored(node)


# ---- from disk ----


def test_what_is_in_memory_has_arrived_at_once_and_the_rest_follows(node):
    stored(node)
    node.restart()
    with node.fetch(class_count=1) as anchors:
        list(anchors.arrivals())
        assert anchors.verify(1) == CHUNKS
    with node.fetch() as fetch:
        assert fetch.delivered_bytes == fetch.class_bytes[0]
        seen = iter(fetch.arrivals())
        assert next(seen) == Arrival(PlaneClass.ANCHOR, 0, LAYERS)
        blank = [[np.zeros_like(tensor) for tensor in row] for row in tensors()]
        assert fetch.decode(ALL, 4, blank) == CHUNKS
        list(seen)
        assert fetch.error is None and equal(fetch, tensors())
    with node.fetch() as fetch:
        assert fetch.delivered_bytes == sum(fetch.class_bytes), "all of it is in memory now"
        assert equal(fetch, tensors())


def test_a_prefetch_has_it_in_memory_before_it_is_fetched(node):
    size_bytes = stored(node).size_bytes
    node.restart()
    before = node.read_bytes()
    wanted = Found((CHUNKS,) * 3)
    until(lambda: node.space().prefetch(node.chain()) == wanted, "there is room to read into")
    until(lambda: node.read_bytes() - before >= size_bytes, "all of it was read")
    # The last read may not be told yet; a fetch is, as soon as it is.
    with node.fetch() as fetch:
        list(fetch.arrivals())
    with node.fetch() as fetch:
        assert fetch.delivered_bytes == sum(fetch.class_bytes)
        assert equal(fetch, tensors())
    assert node.read_bytes() - before < 2 * size_bytes, "it was read once"


def test_many_readers_of_one_prefix_read_it_once(node):
    size_bytes = stored(node).size_bytes
    node.restart()
    before = node.read_bytes()
    fetches = [node.fetch(delivery=delivery) for delivery in 4 * list(Delivery)]
    for fetch in fetches:
        list(fetch.arrivals())
        assert fetch.error is None and equal(fetch, tensors())
        fetch.release()
    assert node.read_bytes() - before < 2 * size_bytes


def test_a_fetch_released_before_it_is_read_harms_nothing(node):
    stored(node)
    node.restart()
    for delivery in 5 * list(Delivery):
        node.fetch(delivery=delivery).release()
    with node.fetch() as fetch:
        list(fetch.arrivals())
        assert equal(fetch, tensors())


def test_more_than_memory_holds_comes_back_from_disk(short_directory):
    node = Node(short_directory, "--dram", "128MiB")
    with contextlib.closing(node):
        _put_and_fetch(node, 160 * MIB)


def _put_and_fetch(node: Node, size_bytes: int) -> None:
    prepared = node.space().prepare(tensors())
    strips_bytes = int(prepared.sizes.sum(dtype=np.int64))
    prompts = size_bytes // strips_bytes
    for prompt in range(prompts):
        made = node.space().put_strips(node.chain(prompt * 100_000), prepared, durability="disk")
        assert made.durable, (prompt, made)
    for prompt in range(prompts):
        with node.fetch(node.chain(prompt * 100_000)) as fetch:
            assert fetch.counts == (CHUNKS,) * 3, (prompt, fetch.reason)
            list(fetch.arrivals())
            assert fetch.error is None and equal(fetch, tensors())


# ---- damage ----


def damage(data: Path) -> int:
    """Flip a byte in every 64 KiB of the segments behind their heads; return how many."""
    flipped = 0
    for path in sorted(data.rglob("*")):
        if not path.is_file() or path.stat().st_size < MIB or "catalog" in str(path):
            continue
        with path.open("r+b") as file:
            for place in range(32_768, path.stat().st_size, 65_536):
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 1]))
                flipped += 1
    return flipped


def test_damage_on_disk_is_a_miss_and_heals_with_the_next_put(node):
    stored(node)
    node.kill()
    assert damage(node.data) > 10
    node.daemon = node._start()
    node.connect()
    rounds = []

    def heals() -> bool:
        """Fetch what is good, which is reported; compute the rest and put it again."""
        with node.fetch() as fetch:
            list(fetch.arrivals())
            targets = [[np.zeros_like(tensor) for tensor in row] for row in tensors()]
            rounds.append(fetch.decode(ALL, EXACT, targets))
            assert rounds[-1] == 0 or equal(fetch, tensors(), rounds[-1])
        stored(node)
        return rounds[-1] == CHUNKS

    until(heals, "all of it is good again")
    assert rounds[0] < CHUNKS and len(rounds) <= 1 + CHUNKS, rounds
    stored(node)
    node.restart()
    with node.fetch() as fetch:
        list(fetch.arrivals())
        assert fetch.counts == (CHUNKS,) * 3 and equal(fetch, tensors())


# ---- clear ----


def test_what_is_cleared_does_not_come_back(node):
    stored(node)
    stored(node, keyspace=OTHER)
    with node.fetch() as held:
        cleared = node.space().clear()
        assert cleared.reason == Reason.NONE
        assert cleared.chunks + cleared.held == CHUNKS and cleared.held >= 1
        assert node.space().lookup(node.chain()).counts == (0, 0, 0)
        assert equal(held, tensors()), "who holds it reads on"
    node.restart()
    assert node.space().lookup(node.chain()).counts == (0, 0, 0)
    assert node.space(OTHER).lookup(node.chain()).counts == (CHUNKS,) * 3
    stored(node)
    assert node.space().clear().chunks == CHUNKS
    assert node.space().clear().chunks == 0


def test_the_same_as_coroutines(node):
    stored(node)
    node.restart()

    async def play() -> None:
        async with AsyncClient(node.daemon.tenant, "async", DEADLINE_S) as client:
            assert await client.wait_connected(DEADLINE_S)
            space = client.keyspace(KEYSPACE)
            async with asyncio.timeout(DEADLINE_S):  # Until there is room to read into.
                while (await space.prefetch(node.chain(), 2)).counts != (CHUNKS, CHUNKS, 0):
                    pass
            async with await space.fetch(node.chain()) as fetch:
                classes = [arrival.plane_class async for arrival in fetch.arrivals()]
                assert set(classes) == set(PlaneClass) and fetch.error is None
            assert (await space.put(node.chain(), tensors(), durability="disk")).durable
            assert (await space.clear()).chunks == CHUNKS

    asyncio.run(play())


def test_without_a_data_directory_nothing_is_durable(short_directory):
    daemon = Daemon(short_directory, "--dram", "128MiB").ready()
    with contextlib.closing(Client(daemon.tenant)) as client:
        assert client.wait_connected(DEADLINE_S)
        space = client.keyspace(KEYSPACE)
        chain = space.chain(np.arange(CHUNKS * CHUNK_TOKENS))
        until(lambda: space.put(chain, tensors()).refused == 0, "there is memory")
        made = space.put(chain, tensors(), durability="disk")
        assert made.had == CHUNKS and not made.durable and made.reason == Reason.UNAVAILABLE
        assert space.prefetch(chain).counts == (CHUNKS,) * 3
        assert space.clear().chunks == CHUNKS
    daemon.stop()

"""Comparing finds what differs from KV computed again: which cell, whence, of which put."""

from dataclasses import replace

import numpy as np
import pytest

from kvd.client import (
    BlockShape,
    Delivery,
    Difference,
    Dtype,
    Keyspace,
    KvdError,
    PlaneClass,
    compare,
)
from kvd.config import SsdSettings
from kvd.limits import MIB, Limits
from kvd.types import Tier
from tests.e2e.process import connected
from tests.e2e.ssd_node import until

LAYERS, HEADS, WIDTH, CHUNK_TOKENS, CHUNKS = 3, 2, 64, 32, 4
KEYSPACE = Keyspace(
    "compared", "r", BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16),
    chunk_tokens=CHUNK_TOKENS,
)  # fmt: skip
LIMITS = replace(Limits(), slab_bytes=4 * MIB)


def computed() -> list:
    rng = np.random.default_rng(24)
    bits = rng.standard_normal((LAYERS, 2, HEADS, CHUNKS * CHUNK_TOKENS, WIDTH), np.float32)
    return [[(t.view(np.uint32) >> 16).astype(np.uint16) for t in row] for row in bits]


def serving(directory, data=None):
    return connected(directory, LIMITS, 16 * MIB, data)


def fetched(space, chain, delivery=Delivery.MAP):
    fetch = space.fetch(chain, delivery=delivery)
    list(fetch.arrivals())
    return fetch


@pytest.mark.parametrize("delivery", list(Delivery))
def test_what_is_the_same_is_compared_and_nothing_differs(short_directory, delivery):
    with serving(short_directory) as client:
        space = client.keyspace(KEYSPACE)
        chain = space.chain(np.arange(CHUNKS * CHUNK_TOKENS))
        space.put(chain, computed())
        with fetched(space, chain, delivery) as fetch:
            comparison = compare(fetch, space.prepare(computed()))
        assert comparison.counts == (CHUNKS,) * 3 and comparison.differences == ()
        part = [[t[:, 2 * CHUNK_TOKENS :] for t in row] for row in computed()]
        with fetched(space, chain, delivery) as fetch:
            comparison = compare(fetch, space.prepare(part, first=2), first=2)
            assert comparison.counts == (2,) * 3 and comparison.differences == ()
        counters = client.status().counters
        assert (counters.compared_chunks, counters.differing_chunks) == (CHUNKS + 2, 0)


@pytest.mark.parametrize(
    ("bit", "classes"), [(0, {PlaneClass.EXACT}), (14, set(PlaneClass))], ids=["low", "high"]
)
def test_one_bit_of_one_value_is_named_by_its_place(short_directory, bit, classes):
    wrong = computed()
    wrong[1][0][1, 2 * CHUNK_TOKENS + 5, 7] ^= np.uint16(1 << bit)
    data = SsdSettings((short_directory / "data",), 64 * MIB)
    with serving(short_directory / "a", data) as client:
        space = client.keyspace(KEYSPACE)
        chain = space.chain(np.arange(CHUNKS * CHUNK_TOKENS))
        assert space.put(chain, wrong, durability="disk").durable
        found = assert_found(space, chain, classes)
        assert {d.tier for d in found} == {Tier.DRAM}
    with serving(short_directory / "b", data) as client:
        space = client.keyspace(KEYSPACE)
        fetches = []

        def whole() -> bool:
            fetches.append(space.fetch(chain))
            return fetches[-1].counts == (CHUNKS,) * 3

        until(whole, "there is memory to read into")
        again = assert_found(space, chain, classes, fetches[-1])
        if len(fetches) == 1:  # Else a shorter one before it has read some of it.
            assert {d.tier for d in again} == {Tier.SSD}
        assert {d.generation for d in again} == {d.generation for d in found}


def assert_found(space, chain, classes, fetch=None) -> tuple[Difference, ...]:
    """Comparison, and look whether that cell is all that was found."""
    with fetch or space.fetch(chain) as fetch:
        list(fetch.arrivals())
        comparison = compare(fetch, space.prepare(computed()))
    assert comparison.counts == (CHUNKS,) * 3
    places = {(d.chunk, d.layer, d.head, d.tensor) for d in comparison.differences}
    assert places == {(2, 1, 1, 0)} and {d.plane_class for d in comparison.differences} == classes
    return comparison.differences


def test_what_differs_is_replaced_when_one_says_so(short_directory):
    wrong = computed()
    wrong[2][1][0, CHUNK_TOKENS, 0] ^= np.uint16(1 << 9)
    with serving(short_directory) as client:
        space = client.keyspace(KEYSPACE)
        chain = space.chain(np.arange(CHUNKS * CHUNK_TOKENS))
        space.put(chain, wrong)
        fetch = fetched(space, chain)
        comparison = compare(fetch, space.prepare(computed()))
        assert {d.chunk for d in comparison.differences} == {1}
        assert client.status().counters.differing_chunks == 1
        fetch.release({d.chunk for d in comparison.differences})
        until(lambda: space.lookup(chain).counts[0] == 1, "it is offered no more")
        space.put(chain, computed())
        with fetched(space, chain) as again:
            assert compare(again, space.prepare(computed())) == replace(comparison, differences=())


def test_what_cannot_be_compared_is_said(short_directory):
    with serving(short_directory) as client:
        space = client.keyspace(KEYSPACE)
        chain = space.chain(np.arange(CHUNKS * CHUNK_TOKENS))
        prepared = space.prepare(computed())
        with fetched(space, chain) as fetch:
            assert compare(fetch, prepared).counts == (0, 0, 0)
        space.put(chain, computed())
        theirs = replace(prepared, profile=replace(prepared.profile, id=77))
        with fetched(space, chain) as fetch, pytest.raises(KvdError, match="codec profile"):
            compare(fetch, theirs)

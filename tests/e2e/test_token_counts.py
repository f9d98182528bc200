"""Every number of tokens: behind the last whole chunk nothing is stored, and nothing written."""

from dataclasses import replace

import numpy as np
import pytest

from kvd.client import EXACT, BlockShape, Delivery, Dtype, Keyspace, KvdError, Reason
from kvd.limits import MIB, Limits
from tests.e2e.process import connected

LAYERS, HEADS, WIDTH, CHUNK = 2, 2, 8, 64
POISON = 0xEEEE
LIMITS = replace(Limits(), slab_bytes=4 * MIB)
COUNTS = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2049)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with connected(tmp_path_factory.mktemp("d"), LIMITS, 64 * MIB) as made:
        yield made


def space_of(client, model: str, chunk: int = CHUNK):
    shape = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
    return client.keyspace(Keyspace(model, "r", shape, chunk_tokens=chunk))


def values(tokens: int) -> list:
    """Return tensors whose every element says where it belongs."""
    head, token, at = np.ogrid[:HEADS, :tokens, :WIDTH]
    base = (0x3F00 + token % 251 + 3 * head + 7 * at).astype(np.uint16)
    return [
        [base + np.uint16(11 * layer + 5 * kind) for kind in range(2)] for layer in range(LAYERS)
    ]


def poisoned(tokens: int) -> list:
    return [
        [np.full((HEADS, tokens, WIDTH), POISON, np.uint16) for _ in range(2)]
        for _ in range(LAYERS)
    ]


def assert_only(targets, ours, begin: int, end: int) -> None:
    """Tokens [begin, end) are ours, and everything beside them was left alone."""
    for row, wanted in zip(targets, ours, strict=True):
        for target, tensor in zip(row, wanted, strict=True):
            assert np.array_equal(target[:, begin:end], tensor[:, begin:end])
            assert (target[:, :begin] == POISON).all() and (target[:, end:] == POISON).all()


@pytest.mark.parametrize("skipped", range(4), ids="skip last {}".format)
@pytest.mark.parametrize("count", COUNTS)
def test_a_store_and_every_prefix_of_it(client, count, skipped):
    """An engine that keeps the last tokens to itself asks for fewer than it stored."""
    space = space_of(client, f"counts {count}")
    tokens, ours, whole = np.arange(count), values(count), count // CHUNK
    chain = space.chain(tokens)
    assert len(chain) == 32 * whole
    if not whole:
        with pytest.raises(KvdError, match="chain has 0 bytes"):
            space.put(chain, ours)
        return
    stored = space.put(chain, ours)
    assert stored.stored + stored.had == whole and stored.refused == 0
    usable = max(0, count - skipped) // CHUNK
    for asked in {0, 1, usable // 2, usable}:
        prefix = space.chain(tokens[: asked * CHUNK])
        if not prefix:
            with pytest.raises(KvdError):
                space.fetch(prefix)
            continue
        targets = poisoned(count)
        with space.fetch(prefix) as fetch:
            assert fetch.counts == (asked,) * 3
            assert fetch.decode((0, LAYERS), EXACT, targets) == asked
        assert_only(targets, ours, 0, asked * CHUNK)


@pytest.mark.parametrize("delivery", list(Delivery))
def test_of_some_chunks_nothing_behind_them_is_touched(client, delivery):
    """k of n are there, for every k; and every part of those k alone."""
    count = 6
    for there in range(1, count + 1):
        space = space_of(client, f"partial {there} {delivery}")
        ours, chain = values(count * CHUNK), space.chain(np.arange(count * CHUNK))
        space.put(chain[: 32 * there], ours)
        with space.fetch(chain, delivery=delivery) as fetch:
            list(fetch.arrivals())
            assert fetch.counts == (there,) * 3
            assert (fetch.reason == Reason.NONE) == (there == count)
            targets = poisoned(count * CHUNK)
            assert fetch.decode((0, LAYERS), EXACT, targets) == there
            assert_only(targets, ours, 0, there * CHUNK)
            for begin in range(there):
                targets = poisoned(count * CHUNK)
                chunks = (begin, there)
                assert fetch.decode((0, LAYERS), EXACT, targets, chunks=chunks) == there - begin
                assert_only(targets, ours, begin * CHUNK, there * CHUNK)
            with pytest.raises(KvdError, match="promised"):
                fetch.decode((0, LAYERS), EXACT, targets, chunks=(0, there + 1))
            short = poisoned(there * CHUNK - 1)
            with pytest.raises(KvdError, match="targets hold"):
                fetch.decode((0, LAYERS), EXACT, short)
            assert_only(short, short, 0, 0)


def test_what_an_engine_holds_itself_is_not_written_over(client):
    """It holds more than the last whole chunk that is stored: there is nothing to write for it."""
    chunk, resident, stored = 256, 14_816, 14_820
    space = space_of(client, "overlap", chunk)
    ours, chain = values(stored), space.chain(np.arange(stored))
    assert len(chain) // 32 == stored // chunk == resident // chunk
    assert space.put(chain, ours).stored == stored // chunk
    with space.fetch(chain) as fetch:
        first = -(-resident // chunk)  # The first chunk that begins behind what is resident.
        assert fetch.counts[0] < first
        targets = poisoned(stored)
        with pytest.raises(KvdError, match="promised"):
            fetch.decode((0, LAYERS), EXACT, targets, chunks=(first, first + 1))
        whole = resident // chunk - 2
        assert fetch.decode((0, LAYERS), EXACT, targets, chunks=(whole, whole + 1)) == 1
        assert_only(targets, ours, whole * chunk, (whole + 1) * chunk)


def test_one_chunk_at_a_time_and_requests_that_end_in_between(client):
    space = space_of(client, "singly")
    count = 5
    ours, tokens = values(count * CHUNK + 1), np.arange(count * CHUNK + 1)
    held = []
    for tokens_so_far in range(1, len(tokens) + 1):
        chain = space.chain(tokens[:tokens_so_far])
        if tokens_so_far % CHUNK == 1 and chain:
            held.append(space.fetch(chain))
            assert held[-1].counts == (len(chain) // 32,) * 3
        if tokens_so_far % CHUNK == 0:
            first = tokens_so_far // CHUNK - 1
            last = [[t[:, first * CHUNK :] for t in row] for row in ours]
            assert space.put(chain, last, first=first).stored == 1
            if len(held) > 1:
                held.pop(0).release()
        if tokens_so_far < CHUNK:
            assert chain == b""
    for fetch in held:
        targets = poisoned(len(tokens))
        good = fetch.decode((0, LAYERS), EXACT, targets)
        assert good == fetch.counts[0]
        assert_only(targets, ours, 0, good * CHUNK)
        fetch.release()


@pytest.mark.parametrize("lookups", range(6))
def test_lookups_before_a_store_change_nothing_of_it(client, lookups):
    """Of the whole text and of its parts, held or not, and what comes is announced as well."""
    space, count = space_of(client, f"looked up {lookups}"), 4
    ours, chain = values(count * CHUNK), space.chain(np.arange(count * CHUNK))
    for at in range(lookups):
        found = space.lookup(chain[: 32 * (1 + at % count)], lease=at % 2 == 1)
        assert (found.counts, found.lease) == ((0, 0, 0), 0)
        assert space.lookup(chain).reason == Reason.NOT_STORED
        assert space.prefetch(chain).counts == (0, 0, 0)
    first = space.put(chain[: 32 * 2], ours)
    assert (first.stored, first.had, first.refused) == (2, 0, 0)
    for at in range(lookups):
        found = space.lookup(chain, lease=at % 2 == 1)
        assert found.counts == (2, 2, 2)
        space.release(found.lease)
    whole = space.put(chain, ours)
    assert (whole.stored, whole.had, whole.refused) == (2, 2, 0)
    targets = poisoned(count * CHUNK)
    with space.fetch(chain) as fetch:
        assert fetch.counts == (count,) * 3
        assert fetch.decode((0, LAYERS), EXACT, targets) == count
    assert_only(targets, ours, 0, count * CHUNK)

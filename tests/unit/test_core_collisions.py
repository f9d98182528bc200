"""Digests that collide: all bits count, and what stands behind another chunk is not found."""

import hashlib

import numpy as np
import pytest

from kvd.core.effects import Shortfall
from kvd.errors import ErrorKind
from kvd.limits import DIGEST_BYTES
from kvd.testing.scene import Scene, chain_of, kind_of
from tests.unit.test_core_burden import Quick

TEXTS = 300


def cut(digest: bytes) -> bytes:
    """Return the digest that an engine with a hash of 8 bits would give."""
    return hashlib.blake2b(digest[:1], digest_size=DIGEST_BYTES).digest()


def chains() -> list[bytes]:
    """Return chains of two chunks: beginnings that differ, and second chunks that collide."""
    made = []
    for text in range(TEXTS):
        first = chain_of(1, text)
        made.append(first + cut(chain_of(2, text)[DIGEST_BYTES:]))
    assert len({chain[DIGEST_BYTES:] for chain in made}) < 256
    return made


def test_what_collides_is_neither_stored_nor_found_behind_another_chunk() -> None:
    scene = Quick(slabs=60, slab_pages=32)
    session = scene.join()
    stored: dict[bytes, bytes] = {}
    for chain in chains():
        first, second = chain[:DIGEST_BYTES], chain[DIGEST_BYTES:]
        assert scene.put(session, first) == 0
        outcome = scene.reserve(session, second, first)
        if second in stored:
            assert kind_of(outcome) == ErrorKind.INVALID and "behind another" in outcome.message
        else:
            assert scene.seal(session, outcome.reservation, 0, 1, last=True) == [1]
            stored[second] = first
    collided = 0
    for chain in chains():
        first, second = chain[:DIGEST_BYTES], chain[DIGEST_BYTES:]
        promise = scene.fetch(session, chain)
        own = stored[second] == first
        assert promise.counts == ((2, 2, 2) if own else (1, 1, 1))
        assert (promise.reason == Shortfall.NONE) == own
        collided += not own
        scene.release(session, promise.lease)
    assert collided > 40


@pytest.mark.parametrize("byte", range(DIGEST_BYTES))
def test_every_bit_of_a_digest_counts(byte: int) -> None:
    scene = Scene()
    session, chain = scene.join(), chain_of(1)
    scene.put(session, chain)
    for bit in range(8):
        other = np.frombuffer(chain, np.uint8).copy()
        other[byte] ^= 1 << bit
        assert scene.counts(session, other.tobytes()) == (0, 0, 0)
    assert scene.counts(session, chain) == (1, 1, 1)

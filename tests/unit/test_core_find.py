"""Lookup and fetch by example: the longest prefix, lanes, why a promise is short."""

import pytest

from kvd.core.effects import Shortfall
from kvd.core.evict import drop_class
from kvd.limits import DIGEST_BYTES
from kvd.testing.scene import Scene, chain_of
from kvd.types import PlaneClass


@pytest.mark.parametrize("stored", range(8))
@pytest.mark.parametrize("asked", (1, 2, 5, 7, 9))
def test_longest_prefix(stored: int, asked: int) -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(stored))
    assert scene.counts(session, chain_of(asked)) == (min(stored, asked),) * 3


@pytest.mark.parametrize("class_count", (1, 2, 3))
def test_a_fetch_of_fewer_classes_is_not_short(class_count: int) -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(3))
    promise = scene.fetch(session, chain_of(3), class_count=class_count)
    assert promise.counts == (3,) * class_count + (0,) * (3 - class_count)
    assert promise.reason == Shortfall.NONE


def test_a_chain_joined_of_two_is_promised_only_as_far_as_it_was_stored() -> None:
    """Bisection looks behind the seam first, and finds there what is missing before it."""
    scene = Scene()
    session = scene.join()
    short, long = chain_of(3, text=1), chain_of(7, text=2)
    scene.put(session, short)
    scene.put(session, long)
    row = scene.state.index.trees[0].rows[short[-DIGEST_BYTES:]]
    drop_class(scene.state, row, PlaneClass.EXACT)
    drop_class(scene.state, row, PlaneClass.RESIDUAL)
    promise = scene.fetch(session, short + long[len(short) :])
    assert promise.counts == (3, 2, 2)
    assert all(slabs.all() for slabs in promise.lanes[0].slabs)

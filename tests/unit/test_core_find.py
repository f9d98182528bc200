"""Lookup and fetch by example: the longest prefix, lanes, why a promise is short."""

import pytest

from kvd.core.effects import Answer, GiveSlab, Shortfall, Tell
from kvd.core.events import Delivery, FetchWanted
from kvd.core.evict import drop_class
from kvd.core.story import Why
from kvd.errors import ErrorKind
from kvd.limits import DIGEST_BYTES, PAGE_BYTES, Limits
from kvd.testing.scene import LANE, Scene, chain_of, kind_of
from kvd.types import Lane, PlaneClass, Shard, ShardScheme

HALVES = tuple(Lane(shard=Shard(ShardScheme.HEADS, index, 2)) for index in range(2))


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
    drop_class(scene.state, row, PlaneClass.EXACT, Why.ROOM)
    drop_class(scene.state, row, PlaneClass.RESIDUAL, Why.ROOM)
    promise = scene.fetch(session, short + long[len(short) :])
    assert promise.counts == (3, 2, 2)
    assert all(slabs.all() for slabs in promise.lanes[0].slabs)


def test_the_answer_is_the_least_of_all_lanes() -> None:
    scene = Scene(slabs=6)
    session = scene.join()
    chain = chain_of(6)
    scene.put(session, chain, lane=HALVES[0])
    scene.put(session, chain[: 4 * DIGEST_BYTES], lane=HALVES[1])
    assert scene.counts(session, chain, HALVES[0]) == (6, 6, 6)
    assert scene.counts(session, chain, *HALVES) == (4, 4, 4)
    tree = scene.state.index.trees_by_key[scene.state.index.trees[0].digest, HALVES[1]]
    row = tree.rows[chain[3 * DIGEST_BYTES : 4 * DIGEST_BYTES]]
    drop_class(scene.state, row, PlaneClass.EXACT, Why.ROOM)
    assert scene.counts(session, chain, *HALVES) == (4, 4, 3)
    assert scene.counts(session, chain, *reversed(HALVES)) == (4, 4, 3)
    assert scene.counts(session, chain, LANE) == (0, 0, 0), "a shard's chunks are not the whole's"


def test_a_lease_over_all_lanes_keeps_what_every_rank_hears() -> None:
    """Ranks ask one after the other: what the first was told holds for the last, in both lanes."""
    scene = Scene(slabs=2, slab_pages=24)
    first, last = scene.join(), scene.join()
    chain = chain_of(3)
    for lane in HALVES:
        scene.put(first, chain, lane=lane)
    held = scene.look_up(first, chain, HALVES, lease=True)
    assert held.counts == (3, 3, 3)
    for text in range(1, 60):
        scene.put(last, chain_of(2, text), lane=HALVES[1])
        scene.put(first, chain_of(2, text), lane=HALVES[0])
    assert scene.counts(last, chain, *HALVES) == scene.counts(first, chain, *HALVES) == held.counts


def test_lookups_change_nothing() -> None:
    """What is stored afterwards does not depend on how often it was asked for before."""
    outcomes = []
    for times in (0, 1, 5):
        scene = Scene()
        session = scene.join()
        for _ in range(times):
            assert scene.counts(session, chain_of(5)) == (0, 0, 0)
        scene.put(session, chain_of(5))
        outcomes.append(scene.counts(session, chain_of(5)))
    assert outcomes == [(5, 5, 5)] * 3


def test_a_promise_names_what_was_sealed() -> None:
    scene = Scene()
    session = scene.join()
    reserved = scene.reserve(session, chain_of(3))
    scene.seal(session, reserved.reservation, 0, 3, last=True)
    promise = scene.fetch(session, chain_of(3))
    (columns,) = promise.lanes
    for c in range(3):
        assert columns.slabs[c].tolist() == reserved.slabs[:, c].tolist()
        assert columns.offsets[c].tolist() == reserved.offsets[:, c].tolist()
        assert columns.roots[c].tolist() == [3 * chunk + c for chunk in range(3)]
    assert columns.generations.tolist() == [reserved.generation] * 3


def test_slabs_are_given_once_and_before_they_are_named() -> None:
    scene = Scene()
    writer, reader = scene.join(), scene.join()
    scene.put(writer, chain_of(3))
    scene.fetch(reader, chain_of(3))
    kinds = [type(effect) for effect in scene.effects]
    assert kinds == [GiveSlab, Tell, Answer] and not scene.effects[0].writable
    scene.fetch(reader, chain_of(3))
    assert [type(effect) for effect in scene.effects] == [Tell, Answer]
    assert scene.fetch(writer, chain_of(3)).counts == (3, 3, 3)
    assert [type(effect) for effect in scene.effects] == [Tell, Answer]


@pytest.mark.parametrize(("begin", "end"), ((0, 5), (4, 4), (3, 2), (4, 0)))
def test_layers_outside_are_refused(begin: int, end: int) -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(1))
    wish = FetchWanted(
        scene.number(), session, 1, (LANE,), chain_of(1), 3, begin, end, Delivery.BYTES, 0, 0, 10
    )
    assert kind_of(scene.ask(wish)) == ErrorKind.INVALID


@pytest.mark.parametrize("class_count", (0, 4))
def test_classes_outside_are_refused(class_count: int) -> None:
    scene = Scene()
    session = scene.join()
    assert kind_of(scene.fetch(session, chain_of(1), class_count=class_count)) == ErrorKind.INVALID
    assert kind_of(scene.look_up(99, chain_of(1))) == ErrorKind.LOST


def test_bounded_requests() -> None:
    scene = Scene(limits=Limits(slab_bytes=16 * PAGE_BYTES, requests_per_session_max=2))
    session = scene.join()
    scene.put(session, chain_of(1))
    for _ in range(2):
        assert scene.fetch(session, chain_of(1), Delivery.BYTES).counts == (1, 1, 1)
    for delivery in Delivery:
        assert kind_of(scene.fetch(session, chain_of(1), delivery)) == ErrorKind.OVERLOADED
    assert len(scene.state.leases) == 2


def test_a_chain_that_no_lane_has_as_such_is_found_in_none_and_harms_nobody() -> None:
    one, other = (Lane(shard=Shard(ShardScheme.HEADS, at, 2)) for at in range(2))
    scene = Scene()
    session = scene.join()
    first, second = chain_of(1, 0), chain_of(1, 1)
    scene.put(session, first, lane=one)
    scene.put(session, second, lane=other)
    mixed = second + first + chain_of(1, 9)
    for lease in (False, True):
        found = scene.look_up(session, mixed, (one, other), lease=lease)
        assert found.counts == (0, 0, 0) and not found.lease

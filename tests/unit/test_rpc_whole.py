"""What a client of the first protocol is told of a promise that comes in parts."""

import numpy as np
import pytest

from kvd.core.effects import WHOLE, WHOLES, FetchDone, LaneColumns, Promise, Shortfall
from kvd.core.events import Delivery, FetchWanted, LookupWanted
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.whole import WholeOnly, told_in_parts
from kvd.types import Lane
from kvd.wire import Feature

COUNTS = (3, 2, 1)


class Told:
    """Everything that the client hears, in order."""

    def __init__(self) -> None:
        self.all: list = []

    def answer(self, outcome) -> None:
        self.all.append(outcome)

    def promise(self, promise) -> None:
        self.all.append(promise)

    def ready(self, ready) -> None:
        raise AssertionError("READY is not known")

    def open_sink(self, wake):
        return wake


def promise(ready, counts=COUNTS) -> Promise:
    def columns(dtype):
        return tuple(np.arange(count, dtype=dtype) + 10 * c for c, count in enumerate(counts))

    each = np.arange(counts[0], dtype=np.uint64)
    lane = LaneColumns(
        each, each + 5, columns(np.uint32), columns(np.uint64), columns(np.uint32),
        columns(np.uint64),
    )  # fmt: skip
    return Promise(77, counts, (lane,), Shortfall.NONE, 1, ready)


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def gone():
    return []


@pytest.fixture
def waiter(told, gone):
    return WholeOnly(told, gone.append)


def test_a_whole_promise_is_told_at_once(waiter, told):
    whole = promise(WHOLES)
    waiter.promise(whole)
    waiter.answer(FetchDone(0))
    assert told.all == [whole, FetchDone(0)]


def test_a_promise_waits_until_it_is_whole(waiter, told, gone):
    waiter.promise(promise((1, 0, 0)))
    waiter.ready((WHOLE, 3, 0))
    assert not told.all
    waiter.ready(WHOLES)
    assert [each.ready for each in told.all] == [WHOLES]
    waiter.answer(FetchDone(0))
    assert told.all[1:] == [FetchDone(0)] and not gone


def test_a_promise_is_told_by_its_end_at_the_latest(waiter, told):
    waiter.promise(promise((1, 0, 0)))
    waiter.answer(FetchDone(0))
    assert told.all[0].ready == WHOLES and told.all[0].counts == COUNTS
    assert told.all[1:] == [FetchDone(0)]


def test_what_could_not_be_read_is_never_promised(waiter, told):
    waiter.promise(promise((1, 0, 0)))
    waiter.answer(FetchDone(9, (2, 1, 0), Shortfall.READ_FAILED))
    cut, done = told.all
    assert done == FetchDone(9)
    assert (cut.lease, cut.counts, cut.reason) == (77, (2, 1, 0), Shortfall.READ_FAILED)
    [lane] = cut.lanes
    assert lane.generations.tolist() == [0, 1] and lane.profiles.tolist() == [5, 6]
    for columns in (lane.slabs, lane.offsets, lane.sizes, lane.roots):
        assert [column.tolist() for column in columns] == [[0, 1], [10], []]


def test_a_lease_that_nobody_was_told_of_is_released(waiter, told, gone):
    waiter.promise(promise((1, 0, 0)))
    late = KvdError(ErrorKind.LATE, "late")
    waiter.answer(late)
    assert told.all == [late] and gone == [77]


def test_only_mapped_fetches_of_such_clients_are_seen_to(told, gone):
    def fetch(delivery: Delivery) -> FetchWanted:
        return FetchWanted(1, 1, 1, (Lane(),), bytes(32), 3, 0, 0, delivery, 0, 0, 1)

    def of(wish, features):
        return told_in_parts(wish, told, features, gone.append)

    assert isinstance(of(fetch(Delivery.MAP), 0), WholeOnly)
    assert isinstance(of(fetch(Delivery.MAP), Feature.CLEAR), WholeOnly)
    assert of(fetch(Delivery.MAP), Feature.READY) is told
    assert of(fetch(Delivery.BYTES), 0) is told
    assert of(LookupWanted(1, 1, 1, (Lane(),), bytes(32), False), 0) is told

"""What is told of the slabs of processes that are gone, while others have them still."""

import contextlib

import pytest

from kvd.core.events import ProcessGone
from kvd.daemon.lending import Lending

SESSION, OTHER = 4, 5


class Lender:
    """Loans by number, which a test has last or end."""

    def __init__(self) -> None:
        self.number = 0
        self.lasting: set[tuple[int, int]] = set()

    @contextlib.contextmanager
    def lend_slab(self, slab):
        self.number += 1
        self.lasting.add((slab, self.number))
        yield 100 + self.number, self.number

    def is_lent(self, slab, loan):
        return (slab, loan) in self.lasting


@pytest.fixture
def lender():
    return Lender()


@pytest.fixture
def lending(lender):
    lending = Lending(lender)
    for session, slab in ((SESSION, 1), (SESSION, 2), (OTHER, 2)):
        with lending.lend(session, slab) as descriptor:
            assert descriptor > 100
    return lending


def test_slabs_that_others_have_are_told_and_again_when_they_become_less(lending, lender):
    assert lending.end(SESSION) == ProcessGone(SESSION, frozenset({1, 2}))
    assert lending.look() == []
    lender.lasting.discard((1, 1))
    assert lending.look() == [ProcessGone(SESSION, frozenset({2}))]
    assert lending.look() == []
    lender.lasting.clear()
    assert lending.look() == [ProcessGone(SESSION)]
    assert lending.look() == []


def test_a_slab_lent_twice_is_free_when_both_loans_have_ended(lending, lender):
    with lending.lend(SESSION, 1):
        pass
    lender.lasting -= {(1, 1), (2, 2)}
    assert lending.end(SESSION) == ProcessGone(SESSION, frozenset({1}))
    lender.lasting.discard((1, 4))
    assert lending.look() == [ProcessGone(SESSION)]


def test_another_sessions_loans_are_its_own(lending, lender):
    lender.lasting -= {(1, 1), (2, 2)}
    assert lending.end(SESSION) == ProcessGone(SESSION)
    assert lending.end(OTHER) == ProcessGone(OTHER, frozenset({2}))


def test_a_destroyed_slab_is_not_asked_about(lending, lender):
    assert lending.end(SESSION).written == {1, 2}
    lending.forget(1)
    lending.forget(2)
    assert lending.look() == [ProcessGone(SESSION)]
    assert lending.end(77) == ProcessGone(77)

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
        self.asked = 0

    @contextlib.contextmanager
    def lend_slab(self, slab):
        self.number += 1
        self.lasting.add((slab, self.number))
        yield 100 + self.number, self.number

    def is_lent(self, slab, loan):
        self.asked += 1
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


def take(lending, lender, *, lasts: int) -> None:
    """Lend a slab a thousand times; the last `lasts` loans are kept, those before given up."""
    before = lender.number
    for _ in range(1000):
        with lending.lend(SESSION, 3):
            if lender.number - lasts > before:
                lender.lasting.discard((3, lender.number - lasts))


def test_loans_that_ended_are_forgotten_while_the_session_lives(lending, lender):
    for lasts in (1, 10):
        take(lending, lender, lasts=lasts)
        lender.asked = 0
        assert 3 in lending.end(SESSION).written
        lender.lasting = {each for each in lender.lasting if each[0] != 3}
        lender.asked = 0
        assert 3 not in lending.end(SESSION).written
        assert lender.asked <= 2 * lasts + 4, "each is a call of the kernel, on the loop"


def test_a_loan_that_lasts_is_never_forgotten(lending, lender):
    with lending.lend(SESSION, 3):
        first = lender.number
    take(lending, lender, lasts=1)
    lender.lasting = {(3, first)}
    assert lending.end(SESSION).written == {3}
    lender.lasting.clear()
    assert lending.look() == [ProcessGone(SESSION)]


def test_one_that_keeps_all_it_was_lent_makes_no_give_dearer(lending, lender):
    lender.asked = 0
    take(lending, lender, lasts=1000)
    assert lender.asked <= 2 * 1000

"""Every parser under chance: what it takes is what was meant, and it refuses by its own word."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutated
from tests.fuzz.parser import Parser, kept, seeds_of, taken
from tests.fuzz.table import PARSERS

ENOUGH_TRIES = 40  # With fewer, chance may spoil none of the inputs.
EACH = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
# `explain` would try each failure many times more, with every line of kvd watched.
QUICK = settings(
    phases=[phase for phase in Phase if phase != Phase.explain],
    suppress_health_check=list(HealthCheck),
)


@EACH
def test_seeds_are_taken_and_what_was_wrong_once_is_not(parser):
    assert any(taken(parser, seed) for seed in seeds_of(parser))
    for data in kept(parser):
        taken(parser, data)


@EACH
def test_whatever_comes_is_taken_or_refused(parser):
    try_by_chance(parser)


def try_by_chance(parser: Parser) -> None:
    """Try bytes made from the parser's seeds; raise what it must not raise."""
    answers = set()

    @settings(QUICK, max_examples=parser.tries)
    @given(st.randoms(use_true_random=False))
    def attempt(rng) -> None:
        answers.add(taken(parser, mutated(rng, parser)))

    attempt()
    if parser.tries >= ENOUGH_TRIES:
        assert False in answers, "nothing was refused: is it tried at all?"

"""Whether the simulated world finds a bug that is planted in the core."""

import re

import pytest

from kvd.testing import run
from kvd.testing.counting import Tally


def assert_found(pattern: str, seeds: int, *, tiered: bool) -> None:
    """Run seeds until one fails, which it must do in the way the pattern says.

    Nobody counts meanwhile: a bug that changes what happens changes what is counted, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tally, "after", lambda tally, event, effects: None)
        _assert_fails(pattern, seeds, tiered=tiered)


def assert_miscounted(pattern: str, seeds: int) -> None:
    """As `assert_found`, of a bug in what is counted only."""
    _assert_fails(pattern, seeds, tiered=True)


def _assert_fails(pattern: str, seeds: int, *, tiered: bool) -> None:
    for seed in range(seeds):
        try:
            run(seed, tiered=tiered)
        except AssertionError as error:
            assert re.search(pattern, str(error)), f"seed {seed}: {error!r}"
            return
    raise AssertionError(f"not found within {seeds} seeds")

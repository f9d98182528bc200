"""The simulated world over many seeds. `--seeds N` runs more, `--seed K` replays one."""

from collections import Counter
from collections.abc import Iterator

import pytest

from kvd.testing import run
from kvd.testing.situations import SOMETIMES

SEEDS = 100
# Beyond those: fetches shortened by a failed read, and a row that lost a class while it is written.
SEEDS_MORE = (117, 132)


@pytest.fixture(scope="module")
def seen() -> Iterator[Counter]:
    """Collect what was seen over all seeds of this run."""
    yield Counter()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        one = metafunc.config.getoption("seed")
        count = metafunc.config.getoption("seeds") or SEEDS
        many = (*range(count), *(SEEDS_MORE if count <= SEEDS else ()))
        metafunc.parametrize("seed", [one] if one is not None else many)


def test_invariants_hold(seed: int, seen: Counter) -> None:
    result = run(seed)
    seen.update(result.sometimes)


def test_rare_situations_happened(
    seen: Counter, request: pytest.FixtureRequest, record_property
) -> None:
    """A world that never was in a rare situation shows nothing about it."""
    options = request.config.option
    if options.seed is not None or (options.seeds or SEEDS) < SEEDS:
        pytest.skip("a few seeds are not in every situation")
    record_property("sometimes", {name: seen[name] for name in SOMETIMES})
    assert not [name for name in SOMETIMES if not seen[name]]


@pytest.mark.parametrize("number", (3, 14))
def test_the_same_seed_gives_the_same_effects(number: int) -> None:
    """I12."""
    assert run(number).log == run(number).log


def test_other_seeds_give_other_effects() -> None:
    assert run(1, events=100).log != run(2, events=100).log

"""Whether the simulated world finds a bug that is planted in the core: the proof that it can.

Each plant names the message that it must be found by, so that none is found by accident.
"""

import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from kvd.testing import run
from kvd.testing.counting import Tally

SEEDS = 200
Patch = pytest.MonkeyPatch


def _as_it_is(patch: Patch) -> None:
    """Leave the world as it is."""


@dataclass(frozen=True, slots=True)
class Plant:
    """`apply` puts the bug in; in a `tiered` world the message found fits `pattern`.

    `setting` changes the world that it is looked for in. Nobody counts meanwhile, unless it is
    `counted`: a bug that changes what happens changes what is counted, too.
    """

    apply: Callable[[Patch], None]
    pattern: str
    tiered: bool
    setting: Callable[[Patch], None] = _as_it_is
    counted: bool = False

    @property
    def name(self) -> str:
        return self.apply.__name__


@dataclass(frozen=True, slots=True)
class Found:
    """By which seed a plant was found, None for by none, or by another message than its own."""

    plant: Plant
    seed: int | None
    message: str

    @property
    def right(self) -> bool:
        return self.seed is not None and bool(re.search(self.plant.pattern, self.message))


def find(plant: Plant) -> Found:
    """Run seeds until one fails."""
    with pytest.MonkeyPatch.context() as patch:
        if not plant.counted:
            patch.setattr(Tally, "after", lambda tally, event, effects: None)
        plant.setting(patch)
        plant.apply(patch)
        for seed in range(SEEDS):
            try:
                run(seed, tiered=plant.tiered)
            except AssertionError as error:
                return Found(plant, seed, str(error))
    return Found(plant, None, f"not found within {SEEDS} seeds")


def find_all(plants: Iterable[Plant]) -> Iterator[Found]:
    """Yield each plant as it is found, in no order, from a process for each core."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count() or 1) as pool:
        yield from pool.imap_unordered(find, plants)

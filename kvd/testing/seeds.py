"""Many seeds of the simulated world, in as many processes as there are cores.

Each seed is judged alone; a process lives through many, and says of each what it was in.
"""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from kvd.testing.simulation import FAILURES, run
from kvd.testing.world import Result


@dataclass(frozen=True, slots=True)
class Judged:
    """One seed: what it did, or in `violation` what did not hold, and how to replay it."""

    seed: int
    result: Result | None
    violation: str = ""


@dataclass(slots=True)
class Summary:
    """Of all seeds: how many, the least and the sum of their events, how often what was seen."""

    seeds: int = 0
    events: int = 0
    events_least: int = 0
    violations: list[Judged] = field(default_factory=list)
    sometimes: dict[str, int] = field(default_factory=dict)

    def add(self, judged: Judged) -> None:
        self.seeds += 1
        if judged.result is None:
            self.violations.append(judged)
            return
        events = judged.result.events
        self.events += events
        self.events_least = min(self.events_least or events, events)
        for situation, times in judged.result.sometimes.items():
            self.sometimes[situation] = self.sometimes.get(situation, 0) + times


def judge(seed: int) -> Judged:
    """Live through one seed; what is raised there becomes its violation."""
    try:
        return Judged(seed, run(seed))
    except FAILURES as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        return Judged(seed, None, f"{type(error).__name__}: {error} ({notes})")


def judge_all(seeds: Iterable[int], processes: int = 0) -> Iterator[Judged]:
    """Yield every seed as it is judged, in no order; `processes` 0: one for each core."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes or os.cpu_count() or 1, _begin) as pool:
        yield from pool.imap_unordered(judge, seeds, chunksize=4)


def summarize(
    seeds: Iterable[int], processes: int = 0, progress: Callable[[Summary], None] | None = None
) -> Summary:
    """Judge all seeds; `progress` is called after each with what is known so far."""
    summary = Summary()
    for judged in judge_all(seeds, processes):
        summary.add(judged)
        if progress is not None:
            progress(summary)
    return summary


def _begin() -> None:
    # A world is one heap of cycles that ends with its seed: looking through it meanwhile
    # costs a twentieth of the time, and finds nothing.
    gc.set_threshold(100_000, 20, 20)

"""The simulated world over many seeds. `--seeds N` runs more, `--seed K` replays one."""

import sys
import time

import pytest
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvd.testing import run
from kvd.testing.seeds import Summary, summarize
from kvd.testing.simulation import EVENTS
from kvd.testing.situations import SOMETIMES

SEEDS = 200
# Beyond those: a strip that moves waited for one that was to take the room it kept; the place of
# a strip that failed was given away while somebody read what had come of it;
# a segment was free that a commit, said to have failed, had named; a chunk durable by its old
# strips was dropped as the write of its new ones failed; what replaced a condemned chunk had been
# reserved before it.
SEEDS_FOUND = (1521, 6155, 14454, 14786, 17418)
SAY_EVERY_S = 30  # Where no terminal shows a bar.


@pytest.fixture(scope="module")
def summary(request: pytest.FixtureRequest) -> Summary:
    """All seeds, judged in as many processes as there are cores."""
    if request.config.getoption("seed") is not None:
        pytest.skip("one seed is replayed")
    count = request.config.getoption("seeds") or SEEDS
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled(), Shown(count) as shown:
        return summarize(range(count), progress=shown.update)


class Shown:
    """A bar on a terminal, elsewhere a line now and then."""

    def __init__(self, count: int) -> None:
        columns = TextColumn("seeds"), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, disable=not sys.stderr.isatty())
        self._task, self._count = self._bar.add_task("seeds", total=count), count
        self._said_s = time.monotonic()

    def __enter__(self) -> "Shown":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def update(self, summary: Summary) -> None:
        self._bar.update(self._task, completed=summary.seeds)
        if self._bar.disable and time.monotonic() - self._said_s > SAY_EVERY_S:
            self._said_s = time.monotonic()
            wrong = len(summary.violations)
            print(f"{summary.seeds} of {self._count} seeds, {wrong} violations", flush=True)


def test_invariants_hold(summary: Summary) -> None:
    assert not summary.violations, "\n".join(
        f"seed {judged.seed}: {judged.violation}" for judged in summary.violations
    )
    assert summary.seeds and summary.events_least >= EVENTS


def test_rare_situations_happened(summary: Summary) -> None:
    """A world that never was in a rare situation shows nothing about it."""
    if summary.seeds < SEEDS:
        pytest.skip("a few seeds are not in every situation")
    assert not [name for name in SOMETIMES if not summary.sometimes.get(name)]


def test_one_seed(request: pytest.FixtureRequest) -> None:
    """With its traceback, for who looks for a bug."""
    seed = request.config.getoption("seed")
    for each in SEEDS_FOUND if seed is None else (seed,):
        run(each)


@pytest.mark.parametrize("number", (3, 14))
def test_the_same_seed_gives_the_same_effects(number: int) -> None:
    """I12."""
    assert run(number).log == run(number).log


def test_other_seeds_give_other_effects() -> None:
    assert run(1, events=100).log != run(2, events=100).log

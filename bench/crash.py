"""Real daemons ended at boundaries of their disk, memory and sockets: what is lost, what is wrong.

The lives of `tests/crash`, more of them: killed, or with some of what was not synced taken back.
Where a file system of its own can be mounted, some are on one whose power is cut.
"""

import contextlib
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.report import Report, progress
from tests.crash.cuts import MEDIUM_BYTES, cut_power, mounted_node
from tests.crash.handovers import KILLS, end_handovers, supervised_node
from tests.crash.lives import WORLDS, live, work_long
from tests.crash.model import Model
from tests.crash.mounted import NotHere, medium
from tests.crash.nursery import Nursery
from tests.crash.places import made_node, memory_or
from tests.crash.starts import end_first_starts, end_recoveries, end_removals, make_mess
from tests.crash.tally import Tally
from tests.crash.work import Work

LIVES, STARTS, CUTS, LONG_LIVES = 240, 60, 40, 10
LONG_STEPS = 500
SEED = 20


def run(report: Report, full: bool) -> None:
    """Report distinct points met, and what was wrong or lost at any of them; full tries twice."""
    times = 2 if full else 1
    tally, chance = Tally(), random.Random(SEED)
    with _nursery() as nursery, _directory() as directory:
        ends = _Ends(nursery, directory, tally, chance, times)
        with progress("ending daemons", total=ends.count) as advance:
            for end in ends:
                advance(f"{len(tally.points)} points, {len(tally.faults)} faults, {end}")
    how = f"{len(tally.cuts)} with a power cut too, {tally.moments} ends at any moment besides"
    report.figure("crash.points", len(tally.points), "points", note=how)
    told = f"{tally.steps:,} steps, {tally.compared:,} chunks compared; kvd check's findings count"
    report.figure("crash.wrong", len(tally.wrong) + len(tally.unsound), "chunks", note=told)
    report.figure("crash.lost", len(tally.lost), "prompts", note="acknowledged durable")


@dataclass(frozen=True, slots=True)
class _Ends:
    """All ends, one after the other, each as what it was to be; `times` as many as by default."""

    nursery: Nursery
    directory: Path
    tally: Tally
    chance: random.Random
    times: int

    @property
    def count(self) -> int:
        return self.times * (LIVES + 3 * STARTS + CUTS + LONG_LIVES) + len(KILLS)

    def __iter__(self) -> Iterator[str]:
        yield from self._of_lives()
        yield from self._of_starts()
        yield from self._of_handovers()
        yield from self._of_power()
        node = made_node(self.nursery, self.directory / "long", 14)
        with contextlib.closing(node):
            lives = self.times * LONG_LIVES
            yield from work_long(node, self.tally, self.chance, lives, LONG_STEPS)

    def _of_lives(self) -> Iterator[str]:
        for number, world in enumerate(WORLDS.values()):
            root, lives = self.directory / f"world{number}", round(self.times * LIVES * world.share)
            node = made_node(self.nursery, root, max(world.segments), world.directories)
            with contextlib.closing(node):
                yield from live(node, world, self.tally, self.chance, lives)

    def _of_starts(self) -> Iterator[str]:
        count, first = self.times * STARTS, self.directory / "first"
        yield from end_first_starts(self.nursery, first, self.tally, self.chance, count)
        node = made_node(self.nursery, self.directory / "messy", 16)
        with contextlib.closing(node):
            work = Work(Model(node.drops), self.chance.randrange(1 << 30), fresh=True)
            make_mess(node, work)
            again = self.directory / "again"
            yield from end_recoveries(node, work, again, self.tally, self.chance, count)
            away = self.directory / "away"
            yield from end_removals(node, work, away, self.tally, self.chance, count)

    def _of_handovers(self) -> Iterator[str]:
        node = supervised_node(self.nursery, self.directory / "kept")
        with contextlib.closing(node):
            yield from end_handovers(node, self.tally, self.chance, KILLS)

    def _of_power(self) -> Iterator[str]:
        with contextlib.ExitStack() as stack:
            try:
                mounted = stack.enter_context(medium(self.directory / "medium", MEDIUM_BYTES))
            except NotHere as why:
                print(f"no power is cut for real: {why}", file=sys.stderr)
                return
            node = mounted_node(self.nursery, mounted, self.directory / "run")
            with contextlib.closing(node):
                yield from cut_power(node, mounted, self.tally, self.chance, self.times * CUTS)


@contextlib.contextmanager
def _nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    try:
        yield nursery
    finally:
        nursery.close()


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="kvd-"))
    directory = memory_or(made)
    try:
        yield directory
    finally:
        for path in {made, directory}:
            shutil.rmtree(path, ignore_errors=True)

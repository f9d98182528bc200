"""Samples daemon, clients and files of a soak all the time, each life in series of its own."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import soak_leaks as leaks
from bench.soak_fleet import Fleet
from bench.soak_gauges import Reading, Stats, asked, of_daemon, of_files, of_process
from tests.e2e.supervising import Supervisor

PROBLEMS_MAX = 10  # One that stays is found with every sample.
FULL = 0.95  # Of the most that ever lay on disk: then tiers are full.
Key = tuple[str, int]  # What it is of, and which life: a number or a process.
_NODE: Key = ("node", 0)


@dataclass(frozen=True, slots=True)
class Life:
    """A daemon from its readiness on."""

    number: int
    pid: int
    begin_s: float


class Sampler:
    """`check` says of a daemon's numbers what is wrong with them; `problems` are the first."""

    def __init__(
        self,
        manager: Supervisor,
        data: Path,
        fleet: Fleet,
        check: Callable[[Stats], list[str]],
    ) -> None:
        self._manager, self._data, self._fleet, self._check = manager, data, fleet, check
        self.problems: list[str] = []
        self.series: dict[Key, dict[str, list[tuple[float, float]]]] = defaultdict(dict)
        self.begun: dict[Key, float] = {}  # When each life began.
        self.stats: dict[int, Stats] = {}  # The last of each life.
        self.disk_bytes_max = 0.0
        self._life: Life | None = None
        self._began = time.monotonic()
        self._first_seen: dict[Key, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self, every_s: float) -> None:
        self._every_s = every_s
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples; wait for the one under way."""
        self._stopping.set()
        self._thread.join()

    def watch(self, life: Life | None) -> None:
        """Take the daemon's samples of this life from now on; None while there is none."""
        self._life = life

    def ask(self) -> None:
        """Take the daemon's numbers now, as it is about to end."""
        stats = asked(self._manager.directory)
        if stats is not None:
            self.take(stats)

    def take(self, stats: Stats) -> None:
        """Take numbers of the daemon that is watched, and check them."""
        life = self._life
        assert life is not None
        self.stats[life.number] = stats
        found = [f"daemon {life.number}: {problem}" for problem in self._check(stats)]
        self.problems += found[: PROBLEMS_MAX - len(self.problems)]

    def _work(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        now, life = time.monotonic(), self._life
        if life is not None:
            stats, reading = asked(self._manager.directory), of_process(life.pid)
            if life is self._life and stats is not None and reading is not None:
                self.take(stats)
                self._take(("daemon", life.number), reading | of_daemon(stats), life.begin_s, now)
        for member in list(self._fleet.members):
            key = (f"client {member.index}", member.process.pid)
            reading = of_process(member.process.pid)
            if reading is None:
                continue
            if member.blocks:
                reading["blocks of memory"] = member.blocks
            self._take(key, reading, self._first_seen.setdefault(key, now), now)
        files = of_files(self._data, self._manager.directory)
        files["descriptors kept over restarts"] = sum(map(len, list(self._manager.store.values())))
        self.disk_bytes_max = max(self.disk_bytes_max, files["bytes on disk"])
        self._take(_NODE, files, self._began, now)

    def _take(self, key: Key, reading: Reading, begin_s: float, now: float) -> None:
        self.begun[key] = begin_s
        for name, value in reading.items():
            self.series[key].setdefault(name, []).append((now - begin_s, value))


def verdicts(sampler: Sampler) -> list[leaks.Verdict]:
    """Judge every series that is long enough, within lives and over lives of the daemon."""
    series = sampler.series
    found: list[leaks.Verdict | None] = []
    full_s = _full_at(sampler)
    for (of, life), gauges in series.items():
        table = {"daemon": leaks.DAEMON, "node": leaks.NODE}.get(of, leaks.CLIENT)
        named = f"daemon {life}" if of == "daemon" else of
        filling = sampler.begun[of, life] < full_s
        judged = [each for each in table if not (each.fills and filling)]
        found += [leaks.judge(each, named, gauges.get(each.name, ())) for each in judged]
    lives = [gauges for (of, _), gauges in series.items() if of == "daemon"]
    for each in leaks.DAEMON:
        over = [gauges.get(each.name, []) for gauges in lives]
        found.append(leaks.judge_lives(each, "daemons at one age", over))
    return [verdict for verdict in found if verdict is not None]


def _full_at(sampler: Sampler) -> float:
    """Return when, as the monotonic clock says, the disk was about as full as it ever was."""
    sizes = sampler.series[_NODE].get("bytes on disk", [])
    most = max((size for _, size in sizes), default=0.0)
    ages = [age for age, size in sizes if size >= FULL * most]
    return sampler.begun.get(_NODE, 0.0) + min(ages, default=0.0)


def unjudged(found: list[leaks.Verdict]) -> list[str]:
    """Return the gauges that no series was long enough for."""
    judged = {(verdict.gauge, verdict.of.split()[0]) for verdict in found}
    tables = (("daemon", leaks.DAEMON), ("node", leaks.NODE), ("client", leaks.CLIENT))
    return [f"{of}: {g.name}" for of, table in tables for g in table if (g, of) not in judged]

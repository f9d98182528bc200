"""One soak from begin to end: daemon, clients, what befalls them, and what there was to see."""

import contextlib
import queue
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.serving import as_child
from bench.soak_blows import Blow, Kind
from bench.soak_end import adds_up, checked, said_badly, settle, warnings, whole
from bench.soak_fleet import Fleet, Tally
from bench.soak_gauges import Stats
from bench.soak_leaks import Verdict
from bench.soak_sampler import Life, Sampler, verdicts
from bench.soak_trace import Replay
from tests.e2e.supervising import Supervisor, managed

# Short, so that what is stopped for some seconds loses what it held.
TTL_SECONDS = 5
RECALL_SECONDS = 2
FIRST_SECONDS = 3.0  # From the start of clients to the first request.
LOOK_SECONDS = 0.05
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Setting:
    """`directory` is empty, on a file system with O_DIRECT; sizes in bytes."""

    directory: Path
    replay: Replay
    blows: Sequence[Blow]
    seconds: float
    clients: int
    dram_bytes: int
    ssd_bytes: int
    slab_bytes: int
    sample_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`problems`: what did not hold, one line each, gauges that were not flat left out."""

    tally: Tally
    done: dict[Kind, int]
    corrupt: int
    verdicts: list[Verdict]
    problems: list[str]
    warned: list[str]  # Lines of the daemons' logs, warnings and worse.
    stats: list[Stats]  # The last numbers of every daemon.
    seconds: float
    start_seconds: list[float]  # Of every daemon, from its begin to readiness.


class SoakFailed(Exception):
    """It cannot go on; the message says what the daemon said."""


class Soak:
    def __init__(self, setting: Setting, manager: Supervisor, logs: Path) -> None:
        self._setting, self._manager = setting, manager
        self._data = setting.directory / "data"
        path = logs / "replay.npz"
        setting.replay.save(path)
        self.fleet = Fleet(manager.tenant, path, setting.clients, logs)
        self.sampler = Sampler(manager, self._data, self.fleet, self._check)
        self._problems: list[str] = []
        self._warned: list[str] = []
        self._start_seconds: list[float] = []
        self._lives = 0

    def run(self, told: Callable[[float], None]) -> Outcome:
        """Carry all out; `told` is called with the seconds that are done."""
        setting, fleet = self._setting, self.fleet
        self._start()
        self.sampler.start(setting.sample_s)
        begin_s = time.monotonic() + FIRST_SECONDS
        fleet.begin(begin_s)
        for blow in setting.blows:
            self._wait_until(begin_s + blow.at_s, begin_s, told)
            self._strike(blow)
        self._wait_until(begin_s + setting.seconds, begin_s, told)
        seconds = time.monotonic() - begin_s
        self.sampler.stop()
        fleet.leave()
        self._end()
        self._problems += self.sampler.problems
        limit, most = setting.ssd_bytes, self.sampler.disk_bytes_max
        if most > limit:
            self._problems.append(f"{most:.0f} bytes on disk of {limit}")
        return Outcome(
            fleet.tally, dict(fleet.done), fleet.corrupt, verdicts(self.sampler), self._problems,
            self._warned, list(self.sampler.stats.values()), seconds, self._start_seconds,
        )  # fmt: skip

    def _check(self, stats: Stats) -> list[str]:
        return list(adds_up(stats, self._setting.slab_bytes))

    def _wait_until(self, at_s: float, begin_s: float, told: Callable[[float], None]) -> None:
        while True:
            self.fleet.mend()
            assert self._manager.daemon is not None
            if self._manager.daemon.process.poll() is not None:
                self._ended("ended by itself")
                self._start()
            told(time.monotonic() - begin_s)
            left = at_s - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, LOOK_SECONDS))

    def _strike(self, blow: Blow) -> None:
        if blow.kind not in (Kind.DAEMON_KILL, Kind.DAEMON_RESTART):
            self.fleet.strike(blow)
            return
        number = signal.SIGKILL if blow.kind == Kind.DAEMON_KILL else signal.SIGTERM
        self.sampler.ask()
        self.sampler.watch(None)
        self._ended("was ended", number)
        self.fleet.done[blow.kind] += 1
        self._start()

    def _start(self) -> None:
        began_s = time.monotonic()
        daemon = self._manager.begin()
        try:
            told = self._manager.told.get(timeout=START_SECONDS)
        except queue.Empty:
            told = f"nothing in {START_SECONDS:g} s"
        if told != "READY=1":
            said = [*self._manager.statuses[-3:], *daemon.lines[-10:]]
            raise SoakFailed("\n".join([f"a daemon did not become ready but told {told}", *said]))
        now_s = time.monotonic()
        self._start_seconds.append(now_s - began_s)
        self._lives += 1
        self.sampler.watch(Life(self._lives, daemon.process.pid, now_s))

    def _ended(self, how: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End the daemon by a signal, or see that it has ended; note what it should not have."""
        code = self._manager.stop(number)
        expected = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 0}[number]
        if code != expected or how == "ended by itself":
            self._problems.append(f"daemon {self._lives} {how}: exit code {code}")
        assert self._manager.daemon is not None
        lines = [f"daemon {self._lives} said: {line}" for line in self._manager.daemon.lines]
        self._problems += said_badly(lines)[:3]
        self._warned += warnings(lines)

    def _end(self) -> None:
        """Judge what is left when all have gone, end the daemon in order, and look at its disk."""
        stats, held = settle(self._manager.directory)
        self._problems += held
        if stats is not None:
            self.sampler.take(stats)
            self._problems += whole(stats, self._setting.slab_bytes)
        self._ended("was ended", signal.SIGTERM)
        self._problems += checked(self._data)


@contextlib.contextmanager
def soaking(setting: Setting) -> Iterator[Soak]:
    """Yield a soak whose processes are all gone afterwards."""
    flags = (
        *("--dram", str(setting.dram_bytes), "--data", str(setting.directory / "data")),
        *("--ssd", str(setting.ssd_bytes), "--limits-slab-bytes", str(setting.slab_bytes)),
        *("--limits-lease-ttl-seconds", str(TTL_SECONDS)),
        *("--limits-reservation-ttl-seconds", str(TTL_SECONDS)),
        *("--limits-recall-seconds", str(RECALL_SECONDS), "--metrics-listen", "off"),
    )
    with (
        tempfile.TemporaryDirectory(prefix="kvd-") as run,
        tempfile.TemporaryDirectory(prefix="kvd-logs-") as logs,
        managed(Path(run) / "run", *flags, prepare=as_child) as manager,
    ):
        soak = Soak(setting, manager, Path(logs))
        try:
            yield soak
        finally:
            soak.fleet.close()

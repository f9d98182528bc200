"""A node whose daemon is ended and started again on the same data directories, and watched."""

import contextlib
import io
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvd.cli.main import main
from kvd.client import Client
from kvd.clock import NS_PER_S
from kvd.disk.posix import allocated_bytes
from kvd.limits import KIB
from tests.crash.nursery import Forked, Nursery
from tests.crash.program import TOLD
from tests.crash.seam import Failing, Kill, Places
from tests.crash.sites import Point
from tests.e2e.process import DEADLINE_S, Daemon
from tests.e2e.supervising import Supervisor

SAMPLE_S = 0.006
LOOK_S = 0.1
# Short, so that what is rare is seen in a test: slabs change hands, probes come often.
LIMITS = {
    "slab_bytes": 256 * KIB,
    "probe_ns": NS_PER_S // 10,
    "space_ns": NS_PER_S // 5,
    "tick_ns": NS_PER_S // 20,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """How a node's daemons are started; `root` is on the file system of the data directories.

    `cut_outside`: that is one whose power can be cut.
    """

    root: Path
    run: Path
    paths: tuple[Path, ...]
    budget_bytes: int
    dram: str = "1MiB"
    limits: dict[str, int] = field(default_factory=lambda: dict(LIMITS))
    cut_outside: bool = False


def plan_of(kill: Kill | None, failing: Sequence[Failing], trace: Path | None) -> dict[str, Any]:
    """Return a plan as the seam takes it; `trace` is a file that all boundaries met go to."""
    return {
        "kill": asdict(kill) if kill else None,
        "failing": [asdict(each) for each in failing],
        "trace": str(trace) if trace else "",
    }


class _ForkedDaemon(Daemon):
    def __init__(
        self, nursery: Nursery, order: dict[str, Any], passed: Sequence[int], directory: Path,
        *flags: str,
    ):  # fmt: skip
        self._nursery, self._order, self._passed = nursery, order, passed
        super().__init__(directory, *flags)

    def _begin(self, words: list[str], prepare: object, python: object) -> Forked:
        return self._nursery.start({**self._order, "words": words}, self._passed)


class Watch:
    """Samples what lies under data directories all the time; `highest_bytes` of this life."""

    def __init__(self, paths: Sequence[Path], limit_bytes: int) -> None:
        self._paths, self.limit_bytes = paths, limit_bytes
        self.highest_bytes = self.samples = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def look(self) -> int:
        total = 0
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                total += allocated_bytes(path)
        self.highest_bytes = max(self.highest_bytes, total)
        self.samples += 1
        return total

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)

    def assert_within(self) -> None:
        self.look()
        assert self.highest_bytes <= self.limit_bytes, (self.highest_bytes, self.limit_bytes)

    def _work(self) -> None:
        while not self._stopping.wait(SAMPLE_S):
            self.look()


class Node:
    """`manager`: has the sockets, and keeps dram over restarts."""

    def __init__(self, nursery: Nursery, setting: Setting) -> None:
        self.setting, self.nursery = setting, nursery
        self.manager: Supervisor | None = None
        self.budget_bytes = setting.budget_bytes  # Of the next daemon.
        self.drops, self._ended = setting.run.with_name("drops"), setting.run.with_name("ended")
        attic = setting.root / "attic"
        attic.mkdir(parents=True, exist_ok=True)
        places = map(str, (attic, self._ended, setting.run.with_name("unsynced")))
        self._places = asdict(Places(*places, setting.cut_outside))
        self.daemon: _ForkedDaemon | None = None
        self.client: Client | None = None
        self.watch = Watch(setting.paths, setting.budget_bytes)

    @property
    def process(self) -> Forked:
        assert self.daemon is not None
        return self.daemon.process

    def start(self, kill: Kill | None = None, *failing: Failing, trace: Path | None = None) -> bool:
        """Start a daemon and connect to it; return whether it lived to be ready."""
        setting = self.setting
        order = {
            "limits": setting.limits, "places": self._places, "drops": str(self.drops),
            "plan": plan_of(kill, failing, trace), "environment": {},
        }  # fmt: skip
        passed: tuple[int, ...] = ()
        if self.manager is not None:
            order["environment"], passed = self.manager.given()
        flags = [word for path in setting.paths for word in ("--data", str(path))]
        flags += ["--ssd", f"{self.budget_bytes // KIB}KiB", "--dram", setting.dram]
        self.daemon = _ForkedDaemon(self.nursery, order, passed, setting.run, *flags)
        if not self.daemon.wait_line_or_end("ready on"):
            self.daemon.wait()
            return False
        self.client = Client(self.daemon.tenant, "crash", DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while not self.client.wait_connected(LOOK_S):
            if not self.lives():
                return False
            assert time.monotonic() < deadline, self.client.status().reason
        return True

    def tell(self, kill: Kill | None = None, *failing: Failing, trace: Path | None = None) -> bool:
        """Have another plan hold; return whether the daemon lived to say so."""
        assert self.daemon is not None
        with contextlib.suppress(BrokenPipeError):
            self.daemon.process.tell(plan_of(kill, failing, trace))
        return bool(self.daemon.wait_line_or_end(TOLD))

    def lives(self) -> bool:
        return self.daemon is not None and self.daemon.process.poll() is None

    def end(self) -> int:
        """Kill what still runs, and return the exit code."""
        assert self.daemon is not None
        if self.client is not None:
            self.client.close()
            self.client = None
        self.daemon.stop()
        return self.daemon.wait()

    def ended_at(self) -> Point | None:
        """Return where the last daemon wrote that it ended, once, or that it was no boundary."""
        if not self._ended.exists():
            return None
        ended = Point(**json.loads(self._ended.read_text()))
        self._ended.unlink()
        return ended

    def close(self) -> None:
        if self.daemon is not None:
            self.end()
        if self.manager is not None:
            self.manager.close()
        self.watch.stop()

    def said_badly(self, *more: str) -> list[str]:
        """Return the lines that no daemon should have said, or that have one of `more` words."""
        assert self.daemon is not None
        words = ("Traceback", "bug:", *more)
        return [line for line in self.daemon.lines if any(word in line for word in words)]

    def check(self, *flags: str) -> tuple[int, dict[str, Any]]:
        """Return the exit code of `kvd check --json` and what it found."""
        words = [word for path in self.setting.paths for word in ("--data", str(path))]
        return checked(words, *flags)


def checked(words: Sequence[str], *flags: str) -> tuple[int, dict[str, Any]]:
    out = io.TextIOWrapper(io.BytesIO())
    err = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["check", *words, "--json", *flags])
    out.seek(0)
    err.seek(0)
    text = out.read()
    return code, json.loads(text) if text else {"refused": err.read()}

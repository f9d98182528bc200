"""Stands between a daemon and its file system: ends the process at a boundary, or has calls fail.

A plan is plain data, told by the test. Boundaries are counted from the process's beginning, calls
that are to fail from when that was told.
"""

import errno
import fnmatch
import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import lmdb

from tests.crash.sites import AFTER, BEFORE, MIDDLE, Point
from tests.crash.unsynced import Unsynced, found_unsynced, leave


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process where `site` is met for the `count`th time; `seed` says what is torn.

    With `power` what was not synced is lost, by chance or really.
    """

    site: str
    when: str
    count: int
    seed: int = 0
    power: bool = False

    @property
    def point(self) -> Point:
        return Point(self.site, self.when, self.count)


@dataclass(frozen=True, slots=True)
class Failing:
    """What calls of `site` (a pattern) do instead, `times` times, 0 for ever.

    An errno's name: they raise it, `when` before or after the act. `hang`: they wait for the next
    plan. `skip`: nothing, and say that it is done. `short`: half a read, and say so. `lie`: half a
    read, and say that it was all.
    """

    site: str
    how: str
    times: int = 0
    when: str = BEFORE


@dataclass(frozen=True, slots=True)
class Places:
    """Where a process writes down its end (`ended`), keeps what it may lose (`attic`, `unsynced`).

    With `cut_outside` nothing is made up: whoever sees the end cuts the power of the file system.
    """

    attic: str
    ended: str
    unsynced: str
    cut_outside: bool = False


class Seam:
    def __init__(self, places: Places) -> None:
        self._lock, self._gate = threading.Lock(), threading.RLock()
        self._kill: Kill | None = None
        self._failing: list[Failing] = []
        self._met: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[Failing] = Counter()
        self._moved = threading.Event()
        self._trace = -1
        self._places = places
        self.unsynced: Unsynced | None = None
        if not places.cut_outside:
            self.unsynced = found_unsynced(Path(places.unsynced), Path(places.attic))

    def tell(self, plan: dict[str, Any]) -> None:
        """Have another plan hold from now on; whoever hangs goes on."""
        with self._gate, self._lock:
            self._kill = Kill(**plan["kill"]) if plan.get("kill") else None
            self._failing = [Failing(**each) for each in plan.get("failing", ())]
            self._failed.clear()
            if plan.get("trace"):
                self._trace = os.open(plan["trace"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            moved, self._moved = self._moved, threading.Event()
        moved.set()

    # ---- asked by the wrapped calls ----

    def change(self, site: str, act: Callable[[], Any], tear: Callable[[], None]) -> Any:
        """Do what changes the disk, or what the plan has in its place."""
        failing = self._next_failing(site)
        if failing is not None and failing.when == BEFORE:
            if failing.how == "skip":
                return None
            self.fail(site, failing)
        with self._gate:  # At the end of the process nobody is in the middle of another change.
            self.meet(site, BEFORE)
            if self.meets(site, MIDDLE):
                tear()
                self.die()
            done = act()
            self.meet(site, AFTER)
        if failing is not None and failing.when == AFTER:
            self.fail(site, failing)
        return done

    def read(self, site: str, act: Callable[[str], Any]) -> Any:
        """Do what changes nothing; `act` is told how: `` as it should be, `short` or `lie`."""
        failing, how = self._next_failing(site), ""
        if failing is not None:
            if failing.how in ("short", "lie"):
                how = failing.how
            else:
                self.fail(site, failing)
        self.meet(site, BEFORE)
        done = act(how)
        self.meet(site, AFTER)
        return done

    def skips(self, site: str) -> bool:
        """Return whether the plan leaves out what has no call of its own."""
        failing = self._next_failing(site)
        return failing is not None and failing.how == "skip"

    def chance(self) -> random.Random:
        return random.Random(self._kill.seed if self._kill else 0)

    def meet(self, site: str, when: str) -> None:
        if self.meets(site, when):
            self.die()

    def meets(self, site: str, when: str) -> bool:
        with self._lock:
            self._met[site, when] += 1
            if self._trace >= 0:
                os.write(self._trace, f"{site} {when} {self._met[site, when]}\n".encode())
            kill = self._kill
            return (
                kill is not None
                and (kill.site, kill.when) == (site, when)
                and self._met[site, when] == kill.count
            )

    def die(self) -> NoReturn:
        """End the process as a kill or a power cut does."""
        with self._gate:
            assert self._kill is not None
            Path(self._places.ended).write_text(json.dumps(asdict(self._kill.point)))
            if self.unsynced is not None and self._kill.power:
                self.unsynced.cut(self.chance())
            elif self.unsynced is not None:
                leave(self.unsynced, Path(self._places.unsynced))
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("a process survived its end")

    def fail(self, site: str, failing: Failing) -> None:
        """Wait, or raise what the file system or the catalog would."""
        if failing.how == "hang":
            self._moved.wait()
            return
        code = getattr(errno, failing.how)
        if site == "commit":
            kind = lmdb.DiskError if code == errno.ENOSPC else lmdb.Error
            raise kind(os.strerror(code))
        raise OSError(code, os.strerror(code))

    def _next_failing(self, site: str) -> Failing | None:
        with self._lock:
            for each in self._failing:
                if fnmatch.fnmatchcase(site, each.site):
                    if each.times and self._failed[each] >= each.times:
                        continue
                    self._failed[each] += 1
                    return each
        return None


def around(seam: Seam, site: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the seam around it."""

    def changing(*arguments: Any, **named: Any) -> Any:
        act = lambda: function(*arguments, **named)  # noqa: E731
        return seam.change(site, act, act)

    return changing


def replace_everywhere(function: Callable[..., Any], by: Callable[..., Any]) -> None:
    """Put a function in another's place wherever a module of kvd has it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kvd."):
            for word, value in list(vars(module).items()):
                if value is function:
                    setattr(module, word, by)

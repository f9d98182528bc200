"""Stands between a daemon and its file system: ends the process at a boundary, or has calls fail.

A plan is plain data, told by the test. It counts what happens from when it was told on.
"""

import errno
import fnmatch
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import lmdb

from kvd.catalog.contract import DATA_NAME, Changes
from kvd.limits import PAGE_BYTES
from tests.crash.sites import AFTER, BEFORE, INSIDE, MIDDLE
from tests.crash.unsynced import Unsynced


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process where `site` is met for the `count`th time; `seed` says what is torn.

    With `power` what was not synced is taken back first, by chance.
    """

    site: str
    when: str
    count: int
    seed: int = 0
    power: bool = False


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


class Seam:
    def __init__(self, attic: Path) -> None:
        self._lock, self._gate = threading.Lock(), threading.RLock()
        self._kill: Kill | None = None
        self._failing: list[Failing] = []
        self._met: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[Failing] = Counter()
        self._moved = threading.Event()
        self._trace = -1
        self.unsynced: Unsynced | None = None
        self._attic = attic

    def tell(self, plan: dict[str, Any]) -> None:
        """Have another plan hold from now on; whoever hangs goes on."""
        with self._gate, self._lock:
            self._kill = Kill(**plan["kill"]) if plan.get("kill") else None
            self._failing = [Failing(**each) for each in plan.get("failing", ())]
            self._met.clear()
            self._failed.clear()
            if plan.get("trace"):
                self._trace = os.open(plan["trace"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            if self._kill and self._kill.power and self.unsynced is None:
                self.unsynced = Unsynced(self._attic)
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
            if self._kill is not None and self._kill.power and self.unsynced is not None:
                self.unsynced.cut(self.chance())
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


def tear_commit(seam: Seam, path: Path, act: Callable[[], None]) -> None:
    """Have a transaction's pages written in part, and not the one that makes them the new state."""
    before = (path / DATA_NAME).read_bytes()
    act()
    descriptor = os.open(path / DATA_NAME, os.O_RDWR)
    after, chance = os.pread(descriptor, len(before), 0), seam.chance()
    for at in range(0, len(before), PAGE_BYTES):
        old = before[at : at + PAGE_BYTES]
        is_root = at < 2 * PAGE_BYTES
        if old != after[at : at + PAGE_BYTES] and (is_root or chance.random() < 0.5):
            os.pwrite(descriptor, old, at)


def wrap_catalog(seam: Seam) -> None:
    """Put the seam into the catalog."""
    from kvd.catalog import committing, environment
    from kvd.daemon import recovery

    apply, put, opened = (
        environment.Environment.apply,
        environment.Environment._put,
        environment.Environment.__init__,
    )

    def applied(self: environment.Environment, group: list[Changes]) -> None:
        def act() -> None:
            apply(self, group)

        seam.change("commit", act, lambda: tear_commit(seam, self.path, act))

    def put_in(self: environment.Environment, transaction: Any, changes: Changes) -> None:
        put(self, transaction, changes)
        seam.meet("commit", INSIDE)

    def begun(self: environment.Environment, path: Path, map_bytes: int) -> None:
        act = lambda: opened(self, path, map_bytes)  # noqa: E731
        seam.change("catalog.open", act, act)

    environment.Environment.apply = applied  # type: ignore[method-assign]
    environment.Environment._put = put_in  # type: ignore[method-assign]
    environment.Environment.__init__ = begun  # type: ignore[method-assign]
    for module, name, site in (
        (environment, "_take_space", "catalog.space"),
        (environment, "_sync_directory", "catalog.sync"),
        (committing, "make_environment", "catalog.make"),
        (recovery, "remove_catalog", "catalog.remove"),
    ):
        setattr(module, name, _around(seam, site, getattr(module, name)))


def _around(seam: Seam, site: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def around(*arguments: Any) -> Any:
        act = lambda: function(*arguments)  # noqa: E731
        return seam.change(site, act, act)

    return around

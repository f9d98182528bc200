"""One thread that commits what waits, as much together as it may, and reports it once synced."""

import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import lmdb

from kvd.catalog.contract import DAMAGED_NAME, Changes, Committed, Report
from kvd.catalog.environment import (
    FULL,
    Environment,
    MetaDamaged,
    NoSpace,
    fault_of,
    make_environment,
    puts,
)
from kvd.catalog.looking import Look, has_data
from kvd.clock import NS_PER_S, Clock
from kvd.errors import Fault, FaultKind
from kvd.limits import CatalogBounds

_FAILURES = (lmdb.Error, OSError, NoSpace, MetaDamaged)
_Batch = tuple[int, Changes]


def open_catalog(
    path: Path, map_bytes: int, report: Report, clock: Clock, bounds: CatalogBounds | None = None
) -> "LmdbCatalog | Fault":
    """Return the catalog in directory `path`, made when it is not there, or why there is none.

    One that is there was loaded before, so it can be read. Before anything is written into it,
    every page of it is verified in the background: commits wait for that.
    """
    bounds = bounds or CatalogBounds()
    size = max(map_bytes, bounds.map_bytes_min)
    try:
        old = has_data(path)
        if not old:
            make_environment(path, size)
        environment = Environment(path, size)
    except _FAILURES as error:
        return fault_of(error, path)
    return LmdbCatalog(environment, report, clock, bounds, Look(path) if old else None)


class LmdbCatalog:
    def __init__(
        self,
        environment: Environment,
        report: Report,
        clock: Clock,
        bounds: CatalogBounds,
        look: Look | None,
    ) -> None:
        """Take over an environment; nothing else in this process may have it open."""
        self._look, self._is_verified = look, look is None
        self._damage: Fault | None = None  # For good: it is not mended here.
        self._path, self._map_bytes = environment.path, environment.map_bytes
        self._environment: Environment | None = environment
        self._report, self._clock, self._bounds = report, clock, bounds
        self._check_at_ns = 0
        self._waiting: deque[_Batch] = deque()
        self._waiting_items = 0
        self._stopping = False
        self._woken = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="catalog", daemon=True)
        self._thread.start()

    @property
    def map_bytes(self) -> int:
        """Return the size of the file, which holds for the life of the catalog."""
        return self._map_bytes

    def commit(self, batch: int, changes: Changes) -> None:
        with self._woken:
            problem = self._problem(changes)
            if not problem:
                self._waiting.append((batch, changes))
                self._waiting_items += changes.items
                self._woken.notify()
        if problem:
            self._report(Committed((batch,), Fault(FaultKind.CANCELLED, problem)))

    def close(self) -> bool:
        with self._woken:
            self._stopping = True
            refused = tuple(batch for batch, _ in self._waiting)
            self._waiting.clear()
            self._woken.notify()
            look = self._look
        if look is not None:
            look.give_up()
        if refused:
            fault = Fault(FaultKind.CANCELLED, "the catalog is closed")
            self._report(Committed(refused, fault))
        self._thread.join(self._bounds.close_s)
        return not self._thread.is_alive()

    # ---- inside ----

    def _problem(self, changes: Changes) -> str:
        bounds, count = self._bounds, len(self._waiting)
        if self._stopping:
            return "the catalog is closed"
        if count >= bounds.batches_max:
            return f"{count} batches wait for the catalog already"
        if count and self._waiting_items + changes.items > bounds.items_max:
            return f"{self._waiting_items} items wait for the catalog already"
        return ""

    def _work(self) -> None:
        self._unsound()
        while True:
            self._check_readers()
            group = self._take()
            if group:
                self._commit(group)
            elif self._stopping:
                break
        self._abandon()

    def _unsound(self) -> Fault | None:
        """Return why nothing may be written; what says nothing of the file is tried again."""
        if self._is_verified or self._damage is not None:
            return self._damage
        with self._woken:
            if self._stopping:
                return Fault(FaultKind.CANCELLED, "the catalog is closed")
            look = self._look = self._look or Look(self._path)
        fault = look.verdict()
        with self._woken:
            self._look = None
        self._is_verified = fault is None
        if fault is not None and fault.kind == FaultKind.FORMAT:
            self._damage = fault
            self._mark()
        return fault

    def _mark(self) -> None:
        """Have the next daemon begin anew, instead of serving what it can never write again."""
        with suppress(OSError):  # Then that one finds it out as this one did.
            (self._path / DAMAGED_NAME).touch()

    def _take(self) -> list[_Batch]:
        """Return the batches to commit together; none when it is time for something else."""
        group: list[_Batch] = []
        items = 0
        with self._woken:
            wait_s = max(0.0, (self._check_at_ns - self._clock.now_ns()) / NS_PER_S)
            self._woken.wait_for(lambda: self._waiting or self._stopping, wait_s)
            while self._waiting:
                items += self._waiting[0][1].items
                if group and items > self._bounds.group_items_max:
                    break
                group.append(self._waiting.popleft())
                self._waiting_items -= group[-1][1].items
        return group

    def _commit(self, group: list[_Batch]) -> None:
        batches = tuple(batch for batch, _ in group)
        fault = self._try([changes for _, changes in group])
        if fault is None or fault.kind != FaultKind.NO_SPACE:
            self._report(Committed(batches, fault))
            return
        for batch, changes in group:  # Drops go through, and what is small may.
            alone = fault if len(group) == 1 else self._try([changes])
            self._report(Committed((batch,), self._in_parts(changes, alone)))

    def _in_parts(self, changes: Changes, fault: Fault | None) -> Fault | None:
        """Commit drops by halves when the pages they change did not fit at once; else do nothing.

        What one part frees is there for the next. Of drops a part is as true as the whole.
        """
        count = len(changes.dropped_rows)
        if fault is None or fault.kind != FaultKind.NO_SPACE or puts(changes) or count < 2:
            return fault
        first = Changes(dropped_rows=changes.dropped_rows[: count // 2])
        rest = replace(changes, dropped_rows=changes.dropped_rows[count // 2 :])
        for part in (first, rest):
            fault = self._in_parts(part, self._try([part]))
            if fault is not None:
                return fault
        return None

    def _try(self, group: list[Changes]) -> Fault | None:
        if (fault := self._unsound()) is not None:
            return fault
        try:
            if self._environment is None:
                self._environment = Environment(self._path, self._map_bytes)
            self._environment.apply(group)
        except _FAILURES as error:
            if not isinstance(error, FULL):
                self._abandon()  # After a failed sync LMDB goes on only with a fresh start.
            return fault_of(error, self._path)
        return None

    def _check_readers(self) -> None:
        now_ns = self._clock.now_ns()
        if self._environment is None or now_ns < self._check_at_ns:
            return
        self._check_at_ns = now_ns + int(self._bounds.reader_check_s * NS_PER_S)
        try:
            self._environment.check_readers()
        except lmdb.Error:
            self._abandon()

    def _abandon(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None

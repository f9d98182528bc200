"""One thread for each data directory that makes every change under it, in the order asked for.

A bound on what waits keeps a slow disk from holding memory; beyond it the answer is CANCELLED.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvd.disk.canary import try_canary
from kvd.disk.carrier import Carrier
from kvd.disk.contract import (
    DiskBounds,
    DiskReport,
    Names,
    Places,
    Probed,
    Report,
    SegmentDone,
    SegmentPlace,
    StripsWritten,
)
from kvd.disk.directories import DataDirectory
from kvd.disk.files import Files, fault_of
from kvd.disk.pieces import Pieces, Roots, Run, Verdicts
from kvd.disk.segments import Opened, SegmentFiles
from kvd.errors import Fault, FaultKind

_RUN_BYTES_MAX = 4 << 20  # One call to the kernel: long enough for any disk's full speed.


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """The part of a batch that is for one directory; `items` are places in the whole batch."""

    batch: int
    places: Places
    names: Names
    items: list[int]


@dataclass(frozen=True, slots=True)
class _Task:
    size_bytes: int
    run: Callable[[], DiskReport]
    refuse: Callable[[Fault], DiskReport]


class Writer:
    def __init__(
        self,
        number: int,
        directory: DataDirectory,
        segments: SegmentFiles,
        means: tuple[Files, Carrier],
        bounds: DiskBounds,
        report: Report,
    ) -> None:
        self._number, self._directory, self._segments = number, directory, segments
        self._files, self._carrier = means
        self._bounds, self._report = bounds, report
        self._waiting: deque[_Task] = deque()
        self._waiting_bytes = 0
        self._stopping = False
        self._woken = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"write-{number}", daemon=True)
        self._thread.start()

    # ---- asked for, from any thread ----

    def make(self, request: int, place: SegmentPlace) -> None:
        self._change(request, lambda: self._segments.make(place))

    def recycle(self, request: int, place: SegmentPlace) -> None:
        self._change(request, lambda: self._segments.recycle(place))

    def drop(self, request: int, segment: int) -> None:
        self._change(request, lambda: self._segments.drop(segment))

    def probe(self, request: int) -> None:
        self._put(
            _Task(
                0,
                lambda: Probed(request, self._number, self._probe()),
                lambda fault: Probed(request, self._number, fault),
            )
        )

    def write(self, part: WriteBatch) -> None:
        def refuse(fault: Fault) -> StripsWritten:
            verdicts = Verdicts(part.items)
            verdicts.fail(part.items, fault)
            return _written(part, verdicts)

        size_bytes = int(part.places.sizes[part.items].sum(dtype=np.int64))
        self._put(_Task(size_bytes, lambda: self._write(part), refuse))

    def close(self) -> None:
        """Answer what waits, and have the thread end behind what it does now."""
        with self._woken:
            self._stopping = True
            refused = list(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            self._woken.notify()
        for task in refused:
            self._report(task.refuse(Fault(FaultKind.CANCELLED, "the disk is closed")))

    def join(self, seconds: float) -> bool:
        """Return whether the thread ended in this time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # ---- inside ----

    def _change(self, request: int, change: Callable[[], Fault | None]) -> None:
        done = _Task(
            0, lambda: SegmentDone(request, change()), lambda fault: SegmentDone(request, fault)
        )
        self._put(done)

    def _put(self, task: _Task) -> None:
        with self._woken:
            problem = self._problem(task)
            if not problem:
                self._waiting.append(task)
                self._waiting_bytes += task.size_bytes
                self._woken.notify()
        if problem:
            self._report(task.refuse(Fault(FaultKind.CANCELLED, problem)))

    def _problem(self, task: _Task) -> str:
        bounds, count = self._bounds, len(self._waiting)
        if self._stopping:
            return "the disk is closed"
        if count >= bounds.write_queue_items_max:
            return f"{count} changes wait for {self._directory.path} already"
        if count and self._waiting_bytes + task.size_bytes > bounds.write_queue_bytes_max:
            return f"{self._waiting_bytes} bytes wait to be written to {self._directory.path}"
        return ""

    def _work(self) -> None:
        while (task := self._take()) is not None:
            self._report(task.run())

    def _take(self) -> _Task | None:
        with self._woken:
            self._woken.wait_for(lambda: self._waiting or self._stopping)
            if not self._waiting:
                return None
            task = self._waiting.popleft()
            self._waiting_bytes -= task.size_bytes
            return task

    def _probe(self) -> Fault | None:
        flags = os.O_DIRECT if self._directory.direct else 0
        return try_canary(self._files, self._directory.path, flags)

    def _write(self, part: WriteBatch) -> StripsWritten:
        verdicts = Verdicts(part.items)
        pieces, roots = Pieces.of(part.places), Roots(part.names, self._carrier)
        fit = []
        for item in part.items:
            if roots.fit(item, pieces.addresses[item], pieces.sizes[item], whole=True):
                fit.append(item)
            else:
                what = f"strip {item} of batch {part.batch} does not fit its root"
                verdicts.fail([item], Fault(FaultKind.CHECKSUM, what))
        runs = list(pieces.runs(fit, _RUN_BYTES_MAX))
        borrowed = self._borrow(runs, verdicts)
        for run in runs:
            if not verdicts.failed(run.items[0]):
                self._write_run(borrowed[run.segment, run.epoch], run, verdicts)
        for place, opened in borrowed.items():
            self._sync(opened, [run for run in runs if (run.segment, run.epoch) == place], verdicts)
            self._segments.give_back(opened)
        return _written(part, verdicts)

    def _borrow(self, runs: list[Run], verdicts: Verdicts) -> dict[tuple[int, int], Opened]:
        borrowed = {}
        for segment, epoch in dict.fromkeys((run.segment, run.epoch) for run in runs):
            opened = self._segments.borrow(segment, epoch)
            match opened:
                case Fault():
                    for run in runs:
                        if (run.segment, run.epoch) == (segment, epoch):
                            verdicts.fail(run.items, opened)
                case Opened():
                    borrowed[segment, epoch] = opened
        return borrowed

    def _write_run(self, opened: Opened, run: Run, verdicts: Verdicts) -> None:
        try:
            self._carrier.write(opened.handle, run.spans, run.offset)
        except OSError as error:
            verdicts.fail(run.items, fault_of(error, opened.path))

    def _sync(self, opened: Opened, runs: list[Run], verdicts: Verdicts) -> None:
        """Sync once; after a failure no write since the last good one can be believed."""
        try:
            self._files.sync(opened.descriptor)
        except OSError as error:
            for run in runs:
                verdicts.fail(run.items, fault_of(error, opened.path))


def _written(part: WriteBatch, verdicts: Verdicts) -> StripsWritten:
    return StripsWritten(part.batch, *verdicts.columns())

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
from kvd.disk.contract import DiskReport, Probed, Report, SegmentDone, SegmentPlace, StripsWritten
from kvd.disk.directories import DataDirectory
from kvd.disk.heads import drop_segment, make_segment, recycle_segment
from kvd.disk.pieces import Verdicts
from kvd.disk.write_batch import Means, WriteBatch, write_batch
from kvd.errors import Fault, FaultKind
from kvd.limits import DiskBounds


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
        means: Means,
        bounds: DiskBounds,
        report: Report,
    ) -> None:
        self._number, self._directory, self._means = number, directory, means
        self._bounds, self._report = bounds, report
        self._waiting: deque[_Task] = deque()
        self._waiting_bytes = 0
        self._stopping = False
        self._woken = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"write-{number}", daemon=True)
        self._thread.start()

    # ---- asked for, from any thread ----

    def make(self, request: int, place: SegmentPlace) -> None:
        files, directory = self._means.files, self._directory
        self._change(request, place.segment, lambda: make_segment(files, directory, place))

    def recycle(self, request: int, place: SegmentPlace) -> None:
        files, directory = self._means.files, self._directory
        self._change(request, place.segment, lambda: recycle_segment(files, directory, place))

    def drop(self, request: int, segment: int) -> None:
        files, directory = self._means.files, self._directory
        self._change(request, segment, lambda: drop_segment(files, directory, segment))

    def probe(self, request: int) -> None:
        files, directory, number = self._means.files, self._directory, self._number
        flags = os.O_DIRECT if directory.direct else 0
        self._put(
            _Task(
                0,
                lambda: Probed(request, number, try_canary(files, directory.path, flags)),
                lambda fault: Probed(request, number, fault),
            )
        )

    def write(self, part: WriteBatch) -> None:
        def refuse(fault: Fault) -> StripsWritten:
            verdicts = Verdicts(part.items)
            verdicts.fail(part.items, fault)
            return StripsWritten(part.batch, *verdicts.columns())

        def run() -> StripsWritten:
            return StripsWritten(part.batch, *write_batch(part, self._means).columns())

        size_bytes = int(part.places.sizes[part.items].sum(dtype=np.int64))
        self._put(_Task(size_bytes, run, refuse))

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

    def _change(self, request: int, segment: int, change: Callable[[], Fault | None]) -> None:
        def run() -> SegmentDone:
            fault = change()
            # Also by whoever opened it a moment ago: its pages may be overwritten from here on.
            self._means.segments.forget(segment)
            return SegmentDone(request, fault)

        self._put(_Task(0, run, lambda fault: SegmentDone(request, fault)))

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

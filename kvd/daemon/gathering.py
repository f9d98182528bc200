"""Disk events on their way to the loop: what comes while the loop is busy is taken in together.

Reads are reported a few megabytes at a time. A loop that has other things to do takes in the pieces
of one batch as one event, so the busier it is, the less each of them costs.
"""

import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from kvd.core.disk_events import DiskEvent, StripsRead
from kvd.daemon.crossing import Crossing


class Gathering:
    """`post` takes events from any thread; `take` is called on the loop's, in their order."""

    def __init__(self, crossing: Crossing, take: Callable[[DiskEvent], None]) -> None:
        self._crossing, self._take = crossing, take
        self._lock = threading.Lock()
        self._waiting: list[DiskEvent] = []

    def post(self, event: DiskEvent) -> None:
        with self._lock:
            self._waiting.append(event)
            first = len(self._waiting) == 1
        if first:
            self._crossing.call(self._take_all)

    def _take_all(self) -> None:
        with self._lock:
            events, self._waiting = self._waiting, []
        for event in joined(events):
            self._take(event)


def joined(events: Iterable[DiskEvent]) -> Iterator[DiskEvent]:
    """Yield the events in order, neighbours that are good reads of one batch as one."""
    run: list[StripsRead] = []
    for event in events:
        good = isinstance(event, StripsRead) and not event.faults and not event.busy
        if run and not (good and event.batch == run[0].batch):
            yield _one(run)
            run = []
        if good:
            run.append(event)
        else:
            yield event
    if run:
        yield _one(run)


def _one(run: list[StripsRead]) -> StripsRead:
    if len(run) == 1:
        return run[0]
    items = np.concatenate([event.items for event in run])
    return StripsRead(run[0].batch, items, np.zeros(len(items), np.uint8), (), busy=False)

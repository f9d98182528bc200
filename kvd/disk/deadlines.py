"""Batches of reads by the time when they must be answered."""

import heapq
from collections.abc import Iterator
from itertools import count

from kvd.disk.read_jobs import ReadBatch

_ANSWERED_KEPT = 64


class Deadlines:
    """Not for several threads at once."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ReadBatch]] = []
        self._order = count()
        self._answered = 0  # Batches that are only still here because their time is not over.

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, batch: ReadBatch) -> None:
        heapq.heappush(self._heap, (batch.deadline_ns, next(self._order), batch))

    def answered(self) -> None:
        """Note that one batch has all its answers; now and then forget such ones."""
        self._answered += 1
        if self._answered > _ANSWERED_KEPT + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].unanswered > 0]
            heapq.heapify(self._heap)
            self._answered = 0

    def passed(self, now_ns: int) -> Iterator[ReadBatch]:
        """Take out the batches whose time is over."""
        while self._heap and self._heap[0][0] <= now_ns:
            yield heapq.heappop(self._heap)[2]

    def next_ns(self) -> int | None:
        """Return the earliest deadline."""
        return self._heap[0][0] if self._heap else None

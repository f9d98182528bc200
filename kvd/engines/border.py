"""The border between kvd and an engine's loop: a fault of kvd becomes a recompute, never a raise.

One of the few places where a broad except is right: the engine must go on whatever broke in kvd.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kvd.client import Arrival, Fetch

_log = logging.getLogger("kvd.engines")
Answer = TypeVar("Answer")


def attempt(action: Callable[[], Answer], otherwise: Answer) -> tuple[Answer, Exception | None]:
    """Return what action returns, or `otherwise` and what it raised."""
    try:
        return action(), None
    except Exception as fault:
        return otherwise, fault


class Border:
    """Counts the faults that were stopped here and logs each kind once."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()

    def call(self, action: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return what action returns, or `otherwise` when kvd fails in it."""
        answer, fault = attempt(action, otherwise)
        if fault is not None:
            self.note(fault)
        del fault  # Its traceback may hold this frame, and a fetch with it.
        return answer

    def note(self, fault: BaseException) -> None:
        """Count a fault and log it when its kind is new."""
        kind = type(fault).__name__
        self.faults[kind] += 1
        if self.faults[kind] == 1:
            _log.warning("kvd failed, the engine recomputes: %s: %s", kind, fault, exc_info=fault)


class GuardedFetch:
    """A fetch behind a border: what fails in it reads as nothing more, nothing good, no bytes."""

    def __init__(self, fetch: Fetch, border: Border) -> None:
        self._fetch = fetch
        self._border = border
        self.counts = fetch.counts

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the fetch's arrivals until it ends or fails."""
        arrivals = self._border.call(lambda: iter(self._fetch.arrivals()), iter(()))
        while (arrival := self._border.call(lambda: next(arrivals, None), None)) is not None:
            yield arrival

    def decode(self, **where: Any) -> int:
        """Decode as the fetch does; 0 good chunks when it fails."""
        return self._border.call(lambda: self._fetch.decode(**where), 0)

    def release(self) -> None:
        """End the fetch."""
        self._border.call(self._fetch.release, None)

    @property
    def delivered_bytes(self) -> int:
        return self._border.call(lambda: self._fetch.delivered_bytes, 0)

    @property
    def class_bytes(self) -> tuple[int, int, int]:
        return self._border.call(lambda: self._fetch.class_bytes, (0, 0, 0))

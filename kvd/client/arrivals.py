"""The log of what has arrived of one fetch: written on the I/O thread, read by any."""

import os
import threading
from collections.abc import Callable, Iterator

from kvd.client.outcomes import Arrival
from kvd.errors import KvdError
from kvd.types import CLASS_COUNT

Listener = Callable[[Arrival | None], None]  # None: nothing more comes.

_LOOK_SECONDS = 1.0


class Arrivals:
    """Arrivals in order, then the end; with an error when it came too early."""

    def __init__(self) -> None:
        self.error: KvdError | None = None
        self.ended = False
        self.layer_ends = [0] * CLASS_COUNT  # All layers before have arrived, if any has.
        self._log: list[Arrival] = []
        self._changed = threading.Condition()
        self._listeners: list[Listener] = []
        self._owner = os.getpid()

    @staticmethod
    def at_once(arrivals: list[Arrival]) -> "Arrivals":
        """Return a log that has ended with everything there."""
        made = Arrivals()
        made._log, made.ended = arrivals, True
        for arrival in arrivals:
            made.layer_ends[arrival.plane_class] = arrival.layer_end
        return made

    def add(self, arrival: Arrival) -> None:
        with self._changed:
            self._log.append(arrival)
            self.layer_ends[arrival.plane_class] = arrival.layer_end
            self._changed.notify_all()
        for listener in self._listeners:
            listener(arrival)

    def end(self, error: KvdError | None = None) -> None:
        """Say that nothing more comes; the first end counts."""
        if self.ended:
            return
        with self._changed:
            self.error, self.ended = error, True
            self._changed.notify_all()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(None)

    def fail(self, error: KvdError) -> None:
        """Say that what has arrived is gone; nothing more comes."""
        self.end(error)
        self.error = self.error or error

    def listen(self, listener: Listener) -> None:
        """Call back with everything so far and to come; on the I/O thread only."""
        for arrival in self._log:
            listener(arrival)
        if self.ended:
            listener(None)
        else:
            self._listeners.append(listener)

    def __iter__(self) -> Iterator[Arrival]:
        """Wait for each arrival; the fetch's deadline bounds it all."""
        place = 0
        while True:
            if os.getpid() != self._owner:
                return  # The thread that would tell is the parent's.
            with self._changed:
                while place == len(self._log) and not self.ended:
                    self._changed.wait(_LOOK_SECONDS)
                fresh = self._log[place:]
            if not fresh:
                return
            place += len(fresh)
            yield from fresh

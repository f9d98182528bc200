"""One link of limited speed for all byte deliveries of a tenant, which take turns on it.

Stands before each delivery's own sink. Sends nothing itself: it says whose turn it is.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from kvd.clock import NS_PER_S
from kvd.daemon.inbox import PieceSink, Place
from kvd.daemon.pace import Pace

CallLater = Callable[[float, Callable[[], None]], object]


class Lane(Protocol):
    """A sink whose turn may come; `wake` has its delivery send if it can."""

    def wake(self) -> None: ...


class SharedPace:
    """Gives turns of one piece, first come first served; who has sent goes behind the others."""

    def __init__(
        self,
        bytes_per_second: int,
        now_ns: Callable[[], int],
        call_later: CallLater,
        behind_bytes_max: int,
    ) -> None:
        self._now_ns, self._call_later = now_ns, call_later
        self._pace = Pace(8 * bytes_per_second, now_ns(), behind_bytes_max)
        self._waiting: deque[Lane] = deque()
        self._turn: Lane | None = None
        self._timed = False

    def sink(self, inner: PieceSink, wake: Callable[[], None]) -> PieceSink:
        """Return a sink that has the room of the inner one, and its turns on this link."""
        return _PacedSink(self, inner, wake)

    def may_send(self, lane: Lane) -> bool:
        """Return whether it is the lane's turn; otherwise it is woken when it is."""
        if self._turn is lane:
            return True
        is_due = self._pace.due_ns(0) <= self._now_ns()
        if is_due and not self._waiting and self._turn is None:
            return True
        if lane not in self._waiting:
            self._waiting.append(lane)
        self._wait()
        return False

    def sent(self, size_bytes: int) -> None:
        self._turn = None
        self._pace.sent(size_bytes, self._now_ns())

    def _wait(self) -> None:
        if not self._timed:
            self._timed = True
            delay_ns = max(0, self._pace.due_ns(0) - self._now_ns())
            self._call_later(delay_ns / NS_PER_S, self._on_time)

    def _on_time(self) -> None:
        self._timed = False
        while self._waiting and self._pace.due_ns(0) <= self._now_ns():
            lane = self._turn = self._waiting.popleft()
            lane.wake()
            self._turn = None  # Also of one that has ended, or has no room of its own.
        if self._waiting:
            self._wait()


class _PacedSink:
    def __init__(self, shared: SharedPace, inner: PieceSink, wake: Callable[[], None]) -> None:
        self._shared, self._inner, self.wake = shared, inner, wake

    def has_room(self) -> bool:
        return self._inner.has_room()

    def has_turn(self) -> bool:
        return self._inner.has_turn() and self._shared.may_send(self)

    def send(self, place: Place, data: memoryview) -> None:
        self._inner.send(place, data)
        self._shared.sent(len(data))

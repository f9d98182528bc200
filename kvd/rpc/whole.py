"""For clients of the first protocol: a promise is told once all of it is there, never in parts.

They know no READY, so they would take pieces that are still being read for wrong bytes.
"""

from collections.abc import Callable
from dataclasses import replace

from kvd.core.effects import WHOLES, FetchDone, LaneColumns, Outcome, Promise, Shortfall
from kvd.core.events import Delivery, Event, FetchWanted
from kvd.daemon.inbox import PieceSink
from kvd.errors import KvdError
from kvd.rpc.waiter import Waiter
from kvd.wire import Feature


def told_in_parts(
    wish: Event, waiter: Waiter, features: int, let_go: Callable[[int], None]
) -> Waiter:
    """Return who is told of a wish, in words that the client's features hold.

    `let_go` releases a lease that nobody was told of.
    """
    match wish:
        case FetchWanted(delivery=Delivery.MAP) if not features & Feature.READY:
            return WholeOnly(waiter, let_go)
    return waiter


class WholeOnly:
    """Stands between the daemon and who asked for a mapped fetch."""

    def __init__(self, waiter: Waiter, let_go: Callable[[int], None]) -> None:
        self._waiter, self._let_go = waiter, let_go
        self._held: Promise | None = None

    @property
    def traceparent(self) -> str:
        return self._waiter.traceparent

    def promise(self, promise: Promise) -> None:
        if promise.ready == WHOLES:
            self._waiter.promise(promise)
        else:
            self._held = promise

    def ready(self, ready: tuple[int, int, int]) -> None:
        if self._held is not None and ready == WHOLES:
            self._tell(self._held)

    def answer(self, outcome: Outcome) -> None:
        held = self._held
        if held is None:
            self._waiter.answer(outcome)
            return
        match outcome:
            case KvdError():
                self._let_go(held.lease)
            case FetchDone(_, counts, reason) if reason != Shortfall.NONE:
                self._tell(_cut(held, counts, reason))
                outcome = FetchDone(outcome.delivered_bytes)
            case _:
                self._tell(held)
        self._waiter.answer(outcome)

    def open_sink(self, wake: Callable[[], None]) -> PieceSink:
        return self._waiter.open_sink(wake)

    def _tell(self, promise: Promise) -> None:
        self._held = None
        self._waiter.promise(replace(promise, ready=WHOLES))


def _cut(promise: Promise, counts: tuple[int, int, int], reason: Shortfall) -> Promise:
    """Return the promise of so many chunks only."""
    lanes = tuple(_cut_lane(lane, counts) for lane in promise.lanes)
    return replace(promise, counts=counts, lanes=lanes, reason=reason)


def _cut_lane(lane: LaneColumns, counts: tuple[int, int, int]) -> LaneColumns:
    def cut(columns: tuple) -> tuple:
        return tuple(column[:count] for column, count in zip(columns, counts, strict=True))

    return LaneColumns(
        lane.generations[: counts[0]], lane.profiles[: counts[0]],
        cut(lane.slabs), cut(lane.offsets), cut(lane.sizes), cut(lane.roots),
    )  # fmt: skip

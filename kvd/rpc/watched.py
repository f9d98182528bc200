"""Stands before whoever asked for something: how long it took, and what a trace is told of it."""

from collections.abc import Callable

from kvd.core.effects import FetchDone, Found, Outcome, Promise, Reserved, Sealed
from kvd.core.events import (
    Event,
    FetchWanted,
    LookupWanted,
    PrefetchWanted,
    ReserveWanted,
    SealWanted,
)
from kvd.daemon.inbox import Inbox, PieceSink
from kvd.errors import KvdError
from kvd.limits import DIGEST_BYTES
from kvd.observe.traces import Attributes, Span
from kvd.rpc.waiter import Waiter

DIGEST_DIGITS = 8  # Of a digest in a trace: enough to compare, of no use to anybody else.
_TRACED = (FetchWanted, LookupWanted, PrefetchWanted, ReserveWanted, SealWanted)


class Watched:
    def __init__(self, wish: Event, waiter: Waiter, inbox: Inbox, tenant: str) -> None:
        self._waiter, self._inbox = waiter, inbox
        self._call = type(wish).__name__.removesuffix("Wanted").lower()
        self._asked_ns = inbox.now_ns()
        self._span: Span | None = None
        traces = inbox.observer.traces
        if traces is not None and isinstance(wish, _TRACED):
            about = {"tenant": tenant, "session": wish.session, **_asked(wish)}
            self._span = traces.begin(self._call, about, waiter.traceparent)

    @property
    def traceparent(self) -> str:
        return self._waiter.traceparent

    def promise(self, promise: Promise) -> None:
        if self._span is not None:
            self._span.event("promise", _promised(promise))
        self._waiter.promise(promise)

    def ready(self, ready: tuple[int, int, int]) -> None:
        if self._span is not None:
            self._span.event("ready", _by_class("pieces", ready))
        self._waiter.ready(ready)

    def open_sink(self, wake: Callable[[], None]) -> PieceSink:
        return self._waiter.open_sink(wake)

    def answer(self, outcome: Outcome) -> None:
        error = outcome.kind.name.lower() if isinstance(outcome, KvdError) else ""
        duration_ns = self._inbox.now_ns() - self._asked_ns
        self._inbox.observer.answered(self._call, error or "ok", duration_ns)
        if self._span is not None:
            self._span.event("done", _answered(outcome))
            self._span.end(_answered(outcome), error)
        self._waiter.answer(outcome)


def _asked(wish: Event) -> Attributes:
    """Return what a wish is about: how much of what, and the beginning of a digest."""
    match wish:
        case SealWanted(sizes=sizes):
            return {"chunks": len(sizes), "bytes": int(sizes.sum())}
        case ReserveWanted(chain=chain, sizes=sizes, durable=durable):
            return {**_chain(chain), "bytes": int(sizes.sum()), "durable": durable}
        case LookupWanted(lanes=lanes, chain=chain, lease=lease):
            return {**_chain(chain), "lanes": len(lanes), "lease": lease}
        case FetchWanted(lanes=lanes, chain=chain, class_count=classes, delivery=delivery):
            told = {"lanes": len(lanes), "classes": classes, "delivery": delivery.name.lower()}
            return {**_chain(chain), **told}
        case PrefetchWanted(lanes=lanes, chain=chain, class_count=classes):
            return {**_chain(chain), "lanes": len(lanes), "classes": classes}
    return {}


def _chain(chain: bytes) -> Attributes:
    return {"chunks": len(chain) // DIGEST_BYTES, "first": chain.hex()[:DIGEST_DIGITS]}


def _promised(promise: Promise) -> Attributes:
    sizes = (int(sizes.sum()) for lane in promise.lanes for sizes in lane.sizes)
    return {
        **_by_class("chunks", promise.counts), "bytes": sum(sizes),
        "reason": promise.reason.name.lower(), **_by_class("pieces", promise.ready),
    }  # fmt: skip


def _answered(outcome: Outcome) -> Attributes:
    match outcome:
        case Found(counts):
            return _by_class("chunks", counts)
        case FetchDone(delivered_bytes, _, reason):
            return {"delivered_bytes": delivered_bytes, "reason": reason.name.lower()}
        case Reserved(states=states, reason=reason):
            return {"answered": len(states), "reason": reason.name.lower()}
        case Sealed(states, durable):
            return {"answered": len(states), "durable": durable}
        case KvdError(kind=kind):
            return {"error": kind.name.lower()}
    return {}


def _by_class(name: str, numbers: tuple[int, int, int]) -> Attributes:
    anchor, residual, exact = numbers
    return {f"{name}.anchor": anchor, f"{name}.residual": residual, f"{name}.exact": exact}

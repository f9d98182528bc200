"""Who asked for something, whichever door he came by."""

from collections.abc import Callable
from typing import Protocol

from kvd.core.effects import Outcome, Promise
from kvd.daemon.inbox import PieceSink


class Waiter(Protocol):
    """A request on the stream, or a gRPC call; `traceparent`: of its caller's span, if told."""

    @property
    def traceparent(self) -> str: ...

    def answer(self, outcome: Outcome) -> None: ...

    def promise(self, promise: Promise) -> None: ...

    def ready(self, ready: tuple[int, int, int]) -> None: ...

    def open_sink(self, wake: Callable[[], None]) -> PieceSink: ...

"""The daemon's link to whoever operates it: one for all calls, as wishes have numbers of their own.

Has no slabs, no control page and no stream; nothing but answers comes by it.
"""

import asyncio
from collections.abc import Callable

from kvd.core.effects import Outcome, Promise
from kvd.daemon.inbox import Notice, PieceSink
from kvd.errors import ErrorKind, KvdError


class OperatorLink:
    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self.has_ended = False

    def expect(self, request: int) -> asyncio.Future[Outcome]:
        """Return what the answer will be put into; called before the wish is posted."""
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[request] = answered
        return answered

    def answer(self, request: int, outcome: Outcome) -> None:
        answered = self._waiting.pop(request, None)
        if answered is not None and not answered.done():  # Its call may have been cancelled.
            answered.set_result(outcome)

    def is_idle(self) -> bool:
        return not self._waiting

    def close(self, error: KvdError) -> None:
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_result(error)

    def end(self) -> None:
        self.has_ended = True
        self.close(KvdError(ErrorKind.UNAVAILABLE, "the daemon has stopped"))

    def give_slab(
        self, slab: int, size_bytes: int, find: Callable[[], int], *, writable: bool
    ) -> None:
        raise AssertionError("an operator has no slabs")

    def notify(self, notice: Notice) -> None:
        raise AssertionError(f"an operator is told of nothing: {notice}")

    def promise(self, request: int, promise: Promise) -> None:
        raise AssertionError("an operator fetches nothing")

    def open_sink(self, request: int, wake: Callable[[], None]) -> PieceSink:
        raise AssertionError("an operator fetches nothing")

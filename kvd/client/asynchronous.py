"""The same verbs as coroutines, from any event loop. Heavy work runs in that loop's executor."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from kvd.client import questions
from kvd.client.arrays import Tensors
from kvd.client.asking import Question
from kvd.client.client import LANE_WHOLE, Client
from kvd.client.fetch import Fetch
from kvd.client.messages import Counts
from kvd.client.opening import Opening, Outcome, fetch_of
from kvd.client.outcomes import Arrival, Cleared, Delivery, Found, Reason, Status, Stored
from kvd.client.scope import Scope, Wish
from kvd.client.space import FetchHow, Space
from kvd.codec import PROFILE_DEFAULT, CodecProfile
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace
from kvd.types import CLASS_COUNT, Lane

T = TypeVar("T")


def _hand_over(loop: asyncio.AbstractEventLoop, take: Callable[[T], None], value: T) -> None:
    """Have a caller's loop take a value from the I/O thread, if it still runs."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(take, value)


async def _work(act: Callable[[], T]) -> T:
    """Run what touches the caller's memory on a thread; cancelled, wait until it does no more."""
    given_up = False

    def begin() -> T:
        if given_up:  # Cancelled while it waited for a thread.
            raise KvdError(ErrorKind.LATE, "given up")
        return act()

    job = asyncio.ensure_future(asyncio.to_thread(begin))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        given_up = True
        while not job.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({job})
        job.exception()  # Nobody asks for it any more.
        raise


class AsyncFetch:
    """`kvd.client.Fetch` for event loops: see there."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    @property
    def counts(self) -> Counts:
        return self._fetch.counts

    @property
    def reason(self) -> Reason:
        return self._fetch.reason

    @property
    def error(self) -> KvdError | None:
        return self._fetch.error

    @property
    def delivered_bytes(self) -> int:
        return self._fetch.delivered_bytes

    async def arrivals(self) -> AsyncIterator[Arrival]:
        """Iterate over arrivals as they come; ends early, with `error` set, on failure."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Arrival | None] = asyncio.Queue()

        self._fetch.listen(functools.partial(_hand_over, loop, queue.put_nowait))
        while (arrival := await queue.get()) is not None:
            yield arrival

    async def decode(
        self,
        layers: tuple[int, int],
        planes: int,
        targets: Tensors,
        token_begin: int = 0,
        chunks: tuple[int, int] | None = None,
    ) -> int:
        """As `Fetch.decode`. Cancelled, it ends once nothing is written to `targets` any more."""
        decode = self._fetch.decode
        return await _work(lambda: decode(layers, planes, targets, token_begin, chunks))

    def release(self) -> None:
        self._fetch.release()

    async def __aenter__(self) -> "AsyncFetch":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.release()


class AsyncSpace:
    """`kvd.client.Space` for event loops: see there."""

    def __init__(self, space: Space, scope: Scope) -> None:
        self._space, self._scope = space, scope

    def chain(self, tokens: Any, extras: bytes = b"") -> bytes:
        return self._space.chain(tokens, extras)

    async def put(
        self,
        chain: bytes,
        tensors: Tensors,
        first: int = 0,
        durability: str = "memory",
        deadline_s: float | None = None,
    ) -> Stored:
        """As `Space.put`. Cancelled, it ends once `tensors` are not read any more, by the deadline:

        whoever gave them up may use their memory for something else, which must not be stored.
        """
        put = self._space.put
        return await _work(lambda: put(chain, tensors, first, durability, deadline_s))

    async def lookup(
        self,
        chain: bytes,
        *,
        lease: bool = False,
        lanes: Sequence[Lane] | None = None,
        deadline_s: float | None = None,
    ) -> Found:
        question = questions.lookup(self._scope, chain, lanes, deadline_s, lease=lease)
        return questions.found_of(self._scope, await self._ask(question))

    async def prefetch(
        self,
        chain: bytes,
        class_count: int = CLASS_COUNT,
        *,
        lanes: Sequence[Lane] | None = None,
        deadline_s: float | None = None,
    ) -> Found:
        question = questions.prefetch(self._scope, chain, class_count, lanes, deadline_s)
        return questions.found_of(self._scope, await self._ask(question))

    async def clear(self, deadline_s: float | None = None) -> Cleared:
        question = questions.clear(self._scope, deadline_s)
        return questions.cleared_of(self._scope, await self._ask(question))

    async def release(self, lease: int) -> None:
        self._space.release(lease)

    async def fetch(
        self,
        chain: bytes,
        class_count: int = CLASS_COUNT,
        delivery: Delivery = Delivery.MAP,
        **how: Unpack[FetchHow],
    ) -> AsyncFetch:
        wish = self._space.wish(chain, class_count, delivery, how)
        fetch = fetch_of(self._scope, await self._open(wish))
        if how.get("pinned") and fetch.hold is not None:
            try:
                await asyncio.to_thread(fetch.hold.pin)
            except asyncio.CancelledError:
                fetch.release()
                raise
        return AsyncFetch(fetch)

    async def _ask(self, question: Question[T]) -> T | KvdError:
        """Ask and wait; an answer to somebody who was cancelled meanwhile is unwanted."""
        unwanted = question.unwanted
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T | KvdError] = loop.create_future()

        def settle(answer: T | KvdError) -> None:
            if not future.done():
                future.set_result(answer)
            elif unwanted is not None:
                unwanted(answer)

        self._scope.link.thread().post(question.ask, functools.partial(_hand_over, loop, settle))
        try:
            return await future
        except asyncio.CancelledError:
            if unwanted is not None and future.done() and not future.cancelled():
                unwanted(future.result())  # It came just before.
            raise

    async def _open(self, wish: Wish) -> Outcome:
        thread, loop = self._scope.link.thread(), asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        opening = Opening(self._scope, wish, functools.partial(_hand_over, loop, settle))
        thread.post(opening.begin)
        try:
            return await future
        except asyncio.CancelledError:
            thread.post(opening.orphan)  # Whether or not its outcome came just before.
            raise


class AsyncClient:
    """`kvd.client.Client` for event loops: see there."""

    def __init__(self, directory: str | Path, name: str = "", deadline_s: float = 10.0) -> None:
        self._client = Client(directory, name, deadline_s)

    def keyspace(
        self, keyspace: Keyspace, lane: Lane = LANE_WHOLE, profile: CodecProfile = PROFILE_DEFAULT
    ) -> AsyncSpace:
        space = self._client.keyspace(keyspace, lane, profile)
        return AsyncSpace(space, space.scope)

    async def wait_connected(self, timeout_s: float) -> bool:
        return await asyncio.to_thread(self._client.wait_connected, timeout_s)

    def status(self) -> Status:
        return self._client.status()

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

"""One gRPC call as somebody who asked: what it is told, in order, and how errors are said."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

import grpc

from kvd.core.effects import Outcome, Promise
from kvd.daemon.inbox import PieceSink, Place
from kvd.errors import KIND_METADATA, ErrorKind, KvdError
from kvd.rpc.replies import promise_of, ready_of
from kvd.v1 import kvd_pb2 as pb

RETRY_METADATA = "kvd-retry-after-ms"
PIECES_WAITING_MAX = 2  # One on its way, and one so that the way is never empty.

STATUS = {
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.DENIED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.INCOMPATIBLE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.LATE: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.LOST: grpc.StatusCode.ABORTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.CORRUPT: grpc.StatusCode.DATA_LOSS,
}


async def abort(context: grpc.aio.ServicerContext, error: KvdError) -> NoReturn:
    """End the call with the status of an error; its kind, and when to try again, are metadata."""
    trailing = ((KIND_METADATA, error.kind.name),)
    if error.retry_after_ms:
        trailing += ((RETRY_METADATA, str(error.retry_after_ms)),)
    await context.abort(STATUS[error.kind], error.message, trailing)
    raise AssertionError("abort returned")


@contextlib.asynccontextmanager
async def answering(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """Have a KvdError that is raised be the call's answer."""
    try:
        yield
    except KvdError as error:
        await abort(context, error)


class Call:
    """Collects what a call is told; for a fetch, it is also the sink of its pieces."""

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent
        self._told: deque[Outcome | pb.FetchReply] = deque()
        self._pieces_waiting = 0
        self._arrived = asyncio.Event()
        self._wake: Callable[[], None] = _nothing

    def answer(self, outcome: Outcome) -> None:
        self._tell(outcome)

    def promise(self, promise: Promise) -> None:
        self._tell(pb.FetchReply(promise=promise_of(promise)))

    def ready(self, ready: tuple[int, int, int]) -> None:
        self._tell(pb.FetchReply(ready=ready_of(ready)))

    def open_sink(self, wake: Callable[[], None]) -> PieceSink:
        self._wake = wake
        return self

    def has_room(self) -> bool:
        return self._pieces_waiting < PIECES_WAITING_MAX

    def has_turn(self) -> bool:
        return True

    def send(self, place: Place, data: memoryview) -> None:
        self._pieces_waiting += 1
        piece = pb.Piece(
            plane_class=place.plane_class,
            lane=place.lane,
            chunk=place.chunk,
            offset=place.offset,
            data=bytes(data),
        )
        self._tell(pb.FetchReply(piece=piece))

    async def next(self) -> Outcome | pb.FetchReply:
        """Return what was told next, waiting for it."""
        while not self._told:
            self._arrived.clear()
            await self._arrived.wait()
        return self._told.popleft()

    def taken(self, reply: pb.FetchReply) -> None:
        """Take note that the transport accepted a reply: there may be room for a piece."""
        if reply.HasField("piece"):
            self._pieces_waiting -= 1
            self._wake()

    def _tell(self, told: Outcome | pb.FetchReply) -> None:
        self._told.append(told)
        self._arrived.set()


def _nothing() -> None:
    pass

"""A session without sockets of its own: the two ends that it has instead, for one Attach call.

There is no process to watch and no memory in common: what would need a slab is refused by name.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable

from kvd.core.events import Delivery, Event, FetchWanted, ReserveWanted
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.wishes import invalid
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

NOTICES_WAITING_MAX = 1024  # As many as a session has leases; a caller that reads none has hung.


def refuse_slabs(wish: Event) -> None:
    """Raise INVALID for a wish that ends in memory which this session cannot map."""
    match wish:
        case FetchWanted(delivery=Delivery.MAP):
            raise invalid(
                "delivery is 0 (MAP), which needs a session of the slab channel; an attached one "
                "fetches with 1 (BYTES)"
            )
        case ReserveWanted():
            raise invalid(
                "Reserve needs a session of the slab channel: its chunks are filled in mapped "
                "memory, which an attached session has not"
            )


class AttachStream:
    """In place of a message stream: notices for the call, and what ends it."""

    def __init__(self) -> None:
        self._notices: deque[pb.Notice] = deque()
        self._end: KvdError | None = None
        self._arrived = asyncio.Event()

    def send(self, kind: FrameKind, number: int, body: bytes) -> None:
        assert kind == FrameKind.NOTICE, kind
        if len(self._notices) >= NOTICES_WAITING_MAX:
            raise BlockingIOError(errno.EAGAIN, f"{NOTICES_WAITING_MAX} notices were not read")
        self._notices.append(pb.Notice.FromString(body))
        self._arrived.set()

    def refuse(self, number: int, error: KvdError) -> None:
        self._finish(error)

    def is_flushed(self) -> bool:
        return not self._notices

    def abort(self) -> None:
        self._finish(KvdError(ErrorKind.LOST, "the session ended"))

    async def next(self) -> pb.Notice | KvdError:
        """Return the next notice, waiting for it; behind the last one, why there is no other."""
        while not self._notices:
            if self._end is not None:
                return self._end
            self._arrived.clear()
            await self._arrived.wait()
        return self._notices.popleft()

    def _finish(self, error: KvdError) -> None:
        self._end = self._end or error
        self._arrived.set()


class NoSlabs:
    """In place of a slab channel: gives nothing, and ends the session when it is refused."""

    def __init__(self) -> None:
        self.on_closed: Callable[[], None] = _nothing

    def send(self, message: pb.ToClient, descriptor: int = -1) -> None:
        raise OSError(errno.EOPNOTSUPP, "an attached session has no slab channel")

    def show(self, message: pb.ToClient, find: Callable[[], int]) -> None:
        self.send(message)

    def refuse(self, error: KvdError) -> None:
        self.on_closed()

    def is_flushed(self) -> bool:
        return True

    def close(self) -> None:
        pass


def _nothing() -> None:
    pass

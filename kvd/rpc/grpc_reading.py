"""The one message of a gRPC call, read once it is known whose call it is.

What the library would read by itself, it would hold for anybody, as large as messages may be.
"""

import asyncio
from collections import defaultdict

import grpc

from kvd.errors import ErrorKind, KvdError
from kvd.rpc.wishes import invalid

READING_MAX = 16  # Messages of one tenant on their way at a time, the others wait for their turn.
READING_SECONDS = 30.0  # For one to arrive, its turn included.


class Reading:
    """Of one door. A message may hold `frame_bytes_max` of memory until it is whole."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(READING_MAX)
        )

    async def data(self, tenant: str, context: grpc.aio.ServicerContext) -> bytes:
        """Return what the call sent; raise KvdError when that is nothing, or comes late."""
        try:
            async with asyncio.timeout(READING_SECONDS), self._turns[tenant]:
                data = await context.read()
        except TimeoutError:
            what = f"the request was not whole within {READING_SECONDS:g} s"
            raise KvdError(ErrorKind.LATE, what) from None
        if not isinstance(data, bytes):
            raise invalid("the call ended without a message")
        return data

"""The transport of the message stream. Knows bytes, and leaves frames to its intake."""

import asyncio
from collections.abc import Callable

from kvd.client.intake import FrameCallback, Intake
from kvd.clock import MonotonicClock
from kvd.errors import ErrorKind, KvdError
from kvd.wire import FRAME_HEAD, FrameKind

_CLOCK = MonotonicClock()

LostCallback = Callable[[KvdError], None]


class FrameStream(asyncio.BufferedProtocol):
    """The client's end of the stream. A frame that cannot be ends the connection."""

    def __init__(self, on_frame: FrameCallback, on_lost: LostCallback) -> None:
        self.intake = Intake(on_frame)
        self.heard_ns = _CLOCK.now_ns()
        self.transport: asyncio.Transport | None = None
        self._on_lost = on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"the message stream ended ({exc})" if exc else "the daemon closed the message stream"
        self._on_lost(KvdError(ErrorKind.LOST, why))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.intake.space()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_ns = _CLOCK.now_ns()
        try:
            self.intake.filled(nbytes)
        except KvdError as error:
            self.close()
            self._on_lost(error)

    def send(self, kind: FrameKind, request: int, body: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(FRAME_HEAD.pack(len(body), request, kind, 0, 0) + body)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

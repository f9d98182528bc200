"""The transport of the message stream. Knows bytes, and leaves frames to its intake.

Bytes come in on the I/O thread. They go out from any thread, straight to the socket while it
takes them: waking the I/O thread for it would cost about as much as the daemon's answer.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from kvd.client.intake import FrameCallback, Intake
from kvd.clock import MonotonicClock
from kvd.errors import ErrorKind, KvdError
from kvd.wire import FRAME_HEAD, FrameKind

_CLOCK = MonotonicClock()

LostCallback = Callable[[KvdError], None]


class FrameStream:
    """The client's end of the stream, an asyncio.BufferedProtocol by its methods.

    A frame that cannot be ends the connection.
    """

    def __init__(self, on_frame: FrameCallback, on_lost: LostCallback) -> None:
        self.intake = Intake(on_frame)
        self.heard_ns = _CLOCK.now_ns()
        self.transport: asyncio.Transport | None = None
        self.unsent_bytes = 0  # What the socket did not take at once.
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._queue: deque[bytes] = deque()
        # A descriptor of its own: the transport's may be closed, and its number be taken by
        # something else, between any two steps of another thread.
        self._out: socket.socket | None = None

    async def connect(self, connection: socket.socket) -> None:
        """Take over a connected socket."""
        self._out = connection.dup()
        await self._loop.create_unix_connection(lambda: self, sock=connection)  # type: ignore[arg-type,return-value]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"the message stream ended ({exc})" if exc else "the daemon closed the message stream"
        self.close()
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

    def eof_received(self) -> bool:
        return False  # Half a connection is none.

    def pause_writing(self) -> None:
        pass  # Requests are bounded by what is unsent.

    def resume_writing(self) -> None:
        pass

    def send(self, kind: FrameKind, request: int, body: bytes) -> None:
        """Send a frame behind all before it; from any thread. Nothing happens on a lost stream."""
        data = FRAME_HEAD.pack(len(body), request, kind, 0, 0) + body
        with self._lock:
            if self._out is None:
                return
            if not self._queue and not self._pending():
                with contextlib.suppress(OSError):  # Full; or lost, which the reading side tells.
                    data = data[self._out.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            if not data:
                return
            self._queue.append(data)
            self.unsent_bytes += len(data)
        self._loop.call_soon_threadsafe(self._flush)

    def close(self) -> None:
        with self._lock:
            if self._out is not None:
                self._out.close()
                self._out = None
            self._queue.clear()
        if self.transport is not None:
            self.transport.abort()

    def after_fork(self) -> None:
        """In the child: close the parent's connection without a word."""
        if self._out is not None:
            os.close(self._out.detach())
            self._out = None

    def _pending(self) -> bool:
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def _flush(self) -> None:
        """Leave to the transport what the socket did not take at once."""
        with self._lock:
            while self._queue and self.transport is not None:
                data = self._queue.popleft()
                self.transport.write(data)
                self.unsent_bytes -= len(data)

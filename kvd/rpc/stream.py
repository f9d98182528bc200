"""The transport of one message stream: bytes in, frames out, and never more unsent than a bound.

Knows nothing of what frames mean. A client that does not read is not read from either.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from kvd.errors import KvdError
from kvd.limits import KIB, MIB
from kvd.rpc.frames import FrameBuffer, FrameError, pack_frame
from kvd.rpc.replies import error_of
from kvd.rpc.wishes import invalid
from kvd.wire import FrameKind

UNBOUND_FRAME_BYTES_MAX = 1 * KIB  # Before anybody is known to be there.
# Unsent bytes at which pieces wait and requests are not read; the socket holds 0.2 MiB more.
UNSENT_BYTES_MAX = 1 * MIB
LINGER_SECONDS = 1.0  # For the last frame of a stream that is closed.
FRAMES_AT_ONCE = 16  # Of one client, before others have their turn of the loop.


class Reader(Protocol):
    """What the frames of a stream are for."""

    def on_frame(self, kind: FrameKind, number: int, body: bytes) -> None:
        """Take a frame; raise FrameError when nothing behind it can be understood."""
        ...

    def on_room(self) -> None: ...

    def on_closed(self) -> None: ...


class MessageStream:
    """A protocol of asyncio's, of the kind that gives buffers; uvloop asks for no base class."""

    def __init__(
        self, make_reader: "Callable[[MessageStream], Reader]", contain: Callable[..., None]
    ) -> None:
        self.is_paused = False
        self._has_more = False  # Frames are there that had no turn yet.
        self._contain = contain
        self.frames = FrameBuffer(UNBOUND_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._reader = make_reader(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        self.frames.filled(nbytes)
        self._contain(self.abort, self._take_frames)

    def eof_received(self) -> bool:
        return False  # Half a connection is none.

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._reader.on_closed()

    def pause_writing(self) -> None:
        self.is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._contain(self.abort, self._reader.on_room)
        if not self._has_more:
            self._contain(self.abort, self._go_on)

    def send(self, kind: FrameKind, number: int, body: bytes) -> None:
        self.write(pack_frame(kind, number, body))

    def write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def is_flushed(self) -> bool:
        return self._transport is None or not self._transport.get_write_buffer_size()

    def refuse(self, number: int, error: KvdError) -> None:
        """Send an error and close behind it."""
        self.send(FrameKind.ERROR, number, error_of(error).SerializeToString())
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _take_frames(self) -> None:
        """Take in a turn's worth; while more are there, nothing is read and the loop goes round."""
        if self._has_more:
            return  # Their turn comes by itself.
        try:
            for _ in range(FRAMES_AT_ONCE):
                if self.is_paused or self._transport is None or self._transport.is_closing():
                    return
                if (frame := self.frames.take()) is None:
                    return
                self._reader.on_frame(*frame)
        except FrameError as error:
            self.refuse(error.number, invalid(error.message))
            return
        if self._transport is not None:
            self._has_more = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._contain, self.abort, self._go_on)

    def _go_on(self) -> None:
        """Take in what is there; read again, unless some of it has to wait still."""
        self._has_more = False
        self._take_frames()
        if self._transport is not None and not (self.is_paused or self._has_more):
            self._transport.resume_reading()

"""The framed message stream: cuts frames, lands pieces where their fetch wants them.

Owns bytes and frames, knows no message types. Pieces go from the socket into staging memory
directly, but for what came along with the frame's head. Everything here runs on the I/O thread.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from kvd.errors import ErrorKind, KvdError
from kvd.limits import KIB, Limits
from kvd.wire import FRAME_HEAD, PIECE_HEAD, FrameKind

_BUFFER_BYTES = 64 * KIB
_PIECE_START = FRAME_HEAD.size + PIECE_HEAD.size

FrameCallback = Callable[[int, int, bytes], None]  # kind, request id, body
LostCallback = Callable[[KvdError], None]


class Sink(Protocol):
    """Where the pieces of one fetch go."""

    def place(
        self, plane_class: int, lane: int, chunk: int, offset: int, size: int
    ) -> memoryview | None:
        """Return where these bytes of a strip belong, or None when nothing of it is promised."""
        ...

    def landed(self, plane_class: int, chunk: int, offset: int, size: int) -> None: ...


class FrameStream(asyncio.BufferedProtocol):
    """The client's end of the stream. A frame that cannot be ends the connection."""

    def __init__(self, on_frame: FrameCallback, on_lost: LostCallback) -> None:
        self.sinks: dict[int, Sink] = {}
        self.heard_ns = time.monotonic_ns()
        self._on_frame, self._on_lost = on_frame, on_lost
        self._limits = Limits()
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0
        self._rest: memoryview | None = None  # Of a body that goes somewhere else than the buffer.
        self._rest_request = 0
        self._complete: Callable[[], None] | None = None
        self._discarded = memoryview(b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"the message stream ended ({exc})" if exc else "the daemon closed the message stream"
        self._lose(KvdError(ErrorKind.LOST, why))

    @property
    def connected(self) -> bool:
        """Whether a transport has taken over the socket."""
        return self._transport is not None

    @property
    def waiting_bytes(self) -> int:
        """Return what was sent but not taken by the socket yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def send(self, kind: FrameKind, request: int, body: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            head = FRAME_HEAD.pack(len(body), request, kind, 0, 0)
            self._transport.write(head + body)

    def stop(self, request: int) -> None:
        """Write no further byte to the request's sink, not even of a piece half landed."""
        self.sinks.pop(request, None)
        if self._rest is not None and self._rest_request == request:
            self._rest, self._complete = self._discard(len(self._rest)), _nothing

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._rest is not None:
            return self._rest
        if self._begin:
            left = self._end - self._begin
            self._buffer[:left] = bytes(self._buffer[self._begin : self._end])
            self._begin, self._end = 0, left
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_ns = time.monotonic_ns()
        if self._rest is None:
            self._end += nbytes
            self._cut()
            return
        self._rest = self._rest[nbytes:]
        if not self._rest:
            complete, self._rest, self._complete = self._complete, None, None
            assert complete is not None
            complete()

    def eof_received(self) -> bool:
        return False

    def _cut(self) -> None:
        """Take every frame that is complete, and begin the one that is not."""
        while self._rest is None and self._end - self._begin >= FRAME_HEAD.size:
            length, request, kind, _, _ = FRAME_HEAD.unpack_from(self._buffer, self._begin)
            if length > self._limits.frame_bytes_max:
                self._violate(f"a frame of {length} bytes, at most {self._limits.frame_bytes_max}")
                return
            if kind == FrameKind.PIECE:
                taken = self._take_piece(request, length)
            else:
                taken = self._take_message(kind, request, length)
            if not taken:
                return

    def _take_message(self, kind: int, request: int, length: int) -> bool:
        """Hand over one message; return whether the buffer may hold another."""
        begin = self._begin + FRAME_HEAD.size
        if begin + length <= self._end:
            self._begin = begin + length
            self._on_frame(kind, request, bytes(self._buffer[begin : begin + length]))
            return True
        if FRAME_HEAD.size + length <= len(self._buffer):
            return False
        body, self._rest_request = bytearray(length), 0
        self._divert(memoryview(body), begin, lambda: self._on_frame(kind, request, bytes(body)))
        return True

    def _take_piece(self, request: int, length: int) -> bool:
        if self._end - self._begin < _PIECE_START:
            return False
        size = length - PIECE_HEAD.size
        if not 0 < size <= self._limits.piece_bytes_max:
            self._violate(
                f"a piece of {size} bytes, allowed are 1 to {self._limits.piece_bytes_max}"
            )
            return False
        start = self._begin + FRAME_HEAD.size
        plane_class, lane, _, chunk, offset = PIECE_HEAD.unpack_from(self._buffer, start)
        sink, self._rest_request = self.sinks.get(request), request
        if sink is None:  # Of a fetch that was given up: the bytes are in the way, nothing more.
            self._divert(self._discard(size), self._begin + _PIECE_START, _nothing)
            return True
        target = sink.place(plane_class, lane, chunk, offset, size)
        if target is None:
            self._violate(f"a piece of nothing promised: class {plane_class}, chunk {chunk}")
            return False
        landed = sink.landed
        self._divert(
            target, self._begin + _PIECE_START, lambda: landed(plane_class, chunk, offset, size)
        )
        return True

    def _divert(self, target: memoryview, begin: int, complete: Callable[[], None]) -> None:
        """Move what is there of a body to `target`; the socket fills in the rest."""
        here = min(len(target), self._end - begin)
        target[:here] = self._buffer[begin : begin + here]
        self._begin = begin + here
        if here == len(target):
            complete()
        else:
            self._rest, self._complete = target[here:], complete

    def _discard(self, size: int) -> memoryview:
        if len(self._discarded) < size:
            self._discarded = memoryview(bytearray(size))
        return self._discarded[:size]

    def _violate(self, what: str) -> None:
        self._begin = self._end = 0
        self.close()
        self._lose(KvdError(ErrorKind.INCOMPATIBLE, f"the daemon sent {what}"))

    def _lose(self, error: KvdError) -> None:
        lost, self._on_lost = self._on_lost, _ignore
        self.sinks.clear()
        lost(error)


def _nothing() -> None:
    pass


def _ignore(error: KvdError) -> None:
    pass

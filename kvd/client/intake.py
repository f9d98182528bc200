"""Cuts a byte stream into frames, and lets pieces land where their fetch wants them.

Knows frames, no message types and no socket. A piece goes from the socket into staging memory
directly, but for what came along with the frame's head.
"""

from collections.abc import Callable
from typing import Protocol

from kvd.client.messages import garbage
from kvd.limits import KIB, Limits
from kvd.wire import FRAME_HEAD, PIECE_HEAD, FrameKind

_BUFFER_BYTES = 64 * KIB
_PIECE_START = FRAME_HEAD.size + PIECE_HEAD.size

FrameCallback = Callable[[int, int, bytes], None]  # kind, request id, body


class Sink(Protocol):
    """Where the pieces of one fetch go."""

    def place(
        self, plane_class: int, lane: int, chunk: int, offset: int, size: int
    ) -> memoryview | None:
        """Return where these bytes of a strip belong, or None when nothing of it is promised."""
        ...

    def landed(self, plane_class: int, chunk: int, offset: int, size: int) -> None: ...


class Intake:
    """`space` is where the next bytes go, `filled` takes them in and calls back."""

    def __init__(self, on_frame: FrameCallback) -> None:
        self.sinks: dict[int, Sink] = {}
        self._on_frame = on_frame
        self._limits = Limits()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0
        self._rest: memoryview | None = None  # Of a body that goes somewhere else than the buffer.
        self._rest_request = 0
        self._complete: Callable[[], None] = _nothing
        self._discarded = memoryview(b"")

    def space(self) -> memoryview:
        if self._rest is not None:
            return self._rest
        if self._begin:
            left = self._end - self._begin
            self._buffer[:left] = bytes(self._buffer[self._begin : self._end])
            self._begin, self._end = 0, left
        return self._buffer[self._end :]

    def filled(self, size: int) -> None:
        """Take in `size` bytes; raise KvdError for what cannot be a frame."""
        if self._rest is None:
            self._end += size
        else:
            self._rest = self._rest[size:]
            if self._rest:
                return
            complete, self._rest, self._complete = self._complete, None, _nothing
            complete()
        while self._rest is None and self._end - self._begin >= FRAME_HEAD.size:
            if not self._take():
                return

    def stop(self, request: int) -> None:
        """Write no further byte to the request's sink, not even of a piece half landed."""
        self.sinks.pop(request, None)
        if self._rest is not None and self._rest_request == request:
            self._rest, self._complete = self._discard(len(self._rest)), _nothing

    def _take(self) -> bool:
        """Take the next frame, or begin it; return whether the buffer may hold another."""
        length, request, kind, _, _ = FRAME_HEAD.unpack_from(self._buffer, self._begin)
        if length > self._limits.frame_bytes_max:
            raise garbage(f"a frame of {length} bytes, at most {self._limits.frame_bytes_max}")
        if kind == FrameKind.PIECE:
            return self._take_piece(request, length)
        return self._take_message(kind, request, length)

    def _take_message(self, kind: int, request: int, length: int) -> bool:
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
        limit = self._limits.piece_bytes_max
        if not 0 < size <= limit:
            raise garbage(f"a piece of {size} bytes, allowed are 1 to {limit}")
        head, begin = self._begin + FRAME_HEAD.size, self._begin + _PIECE_START
        plane_class, lane, _, chunk, offset = PIECE_HEAD.unpack_from(self._buffer, head)
        sink, self._rest_request = self.sinks.get(request), request
        if sink is None:  # Of a fetch that was given up: the bytes are in the way, nothing more.
            self._divert(self._discard(size), begin, _nothing)
            return True
        target = sink.place(plane_class, lane, chunk, offset, size)
        if target is None:
            raise garbage(f"a piece of nothing promised: class {plane_class}, chunk {chunk}")
        landed = sink.landed
        self._divert(target, begin, lambda: landed(plane_class, chunk, offset, size))
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


def _nothing() -> None:
    pass

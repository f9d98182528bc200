"""Bytes of the message stream <-> frames. Touches no socket and no message type."""

from kvd.limits import KIB
from kvd.wire import FRAME_HEAD, FrameKind

BUFFER_BYTES = 128 * KIB  # Holds a lookup of 2,048 chunks; a larger frame borrows more.

# Kind, request id, body.
Frame = tuple[FrameKind, int, bytes]


class FrameError(Exception):
    """The peer does not speak frames: nothing after this byte can be understood."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number, self.message = number, message


def pack_frame(kind: FrameKind, request: int, body: bytes) -> bytes:
    return FRAME_HEAD.pack(len(body), request, kind, 0, 0) + body


class FrameBuffer:
    """Cuts a stream into frames. Holds at most one incomplete frame and what came behind it."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._data = bytearray(BUFFER_BYTES)
        self._begin = self._end = 0

    def space(self) -> memoryview:
        """Return where the next bytes of the stream go: never empty."""
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._data) > BUFFER_BYTES:
                self._data = bytearray(BUFFER_BYTES)
        elif self._end == len(self._data):
            self._make_room()
        return memoryview(self._data)[self._end :]

    def filled(self, size_bytes: int) -> None:
        self._end += size_bytes
        assert self._end <= len(self._data)

    def take(self) -> Frame | None:
        """Return the next whole frame, or None; raise FrameError for what cannot be one."""
        if self._end - self._begin < FRAME_HEAD.size:
            return None
        length, request, kind, pad, pad_too = FRAME_HEAD.unpack_from(self._data, self._begin)
        if length > self.frame_bytes_max:
            raise FrameError(
                request,
                f"a frame of {length} bytes passes the limit frame_bytes_max of "
                f"{self.frame_bytes_max}",
            )
        if pad or pad_too:
            raise FrameError(request, f"the pads of a frame's head are {pad} and {pad_too}, not 0")
        try:
            known = FrameKind(kind)
        except ValueError:
            raise FrameError(request, f"frame kind {kind} is not known") from None
        begin = self._begin + FRAME_HEAD.size
        if self._end < begin + length:
            return None
        self._begin = begin + length
        with memoryview(self._data) as view:
            return known, request, bytes(view[begin : begin + length])

    def _make_room(self) -> None:
        """Move what is left to the front; grow only as bytes really come, not as announced."""
        left = self._data[self._begin : self._end]
        if len(left) > len(self._data) // 2:
            self._data = bytearray(2 * len(self._data))
        self._data[: len(left)] = left
        self._begin, self._end = 0, len(left)

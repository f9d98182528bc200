"""What the frames of one message stream mean: bind first, then requests, credit and cancels.

Owns the numbers of unanswered requests and the credit of their pieces.
"""

from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import DecodeError

from kvd.core.effects import Outcome, Promise
from kvd.daemon.inbox import PieceSink, Place
from kvd.errors import KvdError
from kvd.rpc.frames import FrameError
from kvd.rpc.replies import promise_of, ready_of, reply_of
from kvd.rpc.session import Session
from kvd.rpc.stream import MessageStream
from kvd.rpc.wishes import WISHES, parse_message, wish_of
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FRAME_HEAD, PIECE_HEAD, FrameKind

CREDIT_BYTES_MAX = 1 << 62


class Binder(Protocol):
    """Whose sessions may be bound on this path; knows the peer."""

    def bind(self, nonce: bytes) -> Session:
        """Return the session of a nonce, which binds once; raise KvdError without one."""
        ...

    def closed(self) -> None: ...


class _Request:
    """One unanswered request; for a fetch, also the sink of its pieces."""

    def __init__(
        self, requests: "StreamRequests", stream: MessageStream, kind: FrameKind, number: int
    ) -> None:
        self._requests, self._stream, self._kind, self._number = requests, stream, kind, number
        self.wish, self.traceparent = 0, ""
        self.credit_bytes = 0
        self.wake: Callable[[], None] = _nothing

    def answer(self, outcome: Outcome) -> None:
        kind = FrameKind.ERROR if isinstance(outcome, KvdError) else FrameKind.REPLY
        self._requests.forget(self._number)
        self._stream.send(kind, self._number, reply_of(self._kind, outcome).SerializeToString())

    def promise(self, promise: Promise) -> None:
        body = promise_of(promise).SerializeToString()
        self._stream.send(FrameKind.PROMISE, self._number, body)

    def ready(self, ready: tuple[int, int, int]) -> None:
        self._stream.send(FrameKind.READY, self._number, ready_of(ready).SerializeToString())

    def open_sink(self, wake: Callable[[], None]) -> PieceSink:
        self.wake = wake
        return self

    def has_room(self) -> bool:
        return self.credit_bytes > 0 and not self._stream.is_paused

    def has_turn(self) -> bool:
        return True

    def send(self, place: Place, data: memoryview) -> None:
        size = len(data)
        self.credit_bytes -= size
        head = FRAME_HEAD.pack(PIECE_HEAD.size + size, self._number, FrameKind.PIECE, 0, 0)
        where = PIECE_HEAD.pack(place.plane_class, place.lane, 0, place.chunk, place.offset)
        # One copy into one write: the extent may be reused as soon as this returns.
        self._stream.write(b"".join((head, where, data)))


class StreamRequests:
    def __init__(self, stream: MessageStream, binder: Binder, frame_bytes_max: int) -> None:
        self._stream, self._binder, self._frame_bytes_max = stream, binder, frame_bytes_max
        self._session: Session | None = None
        self._requests: dict[int, _Request] = {}

    def forget(self, number: int) -> None:
        self._requests.pop(number, None)

    def on_room(self) -> None:
        for request in list(self._requests.values()):
            request.wake()

    def on_closed(self) -> None:
        self._binder.closed()
        if self._session is not None:
            self._session.end()

    def on_frame(self, kind: FrameKind, number: int, body: bytes) -> None:
        try:
            self._on_frame(kind, number, body)
        except DecodeError:
            what = f"{len(body)} bytes of a {kind.name} frame are no message of its kind"
            raise FrameError(number, what) from None

    def _on_frame(self, kind: FrameKind, number: int, body: bytes) -> None:
        if self._session is None:
            self._bind(kind, number, body)
        elif kind in WISHES:
            self._ask(self._session, kind, number, body)
        elif kind == FrameKind.CREDIT:
            self._credit(number, pb.Credit.FromString(body).bytes)
        elif kind == FrameKind.CANCEL:
            if request := self._requests.get(number):
                self._session.cancel(request.wish)
        else:
            raise FrameError(number, f"a {kind.name} frame is not a client's to send here")

    def _bind(self, kind: FrameKind, number: int, body: bytes) -> None:
        if kind != FrameKind.BIND:
            raise FrameError(number, f"the first frame is a {kind.name}; it must be a BIND")
        try:
            session = self._binder.bind(pb.Bind.FromString(body).nonce)
        except KvdError as error:
            self._stream.refuse(number, error)
            return
        self._session, session.stream = session, self._stream
        self._stream.frames.frame_bytes_max = self._frame_bytes_max
        self._stream.send(FrameKind.REPLY, number, pb.Bound().SerializeToString())

    def _ask(self, session: Session, kind: FrameKind, number: int, body: bytes) -> None:
        if number == 0 or number in self._requests:
            raise FrameError(number, f"request id {number} is in use; 0 is for notices")
        request = self._requests[number] = _Request(self, self._stream, kind, number)
        try:
            request.wish = session.ask(
                kind, request, lambda asker: wish_of(kind, parse_message(kind, body), asker)
            )
        except KvdError as error:
            request.answer(error)

    def _credit(self, number: int, size_bytes: int) -> None:
        """Let more pieces come; one piece may pass the credit, so none is too large for it."""
        request = self._requests.get(number)
        if request is None:
            return  # Answered meanwhile.
        request.credit_bytes = min(request.credit_bytes + size_bytes, CREDIT_BYTES_MAX)
        request.wake()


def _nothing() -> None:
    pass

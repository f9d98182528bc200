"""Requests under way on one message stream: each gets one answer, by its deadline.

Owns the table of requests. Lives on the I/O thread. What the daemon grants to a request that was
given up meanwhile is given back here.
"""

import asyncio
import itertools
from collections.abc import Callable

from google.protobuf.message import DecodeError, Message

from kvd.client.intake import Sink
from kvd.client.messages import error_of, garbage
from kvd.client.stream import FrameStream
from kvd.clock import NS_PER_S, MonotonicClock
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

_CLOCK = MonotonicClock()

SILENCE_SECONDS = 2.0  # A daemon that misses a deadline and said nothing for so long has hung.
_UNSENT_BYTES_MAX = 64 * MIB
_OPEN_MAX = Limits().requests_per_session_max
# Bounded by what was granted; refused, that would stay held until its time is over, or be lost.
_GIVING_BACK = (FrameKind.RELEASE, FrameKind.ABORT, FrameKind.RENEW)
_REPLIES: dict[FrameKind, type[Message]] = {
    FrameKind.BIND: pb.Bound,
    FrameKind.REGISTER_KEYSPACE: pb.RegisterKeyspaceReply,
    FrameKind.RESERVE: pb.ReserveReply,
    FrameKind.SEAL: pb.SealReply,
    FrameKind.ABORT: pb.AbortReply,
    FrameKind.LOOKUP: pb.LookupReply,
    FrameKind.FETCH: pb.FetchDone,
    FrameKind.RELEASE: pb.ReleaseReply,
    FrameKind.RENEW: pb.RenewReply,
    FrameKind.PREFETCH: pb.PrefetchReply,
    FrameKind.CLEAR: pb.ClearReply,
}

Answered = Callable[[Message | KvdError], None]
Told = Callable[[int, pb.Promise | pb.Ready], None]  # With the request's number.


class Request:
    """One unanswered request; a given-up one only waits for what must be undone."""

    __slots__ = ("kind", "answered", "told", "given_up", "promised", "sent_ns")

    def __init__(self, kind: FrameKind, answered: Answered, told: Told | None) -> None:
        self.kind, self.answered, self.told = kind, answered, told
        self.given_up = self.promised = False
        self.sent_ns = _CLOCK.now_ns()


class Requests:
    def __init__(
        self, on_notice: Callable[[pb.Notice], None], on_lost: Callable[[KvdError], None]
    ) -> None:
        """`on_lost` is called when the stream ends or carries what cannot be; then `close`."""
        self.stream = FrameStream(self._on_frame, on_lost)
        self._loop = asyncio.get_running_loop()
        self._on_notice, self._on_lost = on_notice, on_lost
        self._open: dict[int, Request] = {}
        self._numbers = itertools.count()
        self._closed: KvdError | None = None

    def start(
        self, kind: FrameKind, message: Message, answered: Answered, told: Told | None = None
    ) -> int:
        """Send a request and return its number; from any thread.

        `answered` is called once: on the I/O thread, or at once when it cannot be sent.
        """
        many = len(self._open) >= _OPEN_MAX or self._unsent_bytes() > _UNSENT_BYTES_MAX
        if many and kind not in _GIVING_BACK:
            words = "too many requests are unanswered, or too much is unsent"
            answered(KvdError(ErrorKind.OVERLOADED, words))
            return 0
        number = next(self._numbers) % 0xFFFF_FFFF + 1
        self._open[number] = Request(kind, answered, told)
        self.stream.send(kind, number, message.SerializeToString())
        # Ended meanwhile: then either its end has answered this one, or it is done here.
        if self._closed is not None and self._open.pop(number, None) is not None:
            answered(self._closed)
        return number

    async def request(self, kind: FrameKind, message: Message, timeout_s: float) -> Message:
        """Send a request and return its reply; raise KvdError, LATE after timeout_s."""
        future: asyncio.Future[Message] = self._loop.create_future()

        def answered(answer: Message | KvdError) -> None:
            if future.done():  # Cancelled, and who waited has not had his turn yet.
                self._undo(answer)
                return
            if isinstance(answer, KvdError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        number = self.start(kind, message, answered)
        timer = self._loop.call_later(max(timeout_s, 0), self.give_up, number)
        try:
            return await future
        except asyncio.CancelledError:
            self.give_up(number)
            if future.done() and not future.cancelled() and future.exception() is None:
                self._undo(future.result())  # It came just before.
            raise
        finally:
            timer.cancel()

    def tell(self, kind: FrameKind, message: Message) -> None:
        """Send a request whose answer does not matter."""
        self.start(kind, message, _ignore)

    def give_up(self, number: int) -> None:
        """Answer a request LATE now; a daemon that has been silent for long is given up too."""
        if number not in self._open or self._open[number].given_up:
            return
        unanswered = [r.sent_ns for r in list(self._open.values()) if not r.promised]
        self.cancel(number)
        silent_ns = _CLOCK.now_ns() - max(self.stream.heard_ns, min(unanswered, default=1 << 63))
        if silent_ns > SILENCE_SECONDS * NS_PER_S:
            why = f"the daemon has not answered for {silent_ns / NS_PER_S:.1f} s; is it stopped?"
            self._on_lost(KvdError(ErrorKind.UNAVAILABLE, why))

    def cancel(self, number: int) -> None:
        """End a request that nobody waits for; from here on no piece goes to its sink."""
        request = self._open.get(number)
        if request is None or request.given_up:
            return
        request.given_up = True
        self.stream.intake.stop(number)
        self.stream.send(FrameKind.CANCEL, number, b"")
        request.answered(KvdError(ErrorKind.LATE, "the daemon did not answer by the deadline"))

    @property
    def is_idle(self) -> bool:
        return not self._open

    def deliver_to(self, number: int, sink: Sink, window_bytes: int) -> None:
        """Let pieces of a fetch come, `window_bytes` of them before `credit` says more."""
        self.stream.intake.sinks[number] = sink
        self.credit(number, window_bytes)

    def credit(self, number: int, size: int) -> None:
        self.stream.send(FrameKind.CREDIT, number, pb.Credit(bytes=size).SerializeToString())

    def close(self, error: KvdError) -> None:
        """Answer everything with `error`."""
        self._closed = error
        self.stream.close()
        requests, self._open = self._open, {}
        for request in requests.values():
            if not request.given_up:
                request.answered(error)

    def _unsent_bytes(self) -> int:
        transport = self.stream.transport
        inside = transport.get_write_buffer_size() if transport is not None else 0
        return self.stream.unsent_bytes + inside

    def _on_frame(self, kind: int, number: int, body: bytes) -> None:
        try:
            if kind == FrameKind.NOTICE:
                self._on_notice(pb.Notice.FromString(body))
            elif kind == FrameKind.PROMISE:
                self._on_told(number, pb.Promise.FromString(body))
            elif kind == FrameKind.READY:
                self._on_told(number, pb.Ready.FromString(body))
            elif kind in (FrameKind.REPLY, FrameKind.ERROR):
                self._on_final(kind, number, body)
            # Other kinds belong to a later version, which must not need them understood.
        except DecodeError:
            self._on_lost(garbage(f"a frame of kind {kind} that is no such message"))
        except KvdError as error:
            self._on_lost(error)

    def _on_final(self, kind: int, number: int, body: bytes) -> None:
        if number == 0 and kind == FrameKind.ERROR:  # Of the whole session, which ends with it.
            raise error_of(pb.Error.FromString(body))
        request = self._open.get(number)
        if request is None:
            raise garbage(f"an answer to request {number}, which is not open")
        answer: Message | KvdError
        if kind == FrameKind.ERROR:
            answer = error_of(pb.Error.FromString(body))
        else:
            answer = _REPLIES[request.kind].FromString(body)
        del self._open[number]
        self.stream.intake.stop(number)
        if request.given_up:
            self._undo(answer)
        else:
            request.answered(answer)

    def _on_told(self, number: int, message: pb.Promise | pb.Ready) -> None:
        request = self._open.get(number)
        if request is None or request.told is None:
            raise garbage(f"a promise for request {number}, which asked for none")
        if request.given_up:
            self._undo(message)
        else:
            request.promised = True
            request.told(number, message)

    def _undo(self, answer: Message | KvdError) -> None:
        """Give back what was granted to a request that nobody waits for any more."""
        match answer:
            case pb.ReserveReply() if answer.reservation:
                self.tell(FrameKind.ABORT, pb.AbortRequest(reservation=answer.reservation))
            case pb.LookupReply() | pb.Promise() if answer.lease:
                self.tell(FrameKind.RELEASE, pb.ReleaseRequest(lease=answer.lease))


def _ignore(answer: Message | KvdError) -> None:
    pass

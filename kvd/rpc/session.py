"""One session: its two ends, its secrets, and who waits for which answer.

It is the daemon's link to a client. It ends with either socket or its process; an attached one with
its call.
"""

import hmac
import secrets
from collections.abc import Callable
from typing import Protocol

import numpy as np

from kvd.core.effects import DropSlab, LeaseLost, Outcome, Promise, RecallSlab, TellReady
from kvd.core.events import AbortWanted, CancelWanted, Event, ReleaseWanted, RenewWanted
from kvd.daemon.inbox import Inbox, Notice, PieceSink
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.rate import RequestRate
from kvd.rpc.sharing import SharedPace
from kvd.rpc.waiter import Waiter
from kvd.rpc.watched import Watched
from kvd.rpc.whole import told_in_parts
from kvd.rpc.wishes import Asker
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

# Answered in the step that takes them, so they add to no bound; what they give back is waited for.
_AT_ONCE = (ReleaseWanted, AbortWanted, RenewWanted)

NONCE_BYTES = 16
SECRET_BYTES = 24


class Stream(Protocol):
    """The session's message stream, once it is bound."""

    def send(self, kind: FrameKind, number: int, body: bytes) -> None: ...

    def refuse(self, number: int, error: KvdError) -> None:
        """Send an error and close behind it."""
        ...

    def is_flushed(self) -> bool: ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Channel(Protocol):
    """Where slabs are given; its closing ends the session."""

    def send(self, message: pb.ToClient, descriptor: int = -1) -> None: ...

    def show(self, message: pb.ToClient, find: Callable[[], int]) -> None: ...

    def refuse(self, error: KvdError) -> None: ...

    def is_flushed(self) -> bool: ...

    def close(self) -> None: ...


class Unbound:
    """In place of a stream: a client may use gRPC only."""

    def send(self, kind: FrameKind, number: int, body: bytes) -> None:
        pass

    def refuse(self, number: int, error: KvdError) -> None:
        pass

    def is_flushed(self) -> bool:
        return True

    def abort(self) -> None:
        pass


class Session:
    def __init__(
        self, inbox: Inbox, tenant: str, uid: int, channel: Channel,
        on_ended: "Callable[[Session], None]",
    ) -> None:  # fmt: skip
        self.id, self.tenant, self.uid = 0, tenant, uid
        self.pid, self.client, self.transport = 0, "", "socket"
        self.since_ns = inbox.now_ns()
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.features = 0  # What the client understands.
        self.way = ""  # That it came by, where calls of another way are not its own.
        self.check: Callable[[Event], None] = _accept  # Raises KvdError for what it cannot have.
        # Of its tenant, where that has a rate.
        self.rate: RequestRate | None = None
        self.pace: SharedPace | None = None
        self.stream: Stream = Unbound()
        self._inbox, self._channel, self._on_ended = inbox, channel, on_ended
        self._secret = secrets.token_urlsafe(SECRET_BYTES)
        self._waiters: dict[int, Waiter] = {}
        self._ended = False

    @property
    def token(self) -> str:
        """Return the bearer token: the session's number, and what proves that it was told."""
        return f"{self.id}.{self._secret}"

    def has_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    # ---- towards the daemon ----

    def ask(self, kind: FrameKind, waiter: Waiter, make_wish: Callable[[Asker], Event]) -> int:
        """Post a wish and return its number; its answer may come before that.

        `make_wish` is called within the tenant's rate: what cannot be meant costs something too.
        Raise KvdError for a wish that cannot be meant, one too many, or of a session that ended
        while it was on its way: nobody would answer it (I10).
        """
        limits = self._inbox.limits
        request, now_ns = self._inbox.next_request(), self._inbox.now_ns()
        with self._inbox.observer.refusing(self.tenant):
            if self._ended:
                raise KvdError(ErrorKind.LOST, "the session has ended")
            if self.rate is not None:
                self.rate.admit(kind, now_ns)
            wish = make_wish(Asker(request, self.id, now_ns, limits))
            many = len(self._waiters) >= limits.requests_per_session_max
            if many and not isinstance(wish, _AT_ONCE):
                raise KvdError(
                    ErrorKind.OVERLOADED,
                    f"{len(self._waiters)} requests of this session are unanswered, the limit "
                    "requests_per_session_max",
                    retry_after_ms=100,
                )
            self.check(wish)
        told = told_in_parts(wish, waiter, self.features, self._let_go)
        self._waiters[request] = Watched(wish, told, self._inbox, self.tenant)
        self._inbox.post(wish)
        return request

    def cancel(self, request: int) -> None:
        if request in self._waiters:
            self._inbox.post(CancelWanted(request, self.id))

    def end(self) -> None:
        """Close what is open and tell the daemon; the second time nothing happens."""
        if self._ended:
            return
        self._ended = True
        self._channel.close()
        self.stream.abort()
        waiters, self._waiters = self._waiters, {}
        self._inbox.end(self.id)
        lost = KvdError(ErrorKind.LOST, "the session ended before the answer")
        for waiter in waiters.values():
            waiter.answer(lost)
        self._on_ended(self)

    # ---- the daemon's link ----

    def give_slab(
        self, slab: int, size_bytes: int, find: Callable[[], int], *, writable: bool
    ) -> None:
        given = pb.SlabGiven(slab=slab, size=size_bytes, writable=writable)
        if writable:
            self._channel.send(pb.ToClient(slab_given=given), find())
        else:
            self._channel.show(pb.ToClient(slab_given=given), find)

    def notify(self, notice: Notice) -> None:
        match notice:
            case RecallSlab(_, slab):
                self._channel.send(pb.ToClient(slab_recalled=pb.SlabRecalled(slab=slab)))
            case DropSlab(_, slab):
                self._channel.send(pb.ToClient(slab_gone=pb.SlabGone(slab=slab)))
            case LeaseLost(_, lease):
                self._tell(pb.Notice(lease_lost=lease))
            case TellReady(request, _, ready):
                if waiter := self._waiters.get(request):
                    waiter.ready(ready)
            case _:
                self._tell(pb.Notice(draining=True))

    def answer(self, request: int, outcome: Outcome) -> None:
        waiter = self._waiters.pop(request, None)
        if waiter is not None:
            waiter.answer(outcome)

    def promise(self, request: int, promise: Promise) -> None:
        waiter = self._waiters.get(request)
        if waiter is not None:
            waiter.promise(promise)

    def open_sink(self, request: int, wake: Callable[[], None]) -> PieceSink:
        sink = self._waiters[request].open_sink(wake)
        return sink if self.pace is None else self.pace.sink(sink, wake)

    def is_idle(self) -> bool:
        return not self._waiters and self._channel.is_flushed() and self.stream.is_flushed()

    def close(self, error: KvdError) -> None:
        self.stream.refuse(0, error)
        self.stream = Unbound()
        self._channel.refuse(error)  # Whose closing ends the session.

    def _tell(self, notice: pb.Notice) -> None:
        self.stream.send(FrameKind.NOTICE, 0, notice.SerializeToString())

    def _let_go(self, lease: int) -> None:
        if not self._ended:
            request, nothing = self._inbox.next_request(), np.zeros(0, np.uint32)
            self._inbox.post(ReleaseWanted(request, self.id, lease, nothing))


def _accept(wish: Event) -> None:
    pass

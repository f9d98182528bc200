"""The question without data: how much of a prefix is there.

Runs as plain callbacks: as a coroutine it would cost about as much again as the daemon's answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message

from kvd.client.messages import lane_message, parse_counts
from kvd.client.outcomes import Found, Reason
from kvd.client.scope import Scope
from kvd.client.session import Session
from kvd.client.thread import Gate
from kvd.errors import KvdError
from kvd.limits import DIGEST_BYTES
from kvd.types import Lane
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

Answer = Found | KvdError
Done = Callable[[Answer], None]


@dataclass(frozen=True, slots=True)
class Question:
    """How many leading chunks of `chain` do all `lanes` have; with `lease` they are held."""

    scope: Scope
    chain: bytes
    lanes: tuple[Lane, ...]
    lease: bool
    deadline_s: float

    def ask_here(self) -> Answer:
        """Ask and wait for the answer, on the caller's thread as far as it goes."""
        scope = self.scope
        thread = scope.link.thread()
        session = scope.link.session()
        known = session.handles.get(scope.number)
        if known is None:
            return thread.ask(self.ask)
        scope.link.counters.lookups += 1
        gate: Gate[Answer] = Gate()
        number = self.send(session, known[0], gate.open)
        if not gate.wait(self.deadline_s):
            thread.post(session.requests.give_up, number)
        return thread.wait(gate)

    def ask(self, done: Done) -> None:
        """Ask on the I/O thread; call back once with the answer or what kept it from coming."""
        scope = self.scope
        scope.link.counters.lookups += 1
        try:
            session = scope.link.session()
        except KvdError as error:
            done(error)
            return
        known = session.handles.get(scope.number)
        if known is None:
            asyncio.get_running_loop().create_task(self._register(session, done))
        else:
            self._timed(session, known[0], done)

    async def _register(self, session: Session, done: Done) -> None:
        scope = self.scope
        try:
            known = await session.keyspace(scope.keyspace, scope.number, self.deadline_s)
        except KvdError as error:
            done(error)
        else:
            self._timed(session, known[0], done)

    def _timed(self, session: Session, handle: int, done: Done) -> None:
        """Send it, and see to an answer by the deadline."""
        timers: list[asyncio.TimerHandle] = []

        def answered(answer: Answer) -> None:
            for timer in timers:
                timer.cancel()
            done(answer)

        number = self.send(session, handle, answered)
        loop = asyncio.get_running_loop()
        timers.append(loop.call_later(self.deadline_s, session.requests.give_up, number))

    def send(self, session: Session, handle: int, done: Done) -> int:
        """Send it from any thread, return the request's number; the deadline is the caller's."""
        message = pb.LookupRequest(
            keyspace=handle,
            lanes=[lane_message(lane) for lane in self.lanes],
            chain=self.chain,
            lease=self.lease,
            deadline_ms=max(1, int(self.deadline_s * 1000)),
        )

        def answered(answer: Message | KvdError) -> None:
            done(self._found(session, answer))

        return session.requests.start(FrameKind.LOOKUP, message, answered)

    def _found(self, session: Session, answer: Message | KvdError) -> Answer:
        if isinstance(answer, KvdError):
            return answer
        assert isinstance(answer, pb.LookupReply)
        try:
            counts = parse_counts(answer.counts, len(self.chain) // DIGEST_BYTES)
        except KvdError as error:
            return error
        if counts[0] == 0:
            self.scope.link.counters.miss(Reason.NOT_STORED)
            return Found(counts, 0, Reason.NOT_STORED)
        return Found(counts, self.scope.held.hold(session, answer.lease))


def found_of(scope: Scope, answer: Answer) -> Found:
    """Return the answer, a failure as a miss with its reason; raise the caller's own mistakes."""
    if isinstance(answer, KvdError):
        return Found((0, 0, 0), 0, scope.missed(answer))
    return answer


def let_go(scope: Scope, lease: int) -> None:
    """Release a lease that a lookup was granted and no fetch took over; from any thread."""
    try:
        session = scope.link.session()
    except KvdError:
        return
    number = scope.held.take(lease, session)
    if number:
        session.requests.tell(FrameKind.RELEASE, pb.ReleaseRequest(lease=number))

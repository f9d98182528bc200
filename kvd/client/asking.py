"""One question about a keyspace and its one answer, by a deadline.

Runs as plain callbacks: as a coroutine it would cost about as much again as the daemon's answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from kvd.client.scope import Scope
from kvd.client.session import Session
from kvd.client.thread import Gate, answer_for
from kvd.errors import ErrorKind, KvdError
from kvd.wire import Feature, FrameKind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """`say` makes the request of a keyspace's handle, `take` reads the reply or raises KvdError."""

    scope: Scope
    kind: FrameKind
    say: Callable[[int], Message]
    take: Callable[[Session, Message], T]
    deadline_s: float
    feature: Feature | None = None  # That a daemon has to know; another one would end the session.
    unwanted: "Callable[[T | KvdError], None] | None" = None  # Of an answer nobody waits for.

    def ask_here(self) -> T | KvdError:
        """Ask and wait for the answer, on the caller's thread as far as it goes."""
        try:
            return self._ask_here()
        except KvdError as error:
            return error

    def _ask_here(self) -> T | KvdError:
        thread, session = self.scope.link.thread(), self._session()
        known = session.handles.get(self.scope.number)
        gate: Gate[T | KvdError] = Gate()
        answered = False
        try:
            if known is None:
                thread.post(self.ask, gate.open)
            else:
                number = self._send(session, known[0], gate.open)
                if not gate.wait(self.deadline_s):
                    thread.post(session.requests.give_up, number)
            answer = thread.wait(gate)
            answered = True
            return answer
        finally:
            if not answered and self.unwanted is not None:  # Left early, by an interrupt.
                thread.post(gate.leave, self.unwanted)

    def ask(self, done: Callable[[T | KvdError], None]) -> None:
        """Ask on the I/O thread; call back once with the answer or what kept it from coming."""
        try:
            session = self._session()
        except KvdError as error:
            done(error)
            return
        known = session.handles.get(self.scope.number)
        if known is None:
            answer_for(self._register(session, done), done)
        else:
            self._timed(session, known[0], done)

    def _session(self) -> Session:
        """Return the live session; raise UNAVAILABLE, or INCOMPATIBLE where it cannot be asked."""
        session = self.scope.link.session()
        if self.feature is not None and not session.welcome.features & self.feature:
            what = f"this daemon ({session.welcome.daemon}) does not know {self.feature.name}"
            raise KvdError(ErrorKind.INCOMPATIBLE, f"{what}; upgrade it")
        return session

    async def _register(self, session: Session, done: Callable[[T | KvdError], None]) -> None:
        scope = self.scope
        try:
            known = await session.keyspace(scope.keyspace, scope.number, self.deadline_s)
        except KvdError as error:
            done(error)
        else:
            self._timed(session, known[0], done)

    def _timed(self, session: Session, handle: int, done: Callable[[T | KvdError], None]) -> None:
        """Send it, and see to an answer by the deadline."""
        timers: list[asyncio.TimerHandle] = []

        def answered(answer: T | KvdError) -> None:
            for timer in timers:
                timer.cancel()
            done(answer)

        number = self._send(session, handle, answered)
        loop = asyncio.get_running_loop()
        timers.append(loop.call_later(self.deadline_s, session.requests.give_up, number))

    def _send(self, session: Session, handle: int, done: Callable[[T | KvdError], None]) -> int:
        """Send it from any thread, return the request's number; the deadline is the caller's."""

        def answered(answer: Message | KvdError) -> None:
            done(self._taken(session, answer))

        return session.requests.start(self.kind, self.say(handle), answered)

    def _taken(self, session: Session, answer: Message | KvdError) -> T | KvdError:
        if isinstance(answer, KvdError):
            return answer
        try:
            return self.take(session, answer)
        except KvdError as error:
            return error

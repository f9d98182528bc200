"""Opens a fetch: its request, its deadline, its promise, and one outcome.

Sent from the caller's thread when it can be; the rest runs on the I/O thread as plain callbacks.
Whatever goes wrong before the promise is complete is a miss.
"""

import asyncio
from collections.abc import Callable

from google.protobuf.message import Message

from kvd.client.arrivals import Arrivals
from kvd.client.building import Building
from kvd.client.fetch import Fetch
from kvd.client.leases import Moment
from kvd.client.messages import Promised, garbage, lane_message, parse_promise
from kvd.client.outcomes import Delivery, Reason
from kvd.client.scope import Scope, Wish
from kvd.client.session import Session
from kvd.client.thread import Gate, answer_for
from kvd.clock import NS_PER_S, MonotonicClock
from kvd.errors import KvdError
from kvd.table import table_bytes
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

_CLOCK = MonotonicClock()

Outcome = Fetch | KvdError


def missed_fetch(scope: Scope, reason: Reason) -> Fetch:
    """Return a fetch of nothing."""
    arrivals = Arrivals()
    arrivals.end()
    return Fetch(scope, arrivals, reason, None)


def fetch_of(scope: Scope, outcome: Outcome) -> Fetch:
    """Return a fetch, a failure as a miss with its reason; raise the caller's own mistakes."""
    if isinstance(outcome, KvdError):
        return missed_fetch(scope, scope.missed(outcome))
    return outcome


def open_here(scope: Scope, wish: Wish) -> Outcome:
    """Open a fetch and wait for its promise, on the caller's thread as far as it goes."""
    thread = scope.link.thread()
    gate: Gate[Outcome] = Gate()
    opening = Opening(scope, wish, gate.open)
    try:
        if not opening.begin_here():
            thread.post(opening.begin)
        elif not gate.wait(wish.deadline_s):
            thread.post(opening.give_up)
        return thread.wait(gate)
    finally:
        if not gate.is_open:  # Left early, by an interrupt.
            thread.post(opening.orphan)


class Opening:
    """One fetch from its request to its promise; `done` is called once with what came of it."""

    def __init__(self, scope: Scope, wish: Wish, done: Callable[[Outcome], None]) -> None:
        scope.link.counters.fetches += 1
        self._scope, self._wish, self._done = scope, wish, done
        self._deadline_ns = _CLOCK.now_ns() + int(wish.deadline_s * NS_PER_S)
        self._session: Session | None = None
        self._building: Building | None = None
        self._number = 0
        self._taken = 0  # The lease of a lookup, which nobody else can give back any more.
        self._promised: Promised | None = None
        self._outcome: Outcome | None = None
        self._orphaned = False
        self._timer: asyncio.TimerHandle | None = None

    def begin_here(self) -> bool:
        """Send the request from the caller's thread; False when `begin` must do it.

        The caller sees to the deadline until there is an outcome. Raise KvdError without a daemon.
        """
        session = self._scope.link.session()
        known = session.handles.get(self._scope.number)
        if known is not None:
            self._send(session, known)
        return known is not None

    def begin(self) -> None:
        """Send the request from the I/O thread, having registered its keyspace."""
        answer_for(self._register(), self._settle)

    def give_up(self) -> None:
        """Answer LATE now; on the I/O thread."""
        if self._session is not None:
            self._session.requests.give_up(self._number)

    def orphan(self) -> None:
        """Nobody waits for the outcome any more; on the I/O thread."""
        self._orphaned = True
        if isinstance(self._outcome, Fetch):
            self._outcome.release()
        self.give_up()

    async def _register(self) -> None:
        scope = self._scope
        try:
            session = scope.link.session()
            known = await session.keyspace(scope.keyspace, scope.number, self._left_s())
        except KvdError as error:
            self._settle(error)
            return
        self._send(session, known)
        self._time_out()

    def _send(self, session: Session, known: tuple[int, bytes]) -> None:
        scope, wish = self._scope, self._wish
        handle, digest = known
        self._taken = scope.held.take(wish.lease, session)
        message = pb.FetchRequest(
            keyspace=handle,
            lanes=[lane_message(scope.lane)],
            chain=wish.chain,
            class_count=wish.class_count,
            layer_begin=wish.layers[0],
            layer_end=wish.layers[1],
            delivery=int(wish.delivery),  # type: ignore[arg-type]
            rate_bits=wish.rate_bits,
            lease=self._taken,
            deadline_ms=max(1, int(self._left_s() * 1000)),
        )
        self._session = session
        self._building = Building(scope, wish, session, digest, Moment(session))
        requests = session.requests
        self._number = requests.start(FrameKind.FETCH, message, self._answered, self._told)

    def _left_s(self) -> float:
        return (self._deadline_ns - _CLOCK.now_ns()) / NS_PER_S

    def _time_out(self) -> None:
        """See to it that the final answer comes by the deadline."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self._left_s(), 0), self.give_up)

    def _settle(self, outcome: Outcome) -> None:
        if self._outcome is not None:
            return
        self._outcome = outcome
        if isinstance(outcome, KvdError):
            session = self._session
            if session is not None and session.alive:
                session.requests.cancel(self._number)
                if self._taken and self._promised is None:  # Taken over, it is LOST, which is well.
                    message = pb.ReleaseRequest(lease=self._taken)
                    session.requests.tell(FrameKind.RELEASE, message)
            if self._building is not None:
                self._building.abandon()
        elif self._orphaned:
            outcome.release()
        self._done(outcome)

    # ---- called as frames come ----

    def _told(self, number: int, message: pb.Promise | pb.Ready) -> None:
        building = self._building
        assert building is not None
        if isinstance(message, pb.Promise):
            self._on_promise(number, message, building)
        elif self._promised is None:
            raise garbage("pieces of a fetch that are ready before its promise")
        else:
            building.advance(message)

    def _on_promise(self, number: int, message: pb.Promise, building: Building) -> None:
        """Take the promise; pieces may follow at once, so their place is made here."""
        if self._promised is not None:
            raise garbage("a second promise for one fetch")
        scope = self._scope
        self._number = number
        table = table_bytes(scope.grid.cell_count)
        promised = self._promised = parse_promise(message, self._wish.chunk_count, table)
        if promised.counts[0] == 0:
            scope.link.counters.miss(promised.reason)
            self._settle(missed_fetch(scope, promised.reason))
            return
        refusal = building.take(number, promised)
        if refusal is not None:
            self._settle(refusal)
            return
        if self._wish.delivery == Delivery.BYTES or building.readiness is not None:
            self._time_out()
        if self._wish.delivery == Delivery.BYTES:
            self._settle(building.landed())
        elif (fetch := building.mapped()) is not None:
            self._settle(fetch)
        else:
            answer_for(self._await_slabs(building), self._settle)

    async def _await_slabs(self, building: Building) -> None:
        try:
            self._settle(await building.mapped_later(self._left_s()))
        except KvdError as error:
            self._settle(error)

    def _answered(self, answer: Message | KvdError) -> None:
        """Take the final answer."""
        if self._timer is not None:
            self._timer.cancel()
        error = answer if isinstance(answer, KvdError) else None
        if self._promised is None:
            self._settle(error or garbage("the end of a fetch without a promise"))
        elif self._outcome is None and error is not None:
            self._settle(error)
        elif self._building is not None:
            self._building.end(answer)

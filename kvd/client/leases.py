"""A lease as its reader sees it: whether what was read under it can be trusted.

Read is good when afterwards the revoke counter stands where it stood before the lease was asked
for, and its time has not passed; in doubt, a renewal that succeeds proves that it held all along.
"""

import asyncio
from collections.abc import Callable

from kvd.client.session import Session
from kvd.clock import MonotonicClock
from kvd.errors import ErrorKind, KvdError
from kvd.limits import Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

_CLOCK = MonotonicClock()


class Moment:
    """A time, and where the session's revoke counter stood then."""

    __slots__ = ("at_ns", "revokes")

    def __init__(self, session: Session) -> None:
        self.at_ns, self.revokes = _CLOCK.now_ns(), session.revokes()


class Lease:
    """One lease of one session. `holds` and `moved` are for any thread, the rest is not."""

    def __init__(self, session: Session, number: int, ttl_s: float, asked: Moment) -> None:
        """`asked` is the moment before the request went out that was granted this lease."""
        self.session, self.number = session, number
        self.lost = False
        self.moved = False  # Progress since the last renewal: without any it is not renewed.
        self._released = False
        self._ttl_ns = int(ttl_s * 1e9)
        # The places of a session that ended unnoticed are kept for the quarantine only.
        self._sure_ns = min(self._ttl_ns, Limits().quarantine_ns)
        self._proven = asked
        self._on_lost: Callable[[], None] = _nothing
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Renew by progress from now on; `on_lost` is called at most once, perhaps at once."""
        if self._released:  # Given up while slabs were waited for.
            return
        self._on_lost = on_lost
        if not self.session.alive:
            self._lose()
            return
        self.session.on_lease_lost[self.number] = self._lose
        self._schedule(asyncio.get_running_loop())

    def holds(self) -> bool:
        """Return whether all that was read so far was the lease's, without asking the daemon."""
        proven = self._proven
        return (
            not self.lost
            and self.session.alive
            and self.session.revokes() == proven.revokes
            and _CLOCK.now_ns() - proven.at_ns < self._sure_ns
        )

    async def prove(self, timeout_s: float) -> bool:
        """Ask the daemon whether the lease has held until now; this renews it."""
        if self.lost or self._released or not self.session.alive:
            return False
        now = Moment(self.session)
        message = pb.RenewRequest(lease=self.number)
        try:
            await self.session.requests.request(FrameKind.RENEW, message, timeout_s)
        except KvdError as error:
            if error.kind == ErrorKind.LOST:
                self._lose()
            return False
        self._proven = now
        return not self.lost

    def release(self, corrupt: bytes = b"") -> None:
        """Say that nothing is read under it any more; `corrupt` as in ReleaseRequest."""
        if self._released:
            return
        self._released = True
        self._forget()
        if self.session.alive:
            message = pb.ReleaseRequest(lease=self.number, corrupt=b"" if self.lost else corrupt)
            self.session.requests.tell(FrameKind.RELEASE, message)

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self._forget()
            self._on_lost()

    def _forget(self) -> None:
        self.session.on_lease_lost.pop(self.number, None)
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._ttl_ns / 3e9, self._renew, loop)

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.moved:
            self.moved = False
            loop.create_task(self.prove(self._ttl_ns / 3e9))
        self._schedule(loop)


def _nothing() -> None:
    pass

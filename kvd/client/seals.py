"""Seals of one put on their way: sent while further strips are laid, their answers taken in order.

On the caller's thread.
"""

from collections import deque
from concurrent.futures import Future

import numpy as np
from google.protobuf.message import Message

from kvd.client.messages import column
from kvd.client.outcomes import Reason
from kvd.client.scope import Scope
from kvd.clock import NS_PER_S, MonotonicClock
from kvd.errors import ErrorKind, KvdError
from kvd.v1 import kvd_pb2 as pb

_CLOCK = MonotonicClock()
_OPEN_MAX = 64  # Unanswered: those wait long that are to be on disk.
_COLLECT_SECONDS_MIN = 0.2  # For the answers of seals that are on their way at the deadline.


class Deadline:
    """The time that a put has."""

    def __init__(self, seconds: float) -> None:
        self._at_s = _CLOCK.now_ns() / NS_PER_S + seconds

    def left_s(self) -> float:
        """Return the seconds left, negative behind the deadline."""
        return self._at_s - _CLOCK.now_ns() / NS_PER_S

    def need_s(self) -> float:
        """Return the seconds left, or raise LATE."""
        left = self.left_s()
        if left <= 0:
            raise KvdError(ErrorKind.LATE, "the put's deadline passed")
        return left


class Seals:
    """What the answers say: chunks sealed, sealed by others before, on disk; why not more.

    The last seal of a reservation speaks for all its chunks, as to whether they are on disk.
    """

    def __init__(self, scope: Scope, deadline: Deadline) -> None:
        self.stored = self.coalesced = self.durable = self.size_bytes = 0
        self.reason = Reason.NONE
        self._scope, self._deadline = scope, deadline
        self._open: deque[tuple[Future[Message], np.ndarray, int]] = deque()

    def add(self, seal: "Future[Message]", sizes: np.ndarray, spoken_for: int) -> None:
        """Take over a seal of chunks of `sizes` u32[n, 3]; wait while too many are unanswered.

        It speaks for so many chunks.
        """
        self._open.append((seal, sizes, spoken_for))
        self._collect(_OPEN_MAX)

    def finish(self) -> None:
        """Wait for all answers."""
        self._collect(0)

    def _collect(self, open_max: int) -> None:
        while len(self._open) > open_max:
            try:
                self._take(*self._open.popleft())
            except KvdError as error:
                self.reason = self._scope.missed(error)

    def _take(self, seal: "Future[Message]", sizes: np.ndarray, spoken_for: int) -> None:
        left = max(self._deadline.left_s(), _COLLECT_SECONDS_MIN)
        try:
            reply = seal.result(left + _COLLECT_SECONDS_MIN)
        except TimeoutError:
            raise KvdError(ErrorKind.LATE, "the process is exiting") from None
        assert isinstance(reply, pb.SealReply)
        states = column(reply.states, "<u1", len(sizes), "states")
        sealed = states == pb.SEALED
        self.stored += int(sealed.sum())
        self.coalesced += int((states == pb.COALESCED).sum())
        if reply.durable:
            self.durable += spoken_for
        self.size_bytes += int(sizes[sealed].sum(dtype=np.int64))
        if (states == pb.ORPHANED).any():
            self.reason = Reason.ORPHANED

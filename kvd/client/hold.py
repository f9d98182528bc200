"""The hold on what a fetch was granted: who reads it now, and its way back.

Whatever is read through it was the lease's own until after it had been read, or does not count.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvd.client.arrivals import Arrivals
from kvd.client.landing import Landing
from kvd.client.leases import Lease
from kvd.client.messages import Counts
from kvd.client.outcomes import Reason
from kvd.client.readiness import Readiness
from kvd.client.reading import Area, Strips
from kvd.client.scope import Scope
from kvd.client.slabs import Slab
from kvd.errors import ErrorKind, KvdError

_PROOF_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Granted:
    """What a promise brought; `slabs` hold it with mapped delivery, `landing` with the other.

    `readiness` is there when not all of it was in the slabs at once.
    """

    request: int
    lease: Lease
    counts: Counts
    layers: tuple[int, int]
    strips: Strips
    slabs: tuple[Slab, ...]
    landing: Landing | None
    readiness: Readiness | None


class Hold:
    """Memory of one fetch until it is released and its last reader has left."""

    def __init__(self, scope: Scope, arrivals: Arrivals, granted: Granted, reason: Reason) -> None:
        self.granted = granted
        self.reason = reason
        self.arrivals = arrivals
        self.scope = scope
        self._lock = threading.Lock()
        self._readers = 0
        self._released = False
        self._owner = os.getpid()
        self._counted_corrupt = 0

    @property
    def counts(self) -> Counts:
        """Chunks that came or are to come; less than were granted once some could not be had."""
        return self.granted.strips.counts

    def shrink(self, counts: Counts, reason: Reason) -> None:
        """Only so many of the chunks granted are good: the rest is missing for `reason`."""
        self.granted.strips.shrink(counts)
        self.reason = reason
        self.scope.link.counters.miss(reason)

    def read(self, area: Area, class_count: int, act: Callable[[], int]) -> int:
        """Return how many leading chunks of the area `act` found good, 0 if the lease ended."""
        granted, counters = self.granted, self.scope.link.counters
        arrived = min(self.arrivals.layer_ends[:class_count]) >= area.layer_end
        if not arrived or not self._enter():
            return 0
        try:
            end = act()
            if granted.landing is None and not self._proven():
                return 0
        finally:
            self._leave()
        with self._lock:
            fresh = len(granted.strips.corrupt) - self._counted_corrupt
            self._counted_corrupt += fresh
        counters.checksum_failures += fresh
        counters.decoded_chunks += end - area.chunk_begin
        return end - area.chunk_begin

    def pin(self) -> None:
        """Pin the slabs for the GPU, as far as there is one."""
        for slab in self.granted.slabs:
            slab.mapping.pin(writable=slab.writable)

    def release(self) -> None:
        if os.getpid() != self._owner:
            return  # A forked child: all of it is the parent's.
        with self._lock:
            if self._released:
                return
            self._released = True
            idle = self._readers == 0
        if idle:
            self.scope.link.post(self._let_go)

    def lose(self) -> None:
        """The daemon took the lease back, or is gone. On the I/O thread."""
        self.scope.link.counters.leases_lost += 1
        if self.granted.landing is None:
            self.arrivals.fail(KvdError(ErrorKind.LOST, "the lease was lost"))
        with self._lock:
            idle = self._readers == 0 and not self._released
        if idle:
            self._drop_views()

    def _enter(self) -> bool:
        granted = self.granted
        if os.getpid() != self._owner:
            return False  # In a forked child slabs are not even mapped.
        if granted.landing is None and not granted.lease.session.alive:
            return False
        with self._lock:
            if self._released or (granted.landing is None and granted.lease.lost):
                return False
            self._readers += 1
        granted.lease.moved = True
        return True

    def _leave(self) -> None:
        lease = self.granted.lease
        lease.moved = True
        # Decided under the lock: a release behind it finds no reader, and lets go itself.
        with self._lock:
            self._readers -= 1
            is_last, released = self._readers == 0, self._released
        if is_last and released:
            self.scope.link.post(self._let_go)
        elif is_last and lease.lost:
            self.scope.link.post(self._drop_views)

    def _proven(self) -> bool:
        lease = self.granted.lease
        if lease.holds():
            return True
        thread = self.scope.link.thread()
        if thread.is_current():  # Cannot wait for the answer here; so in doubt it is not good.
            return False
        return thread.call(lease.prove(min(self.scope.deadline_s, _PROOF_SECONDS_MAX)))

    def _drop_views(self) -> None:
        """Tell the daemon of a lost lease that nobody reads its places, so that it can use them."""
        if self.granted.lease.lost:
            self.granted.lease.release()

    def _let_go(self) -> None:
        """Give everything back; once, behind the release and the last reader."""
        granted, scope = self.granted, self.scope
        self.arrivals.end()
        session = granted.lease.session
        if session.alive:
            session.requests.cancel(granted.request)
        corrupt = np.array(sorted(granted.strips.corrupt), "<u4")
        granted.lease.release(corrupt.tobytes())
        if granted.landing is not None:
            scope.link.counters.delivered_bytes += granted.landing.delivered_bytes
            scope.pool.give(granted.landing.staging)

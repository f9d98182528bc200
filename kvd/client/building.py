"""Builds a fetch from its promise: a lease, and slabs found or staging memory made.

On the I/O thread. What it holds of a fetch that nobody will have goes back with `abandon`.
"""

import asyncio
import functools

import numpy as np
from google.protobuf.message import Message

from kvd.client.arrivals import Arrivals
from kvd.client.fetch import Fetch
from kvd.client.hold import Granted, Hold
from kvd.client.landing import WINDOW_BYTES, Landing, staging_bytes
from kvd.client.leases import Lease, Moment
from kvd.client.mapping import Buffer
from kvd.client.messages import WHOLES, Promised, garbage, parse_done, parse_ready
from kvd.client.outcomes import Arrival, Delivery, Reason
from kvd.client.readiness import Readiness
from kvd.client.reading import Strips
from kvd.client.scope import Scope, Wish, chunk_keys
from kvd.client.session import Session
from kvd.client.slabs import Slab
from kvd.codec import PROFILES
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, GIB
from kvd.types import PlaneClass
from kvd.v1 import kvd_pb2 as pb

# Of one fetch: rather a miss than an engine out of memory.
STAGING_BYTES_MAX = 4 * GIB
_CLASSES = tuple(PlaneClass)


class Building:
    """One promise of `session` on its way to a fetch; `asked` is the moment before it was asked."""

    def __init__(
        self, scope: Scope, wish: Wish, session: Session, digest: bytes, asked: Moment
    ) -> None:
        self.landing: Landing | None = None
        self.readiness: Readiness | None = None
        self._scope, self._wish, self._session, self._digest = scope, wish, session, digest
        self._asked = asked
        self._number = 0
        self._promised: Promised | None = None
        self._lease: Lease | None = None
        self._staging: Buffer | None = None  # The fetch's, once there is one.
        self._ready = WHOLES
        self._hold: Hold | None = None
        self._end: Message | KvdError | None = None

    def take(self, number: int, promised: Promised) -> KvdError | None:
        """Take a promise over; return why it cannot be used, if so."""
        self._number, self._promised = number, promised
        self._lease = Lease(self._session, promised.lease, promised.lease_ttl_s, self._asked)
        for profile in set(promised.profiles.data):
            if profile not in PROFILES:
                message = f"stored with codec profile {profile}, which this version cannot read"
                return KvdError(ErrorKind.INCOMPATIBLE, message)
        if self._wish.delivery == Delivery.MAP:
            self._ready = promised.ready
            if promised.ready != WHOLES:
                self.readiness = Readiness(self._scope.grid, promised)
            return None
        size = staging_bytes(promised)
        if size > STAGING_BYTES_MAX:
            message = f"{size} bytes by byte delivery, at most {STAGING_BYTES_MAX} at once"
            return KvdError(ErrorKind.OVERLOADED, message)
        try:
            self._staging = self._scope.pool.take(size)
        except KvdError as error:
            return error
        return None

    def mapped(self) -> Fetch | None:
        """Return the fetch when all slabs that the promise names are here; else raise or wait."""
        names = self._names()
        slabs = [self._session.slabs.find(name) for name in names]
        if None in slabs:
            return None
        return self._in_slabs(names, [slab for slab in slabs if slab is not None])

    async def mapped_later(self, timeout_s: float) -> Fetch:
        """Wait for the slabs that the promise names."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        names = self._names()
        slabs = [await self._session.slabs.get(name, deadline) for name in names]
        return self._in_slabs(names, slabs)

    def landed(self) -> Fetch:
        """Let pieces come."""
        promised, requests, number = self._promised, self._session.requests, self._number
        staging = self._staging
        assert promised is not None and staging is not None
        landing = Landing(self._scope.grid, self._wish.layers, promised, staging)
        landing.give_credit = lambda size: requests.credit(number, size)
        self.landing = landing
        fetch = self._fetch(landing.addresses, (landing.arrivals, (), landing))
        requests.deliver_to(number, landing, WINDOW_BYTES)
        return fetch

    def advance(self, message: pb.Ready) -> None:
        """Take in that more is ready; raise for what cannot be meant."""
        promised = self._promised
        if promised is None or self._wish.delivery == Delivery.BYTES:
            return
        ready = parse_ready(message.ready, promised.counts)
        if any(now < before for now, before in zip(ready, self._ready, strict=True)):
            raise garbage(f"{ready} pieces ready where {self._ready} were")
        self._ready = ready
        if self.readiness is not None:
            assert self._lease is not None
            self._lease.moved = True
            self.readiness.advance(ready)

    def end(self, answer: Message | KvdError) -> None:
        """Take the final answer: how much of it is good, and that nothing more comes."""
        self._end = answer
        if self._hold is not None:
            self._conclude(self._hold, answer)

    def abandon(self) -> None:
        if self._lease is not None:
            self._lease.release()
        if self._staging is not None:
            self._scope.pool.give(self._staging)

    def _names(self) -> list[int]:
        assert self._promised is not None
        anchors, residuals, exacts = self._promised.slabs
        return sorted({*anchors.data, *residuals.data, *exacts.data})

    def _in_slabs(self, names: list[int], slabs: list[Slab]) -> Fetch:
        promised, readiness = self._promised, self.readiness
        assert promised is not None
        homes = _addresses(promised, names, slabs)
        if readiness is not None:
            readiness.place(dict(zip(names, slabs, strict=True)))
            return self._fetch(homes, (readiness.arrivals, tuple(slabs), None))
        counted = zip(_CLASSES, promised.counts, strict=True)
        arrivals = [Arrival(c, *self._wish.layers) for c, count in counted if count]
        return self._fetch(homes, (Arrivals.at_once(arrivals), tuple(slabs), None))

    def _fetch(
        self,
        homes: tuple[np.ndarray, ...],
        memory: tuple[Arrivals, tuple[Slab, ...], Landing | None],
    ) -> Fetch:
        scope, lease, promised = self._scope, self._lease, self._promised
        arrivals, slabs, landing = memory
        assert lease is not None and promised is not None
        known = self._wish.chain[: promised.counts[0] * DIGEST_BYTES]
        keys = functools.cache(functools.partial(chunk_keys, self._digest, known))
        shape = (scope.grid, scope.keyspace.chunk_tokens, scope.lane)
        strips = Strips(shape, keys, promised, homes)
        granted = Granted(
            self._number, lease, promised.counts, self._wish.layers, strips, slabs, landing,
            self.readiness,
        )  # fmt: skip
        hold = self._hold = Hold(scope, arrivals, granted, promised.reason)
        if landing is not None:
            landing.on_progress = lambda: setattr(lease, "moved", True)
        lease.watch(hold.lose)
        if self._end is not None:
            self._conclude(hold, self._end)
        return Fetch(scope, arrivals, promised.reason, hold)

    def _conclude(self, hold: Hold, answer: Message | KvdError) -> None:
        arrivals = hold.arrivals
        if isinstance(answer, KvdError):
            arrivals.end(answer)
            return
        assert isinstance(answer, pb.FetchDone)
        try:
            counts, reason = parse_done(answer, hold.granted.counts)
        except KvdError as error:
            arrivals.end(error)
            return
        if reason != Reason.NONE:
            hold.shrink(counts, reason)
        elif self.landing is not None and not self.landing.complete:
            arrivals.end(garbage("the end of a delivery before all of it"))
        if self.readiness is not None:
            self.readiness.complete(counts)
        arrivals.end()


def _addresses(promised: Promised, names: list[int], slabs: list[Slab]) -> tuple[np.ndarray, ...]:
    """Return u64 addresses of all strips per class; raise when one lies outside of its slab."""
    homes = np.array([slab.address for slab in slabs], np.uint64)
    limits = np.array([slab.size for slab in slabs], np.uint64)
    # All classes at once: what costs here is the number of calls.
    which = np.searchsorted(np.array(names, np.uint32), np.concatenate(promised.slabs))
    offsets, sizes = np.concatenate(promised.offsets), np.concatenate(promised.sizes)
    limit = limits[which]
    if (sizes > limit - np.minimum(offsets, limit)).any() or np.bitwise_or.reduce(offsets) % 8:
        raise garbage("a strip that lies outside of its slab")
    a, r, _ = promised.counts
    places = homes[which] + offsets
    return places[:a], places[a : a + r], places[a + r :]

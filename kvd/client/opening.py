"""Opens a fetch: one request, its promise, then slabs awaited or pieces let come.

Runs on the I/O thread. Whatever goes wrong before the promise is complete is a miss, with what
was granted given back.
"""

import asyncio
import functools
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import Message

from kvd.client.arrivals import Arrivals
from kvd.client.fetch import Fetch
from kvd.client.hold import Granted, Hold
from kvd.client.landing import WINDOW_BYTES, Landing, staging_bytes
from kvd.client.leases import Lease, Moment
from kvd.client.messages import Promised, garbage, lane_message, parse_promise
from kvd.client.outcomes import Arrival, Delivery, Reason
from kvd.client.reading import Strips
from kvd.client.scope import Scope, chunk_keys
from kvd.client.session import Session
from kvd.client.slabs import Slab
from kvd.codec import PROFILES
from kvd.errors import ErrorKind, KvdError
from kvd.format.strip import table_bytes
from kvd.limits import DIGEST_BYTES, GIB
from kvd.types import PlaneClass
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

STAGING_BYTES_MAX = (
    4 * GIB
)  # Of one fetch; beyond it a miss is better than an engine out of memory.


@dataclass(frozen=True, slots=True)
class Wish:
    """What a fetch asks for; `layers` is (begin, end), `lease` one that a lookup held, or 0."""

    chain: bytes
    class_count: int
    delivery: Delivery
    rate_bits: int
    deadline_s: float
    lease: int
    layers: tuple[int, int]

    @property
    def chunk_count(self) -> int:
        return len(self.chain) // DIGEST_BYTES


async def open_fetch(scope: Scope, wish: Wish) -> Fetch:
    """Return the fetch once it is promised, or a miss."""
    scope.link.counters.fetches += 1
    try:
        return await _open(scope, wish)
    except KvdError as error:
        return missed_fetch(scope, scope.missed(error))


def missed_fetch(scope: Scope, reason: Reason) -> Fetch:
    """Return a fetch of nothing."""
    arrivals = Arrivals()
    arrivals.end()
    return Fetch(scope, arrivals, reason, None)


async def _open(scope: Scope, wish: Wish) -> Fetch:
    loop = asyncio.get_running_loop()
    deadline_at = loop.time() + wish.deadline_s
    session = scope.link.session()
    handle, digest = await session.keyspace(scope.keyspace, scope.number, wish.deadline_s)
    opening = _Opening(scope, wish, session, digest)
    number = opening.send(handle, deadline_at - loop.time())
    timer = loop.call_at(deadline_at, session.requests.give_up, number)
    opening.final.add_done_callback(lambda _: timer.cancel())
    fetch = None
    try:
        promised = await opening.promised
        if promised.counts[0] == 0:
            scope.link.counters.miss(promised.reason)
            fetch = missed_fetch(scope, promised.reason)
        elif wish.delivery == Delivery.MAP:
            fetch = await opening.mapped(number, promised, deadline_at)
        else:
            fetch = opening.landing(number, promised)
        return fetch
    finally:
        if fetch is None:
            opening.abandon(number)


class _Opening:
    """One fetch between its request and its promise."""

    def __init__(self, scope: Scope, wish: Wish, session: Session, digest: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.promised: asyncio.Future[Promised] = loop.create_future()
        self.final: asyncio.Future[None] = loop.create_future()
        self._scope, self._wish, self._session, self._digest = scope, wish, session, digest
        self._asked = Moment(session)
        self._number = 0
        self._lease: Lease | None = None
        self._landing: Landing | None = None

    def send(self, handle: int, left_s: float) -> int:
        wish = self._wish
        message = pb.FetchRequest(
            keyspace=handle,
            lanes=[lane_message(self._scope.lane)],
            chain=wish.chain,
            class_count=wish.class_count,
            layer_begin=wish.layers[0],
            layer_end=wish.layers[1],
            delivery=int(wish.delivery),  # type: ignore[arg-type]
            rate_bits=wish.rate_bits,
            lease=self._scope.held.take(wish.lease, self._session),
            deadline_ms=max(1, int(left_s * 1000)),
        )
        requests = self._session.requests
        self._number = requests.start(FrameKind.FETCH, message, self._answered, self._told)
        return self._number

    async def mapped(self, number: int, promised: Promised, deadline_at: float) -> Fetch:
        """Wait for the slabs that a promise names; everything in them is there already."""
        numbers = sorted(set(np.concatenate(promised.slabs).tolist()))
        slabs = [await self._session.slabs.get(slab, deadline_at) for slab in numbers]
        homes = _addresses(promised, numbers, slabs)
        arrivals = Arrivals()
        fetch = self._fetch(number, promised, homes, (arrivals, tuple(slabs), None))
        for index, count in enumerate(promised.counts):
            if count:
                arrivals.add(Arrival(PlaneClass(index), *self._wish.layers))
        arrivals.end()
        return fetch

    def landing(self, number: int, promised: Promised) -> Fetch:
        landing = self._landing
        assert landing is not None
        return self._fetch(number, promised, landing.addresses, (landing.arrivals, (), landing))

    def abandon(self, number: int) -> None:
        """Give back what was granted to a fetch that nobody will have."""
        if self._session.alive:
            self._session.requests.cancel(number)
        if self._lease is not None:
            self._lease.release()
        if self._landing is not None:
            self._scope.pool.give(self._landing.staging)

    def _fetch(
        self,
        number: int,
        promised: Promised,
        homes: tuple[np.ndarray, ...],
        memory: tuple[Arrivals, tuple[Slab, ...], Landing | None],
    ) -> Fetch:
        scope, chain, lease = self._scope, self._wish.chain, self._lease
        arrivals, slabs, landing = memory
        assert lease is not None
        known = chain[: promised.counts[0] * DIGEST_BYTES]
        keys = functools.cache(functools.partial(chunk_keys, self._digest, known))
        shape = (scope.grid, scope.keyspace.chunk_tokens, scope.lane)
        sizes = [int(sizes.sum(dtype=np.int64)) for sizes in promised.sizes]
        granted = Granted(
            number, lease, promised.counts, (sizes[0], sizes[1], sizes[2]), self._wish.layers,
            Strips(shape, keys, promised, homes), slabs, landing,
        )  # fmt: skip
        hold = Hold(scope, arrivals, granted)
        if landing is not None:
            landing.on_progress = lambda: setattr(lease, "moved", True)
        lease.watch(hold.lose)
        return Fetch(scope, arrivals, promised.reason, hold)

    # ---- called as frames come ----

    def _told(self, message: pb.Promise) -> None:
        """Take the promise; pieces may follow at once, so their place is made here."""
        promised = parse_promise(
            message, self._wish.chunk_count, table_bytes(self._scope.grid.cell_count)
        )
        if self.promised.done():
            raise garbage("a second promise for one fetch")
        if promised.counts[0] == 0:
            self.promised.set_result(promised)
            return
        self._lease = Lease(self._session, promised.lease, promised.lease_ttl_s, self._asked)
        refusal = self._refusal(promised)
        if refusal is not None:
            self.promised.set_exception(refusal)
            return
        if self._wish.delivery == Delivery.BYTES:
            self._land(promised)
        self.promised.set_result(promised)

    def _refusal(self, promised: Promised) -> KvdError | None:
        unknown = set(promised.profiles.tolist()) - PROFILES.keys()
        if unknown:
            message = f"stored with codec profile {min(unknown)}, which this version cannot read"
            return KvdError(ErrorKind.INCOMPATIBLE, message)
        if self._wish.delivery == Delivery.MAP:
            return None
        size = staging_bytes(promised)
        if size > STAGING_BYTES_MAX:
            message = f"{size} bytes by byte delivery, at most {STAGING_BYTES_MAX} at once"
            return KvdError(ErrorKind.OVERLOADED, message)
        return None

    def _land(self, promised: Promised) -> None:
        staging = self._scope.pool.take(staging_bytes(promised))
        landing = Landing(self._scope.grid, self._wish.layers, promised, staging)
        requests, number = self._session.requests, self._number
        landing.give_credit = lambda size: requests.credit(number, size)
        self._landing = landing
        requests.deliver_to(number, landing, WINDOW_BYTES)

    def _answered(self, answer: Message | KvdError) -> None:
        """Take the final answer."""
        error = answer if isinstance(answer, KvdError) else None
        if not self.final.done():
            self.final.set_result(None)
        if not self.promised.done():
            self.promised.set_exception(error or garbage("the end of a fetch without a promise"))
        elif self._landing is not None:
            if error is None and not self._landing.complete:
                error = garbage("the end of a delivery before all of it")
            self._landing.arrivals.end(error)


def _addresses(promised: Promised, numbers: list[int], slabs: list[Slab]) -> tuple[np.ndarray, ...]:
    """Return u64 addresses of all strips per class; raise when one lies outside of its slab."""
    homes = np.array([slab.address for slab in slabs], np.uint64)
    limits = np.array([slab.size for slab in slabs], np.uint64)
    # All classes at once: what costs here is the number of calls.
    which = np.searchsorted(numbers, np.concatenate(promised.slabs))
    offsets, sizes = np.concatenate(promised.offsets), np.concatenate(promised.sizes)
    limit = limits[which]
    if (sizes > limit - np.minimum(offsets, limit)).any() or (offsets % 8).any():
        raise garbage("a strip that lies outside of its slab")
    a, r, _ = promised.counts
    places = homes[which] + offsets
    return places[:a], places[a : a + r], places[a + r :]

"""Putting: skip what is there, encode, reserve, lay strips in place, seal.

Runs on the caller's thread, which does the work, and asks the daemon through the I/O thread. A
reservation that was opened is always ended, by its last seal or by an abort.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np
from google.protobuf.message import Message

from kvd.client.arrays import CellViews
from kvd.client.messages import column, lane_message
from kvd.client.outcomes import Reason, Stored
from kvd.client.reservation import Reservation, Reserving
from kvd.client.scope import Scope, chunk_keys, told_ms
from kvd.client.seals import Deadline, Seals
from kvd.client.session import Session
from kvd.client.strips import Encoder, Prepared, lay
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, MIB, PAGE_BYTES
from kvd.types import CLASS_COUNT
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

SCRATCH_BYTES = 16 * MIB  # Encoded at once: stays in a large cache until it is copied.
_RESERVED_BYTES_MAX = 128 * MIB  # At once, so that a slow put holds little that others could use.
_LAID_BYTES = 16 * MIB  # Between two seals.
_GROWING_PAUSE_S = 0.05


class Put:
    """One put of chunks of a chain, with the time it has."""

    def __init__(self, scope: Scope, chain: bytes, deadline_s: float, *, to_disk: bool) -> None:
        self._scope, self._chain = scope, chain
        self._to_disk = to_disk
        self._thread = scope.link.thread()
        self._deadline = Deadline(deadline_s)
        self._session: Session | None = None
        self._handle, self._digest = 0, b""
        self._had = 0
        self._reason = Reason.NONE
        # Answered while the next strips are laid; a Reserve is read by the daemon behind them.
        self._seals = Seals(scope, self._deadline)

    def of_tensors(self, views: CellViews, first: int, count: int) -> Stored:
        """Encode and put `count` chunks; chunk `first` of the chain is at token 0 of `views`."""
        scope, end = self._scope, first + count
        encoder = Encoder(scope.grid, scope.keyspace.chunk_tokens, scope.profile)

        def act() -> None:
            at = max(first, min(end, self._complete()))
            self._had += at - first
            while at < end and self._reason == Reason.NONE:
                self._deadline.need_s()
                prepared = encoder.encode(views, range(at, end), first, SCRATCH_BYTES, scope.pool)
                try:
                    self._put_batch(prepared, slice(0, prepared.count), at)
                finally:
                    prepared.give_back(scope.pool)
                at += prepared.count

        return self._tally(act, first, count)

    def of_strips(self, prepared: Prepared, first: int) -> Stored:
        """Put chunks that are encoded already, chunk `first` of the chain being the first."""
        sums = prepared.sizes.sum(axis=1, dtype=np.int64).tolist()

        def act() -> None:
            at = 0
            while at < prepared.count and self._reason == Reason.NONE:
                end, size = at + 1, sums[at]
                while end < prepared.count and size + sums[end] <= _RESERVED_BYTES_MAX:
                    size, end = size + sums[end], end + 1
                self._put_batch(prepared, slice(at, end), first + at)
                at = end

        return self._tally(act, first, prepared.count)

    def touch(self, sizes: np.ndarray) -> None:
        """Reserve strips of `sizes` u32[n, 3], make their pages present here, and give them back.

        For benches: what a first put into new slabs costs once. Raise KvdError without room.
        """
        self._open()
        reason = Reason.GROWING
        while reason == Reason.GROWING:
            with self._reserved(sizes, 0) as (reservation, _):
                reason = reservation.reason
                if reason == Reason.NONE:
                    wanted, left_s = sizes[: reservation.admitted], self._deadline.need_s()
                    reservation.find_slabs(self._thread, self._session, wanted, left_s)
            if reason == Reason.GROWING:
                self._thread.call(asyncio.sleep(_GROWING_PAUSE_S))
        if reason != Reason.NONE:
            raise KvdError(ErrorKind.OVERLOADED, f"no room to touch: {reason}")

    def _tally(self, act: Callable[[], None], first: int, count: int) -> Stored:
        counters = self._scope.link.counters
        counters.puts += 1
        try:
            self._open()
            with self._session.putting(self._thread):
                try:
                    act()
                finally:
                    self._seals.finish()
        except KvdError as error:
            self._reason = self._scope.missed(error)
        seals = self._seals
        had = self._had + seals.coalesced
        refused = count - seals.stored - had
        durable = self._to_disk and not refused and self._is_durable(first, count)
        reason = seals.reason or self._reason
        counters.chunks_stored += seals.stored
        counters.chunks_had += had
        counters.stored_bytes += seals.size_bytes
        return Stored(seals.stored, had, refused, reason, seals.size_bytes, durable)

    def _is_durable(self, first: int, count: int) -> bool:
        """Return whether all chunks are on disk, waiting for those of which it was not said."""
        if self._seals.durable == count:
            return True
        none = np.zeros((0, CLASS_COUNT))
        try:
            sizes = np.full((count, CLASS_COUNT), PAGE_BYTES)
            with self._reserved(sizes, first) as (reservation, reserving):
                if reservation.had < count:  # Some have gone meanwhile.
                    return False
                if not reservation.number:
                    return True
                seal = self._seal(reservation, 0, (none, none), last=True)
                self._seals.add(seal, none, count)
                reserving.sealed()
            self._seals.finish()
        except KvdError as error:
            self._reason = self._scope.missed(error)
            return False
        return self._seals.durable >= count

    # ---- asking ----

    def _ask(self, kind: FrameKind, message: Message) -> Message:
        assert self._session is not None
        return self._thread.call(
            self._session.requests.request(kind, message, self._deadline.need_s())
        )

    def _open(self) -> None:
        self._session = self._scope.link.session()
        registering = self._session.keyspace(
            self._scope.keyspace, self._scope.number, self._deadline.need_s()
        )
        self._handle, self._digest = self._thread.call(registering)

    def _complete(self) -> int:
        """Return how many leading chunks are stored whole."""
        message = pb.LookupRequest(
            keyspace=self._handle,
            lanes=[lane_message(self._scope.lane)],
            chain=self._chain,
            deadline_ms=max(1, int(self._deadline.need_s() * 1000)),
        )
        reply = self._ask(FrameKind.LOOKUP, message)
        assert isinstance(reply, pb.LookupReply)
        return int(column(reply.counts, "<u4", CLASS_COUNT, "counts")[-1])

    @contextlib.contextmanager
    def _reserved(self, sizes: np.ndarray, at: int) -> Iterator[tuple[Reservation, Reserving]]:
        """Reserve places; what is not sealed to its end is aborted, however it is left."""
        assert self._session is not None
        reserving = Reserving(self._session)
        try:
            yield self._reserve(reserving, sizes, at), reserving
        finally:
            if not reserving.is_over:
                self._thread.post(reserving.abort)

    def _reserve(self, reserving: Reserving, sizes: np.ndarray, at: int) -> Reservation:
        begin, end = at * DIGEST_BYTES, (at + len(sizes)) * DIGEST_BYTES
        message = pb.ReserveRequest(
            keyspace=self._handle,
            lane=lane_message(self._scope.lane),
            parent=self._chain[max(0, begin - DIGEST_BYTES) : begin],
            chain=self._chain[begin:end],
            sizes=sizes.astype("<u4").tobytes(),
            durability=pb.DURABILITY_DISK if self._to_disk else pb.DURABILITY_MEMORY,
            deadline_ms=max(1, int(self._deadline.need_s() * 1000)),
        )
        reply = self._thread.call(reserving.ask(message, self._deadline.need_s()))
        return Reservation(reply, len(sizes), durable=self._to_disk)

    # ---- filling ----

    def _put_batch(self, prepared: Prepared, part: slice, at: int) -> None:
        """Put the chunks `part` of what is prepared, the first being chunk `at` of the chain."""
        begin = part.start
        while begin < part.stop:
            sizes = prepared.sizes[begin : part.stop]
            with self._reserved(sizes, at) as (reservation, reserving):
                self._had += reservation.had
                if not reservation.is_empty:
                    self._fill(prepared, begin, at, reservation)
                    reserving.sealed()
            begin, at = begin + reservation.admitted, at + reservation.admitted
            if begin == part.stop or self._reason != Reason.NONE:
                return
            if reservation.reason != Reason.GROWING:
                self._reason = reservation.reason
                self._scope.link.counters.miss(reservation.reason)
                return
            if self._deadline.left_s() < _GROWING_PAUSE_S:
                self._reason = Reason.GROWING
                return
            self._thread.call(asyncio.sleep(_GROWING_PAUSE_S))

    def _fill(self, prepared: Prepared, begin: int, at: int, reservation: Reservation) -> None:
        assert self._session is not None
        groups = reservation.groups(prepared.sizes[begin:], _LAID_BYTES)
        wanted = prepared.sizes[begin : begin + reservation.admitted]
        reservation.find_slabs(self._thread, self._session, wanted, self._deadline.need_s())
        for group in groups:
            sizes = prepared.sizes[begin + group.start : begin + group.stop]
            roots = self._lay(prepared, begin, at, (reservation, group))
            is_last = group is groups[-1]
            seal = self._seal(reservation, group.start, (sizes, roots), last=is_last)
            self._seals.add(seal, sizes, reservation.admitted if is_last else 0)

    def _lay(
        self, prepared: Prepared, begin: int, at: int, what: tuple[Reservation, slice]
    ) -> np.ndarray:
        """Write a group of chunks at its places; return their roots u64[n, 3]."""
        reservation, group = what
        chunks = slice((at + group.start) * DIGEST_BYTES, (at + group.stop) * DIGEST_BYTES)
        keys = chunk_keys(self._digest, self._chain[chunks])
        names = (self._scope.lane, keys, reservation.generation)
        part = slice(begin + group.start, begin + group.stop)
        with reservation.writing(group) as places:
            return lay(prepared, part, places, names)

    def _seal(
        self,
        reservation: Reservation,
        first: int,
        columns: tuple[np.ndarray, np.ndarray],
        *,
        last: bool,
    ) -> "Future[Message]":
        """Send a seal; `columns` are sizes and roots. It is answered while the next is laid."""
        assert self._session is not None
        sizes, roots = columns
        message = pb.SealRequest(
            reservation=reservation.number,
            first=first,
            sizes=sizes.astype("<u4").tobytes(),
            roots=roots.astype("<u8").tobytes(),
            profile=self._scope.profile.id,
            last=last,
        )
        if self._to_disk:
            message.deadline_ms = told_ms(self._deadline.need_s())
        request = self._session.requests.request(FrameKind.SEAL, message, self._deadline.need_s())
        return self._thread.submit(request)

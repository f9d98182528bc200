"""A fetch in the caller's hands: what was promised, what has arrived, decoding, release.

Owns the promise's lease and memory until it is released. Every byte it reports good was checked,
and was the lease's own until after it had been read.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kvd.client.arrays import CellViews, Tensors, target_views
from kvd.client.arrivals import Arrivals, Listener
from kvd.client.landing import Landing
from kvd.client.leases import Lease
from kvd.client.messages import Counts
from kvd.client.outcomes import Arrival, ArrivalCallback, Reason
from kvd.client.reading import Area, Strips, classes_needed
from kvd.client.scope import Scope, invalid
from kvd.client.slabs import Slab
from kvd.codec import EXACT, PLANES
from kvd.errors import ErrorKind, KvdError

_PROOF_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Granted:
    """What a promise brought; `slabs` hold it with mapped delivery, `landing` with the other."""

    request: int
    lease: Lease
    counts: Counts
    class_bytes: tuple[int, int, int]
    layers: tuple[int, int]
    strips: Strips
    slabs: tuple[Slab, ...]
    landing: Landing | None


class Fetch:
    """The answer to `Space.fetch`. A context manager; leaving it releases."""

    def __init__(
        self, scope: Scope, arrivals: Arrivals, reason: Reason, granted: Granted | None
    ) -> None:
        self.reason = reason
        self._scope, self._arrivals, self._granted = scope, arrivals, granted
        self._lock = threading.Lock()
        self._readers = 0
        self._released = granted is None
        self._counted_corrupt = 0

    @property
    def counts(self) -> Counts:
        """Chunks promised of anchor, residual and exact; all 0 is a miss, and `reason` says why."""
        return self._granted.counts if self._granted else (0, 0, 0)

    @property
    def class_bytes(self) -> tuple[int, int, int]:
        """Bytes of the strips promised, per class."""
        return self._granted.class_bytes if self._granted else (0, 0, 0)

    @property
    def error(self) -> KvdError | None:
        """Why arrivals ended before all that was promised had come; None if they did not."""
        return self._arrivals.error

    @property
    def delivered_bytes(self) -> int:
        """Bytes that came as pieces so far; 0 for mapped delivery."""
        landing = self._granted.landing if self._granted else None
        return landing.delivered_bytes if landing else 0

    def arrivals(self) -> Iterator[Arrival]:
        """Iterate over arrivals as they come; ends early, with `error` set, on failure."""
        return iter(self._arrivals)

    def on_arrival(self, callback: ArrivalCallback) -> None:
        """Call back on the I/O thread for every arrival so far and to come. It must be quick."""

        def listener(arrival: Arrival | None) -> None:
            if arrival is not None:
                callback(arrival)

        self.listen(listener)

    def listen(self, listener: Listener) -> None:
        """As `on_arrival`, and told of the end by None."""
        if self._arrivals.ended:  # So that a miss needs no thread, and a child none of its own.
            self._arrivals.listen(listener)
        else:
            self._scope.link.post(self._arrivals.listen, listener)

    def decode(
        self,
        layers: tuple[int, int],
        planes: int,
        targets: Tensors,
        token_begin: int = 0,
        chunks: tuple[int, int] | None = None,
    ) -> int:
        """Decode `layers` (begin, end) of `chunks` (begin, end; default all that were promised).

        Chunk i of the sequence goes to `targets[layer - begin][tensor][:, t : t + chunk_tokens]`
        with t = token_begin + i * chunk_tokens. `planes` is 1 to 8, or EXACT. Return how many
        leading chunks of the range are good; targets behind them are unspecified. Raise INVALID
        for targets that do not fit or a range that was not promised.
        """
        area, class_count = self._area(layers, planes, chunks)
        views = target_views(self._scope.grid, targets, area.layer_end - area.layer_begin)
        self._check_room(views, token_begin, area)
        strips = self._granted.strips if self._granted else None
        if strips is None or area.chunk_begin == area.chunk_end:
            return 0
        return self._read(
            area, class_count, lambda: strips.decode(area, planes, class_count, views, token_begin)
        )

    def verify(self, class_count: int, layers: tuple[int, int] | None = None) -> int:
        """Check roots and cells of the leading classes in place; return the good leading chunks."""
        planes = (1, PLANES, EXACT)[class_count - 1]
        granted = self._granted
        if granted is None:
            return 0
        begin, end = layers or granted.layers
        area = Area(begin, end, 0, granted.counts[class_count - 1])
        assert classes_needed(self._scope.grid, granted.strips.profiles, planes) <= class_count
        return self._read(area, class_count, lambda: granted.strips.check(area, class_count))

    def release(self) -> None:
        """Give everything back, after the readers under way; further decoding answers 0."""
        with self._lock:
            if self._released:
                return
            self._released = True
            idle = self._readers == 0
        if idle:
            self._scope.link.post(self._let_go)

    def __enter__(self) -> "Fetch":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    # ---- reading ----

    def _area(
        self, layers: tuple[int, int], planes: int, chunks: tuple[int, int] | None
    ) -> tuple[Area, int]:
        if not (1 <= planes <= PLANES or planes == EXACT):
            raise invalid(f"planes is {planes}, allowed are 1 to {PLANES} and EXACT ({EXACT})")
        granted = self._granted
        first, last = granted.layers if granted else (0, self._scope.grid.layers)
        if not first <= layers[0] < layers[1] <= last:
            raise invalid(f"layers are {layers}, fetched are {first} to {last}")
        profiles = granted.strips.profiles if granted else [self._scope.profile]
        class_count = classes_needed(self._scope.grid, profiles, planes)
        promised = self.counts[class_count - 1]
        begin, end = chunks if chunks is not None else (0, promised)
        if not 0 <= begin <= end <= promised:
            raise invalid(
                f"chunks are {begin} to {end}, {promised} were promised with {planes} planes"
            )
        return Area(layers[0], layers[1], begin, end), class_count

    def _check_room(self, views: CellViews, token_begin: int, area: Area) -> None:
        tokens = self._scope.keyspace.chunk_tokens
        first, last = token_begin + area.chunk_begin * tokens, token_begin + area.chunk_end * tokens
        if area.chunk_begin < area.chunk_end and not 0 <= first <= last <= views.tokens:
            raise invalid(
                f"targets hold {views.tokens} tokens, {first} to {last} are to be written"
            )

    def _read(self, area: Area, class_count: int, act: Callable[[], int]) -> int:
        """Read under the lease; nothing counts if it may have ended meanwhile."""
        granted = self._granted
        assert granted is not None
        if not self._enter(granted) or not self._arrived(area, class_count):
            return 0
        try:
            end = act()
            held = granted.landing is not None or self._held(granted.lease)
        finally:
            self._leave(granted)
        if not held:
            return 0
        self._count_corrupt(granted.strips)
        self._scope.link.counters.decoded_chunks += end - area.chunk_begin
        return end - area.chunk_begin

    def _arrived(self, area: Area, class_count: int) -> bool:
        return min(self._arrivals.layer_ends[:class_count]) >= area.layer_end

    def _held(self, lease: Lease) -> bool:
        thread = self._scope.link.thread()
        if lease.holds():
            return True
        if thread.is_current():  # Cannot wait for the answer here; so in doubt it is not good.
            return False
        return thread.call(lease.prove(min(self._scope.deadline_s, _PROOF_SECONDS_MAX)))

    def _enter(self, granted: Granted) -> bool:
        if granted.landing is None and not granted.lease.session.alive:
            return False  # In a forked child the memory is not even there.
        with self._lock:
            if self._released or (granted.landing is None and granted.lease.lost):
                return False
            self._readers += 1
        granted.lease.moved = True
        return True

    def _leave(self, granted: Granted) -> None:
        granted.lease.moved = True
        with self._lock:
            self._readers -= 1
            over = self._readers == 0 and (self._released or granted.lease.lost)
        if over:
            self._scope.link.post(self._let_go if self._released else self._drop_views)

    def _count_corrupt(self, strips: Strips) -> None:
        with self._lock:
            fresh = len(strips.corrupt) - self._counted_corrupt
            self._counted_corrupt += fresh
        self._scope.link.counters.checksum_failures += fresh

    # ---- on the I/O thread ----

    def lose(self) -> None:
        """The daemon took the lease back, or is gone."""
        granted = self._granted
        assert granted is not None
        self._scope.link.counters.leases_lost += 1
        if granted.landing is None:
            self._arrivals.end(KvdError(ErrorKind.LOST, "the lease was lost"))
        with self._lock:
            idle = self._readers == 0 and not self._released
        if idle:
            self._drop_views()

    def _drop_views(self) -> None:
        """Tell the daemon of a lost lease that nobody reads its places, so that it can use them."""
        assert self._granted is not None
        if self._granted.lease.lost:
            self._granted.lease.release()

    def _let_go(self) -> None:
        granted = self._granted
        assert granted is not None
        self._arrivals.end()
        session = granted.lease.session
        if session.alive:
            session.requests.cancel(granted.request)
        corrupt = np.array(sorted(granted.strips.corrupt), "<u4")
        granted.lease.release(corrupt.tobytes())
        if granted.landing is not None:
            self._scope.link.counters.delivered_bytes += granted.landing.delivered_bytes
            self._scope.pool.give(granted.landing.staging)

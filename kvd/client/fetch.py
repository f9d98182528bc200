"""A fetch in the caller's hands: what was promised, what has arrived, decoding, release."""

from collections.abc import Iterable, Iterator

from kvd.client.arrays import CellViews, Tensors, target_views
from kvd.client.arrivals import Arrivals, Listener
from kvd.client.hold import Hold
from kvd.client.messages import Counts
from kvd.client.outcomes import Arrival, ArrivalCallback, Reason
from kvd.client.reading import Area, classes_needed
from kvd.client.scope import Scope, check_class_count, invalid
from kvd.codec import EXACT, PLANES
from kvd.errors import KvdError


class Fetch:
    """The answer to `Space.fetch`. A context manager; leaving it releases."""

    def __init__(self, scope: Scope, arrivals: Arrivals, reason: Reason, hold: Hold | None) -> None:
        """`reason` is of a miss, which holds nothing."""
        self._scope, self._arrivals, self._reason, self.hold = scope, arrivals, reason, hold

    @property
    def counts(self) -> Counts:
        """Chunks promised of anchor, residual and exact; all 0 is a miss, and `reason` says why.

        When something could not be read after all, they become less by the end of the arrivals.
        """
        return self.hold.counts if self.hold else (0, 0, 0)

    @property
    def reason(self) -> Reason:
        """Why it is less than was asked for, or has become less than was promised."""
        return self.hold.reason if self.hold else self._reason

    @property
    def class_bytes(self) -> tuple[int, int, int]:
        """Bytes of the strips promised, per class."""
        return self.hold.granted.strips.class_bytes if self.hold else (0, 0, 0)

    @property
    def error(self) -> KvdError | None:
        """Why not all that was promised has come, or why it is gone; None while all is well."""
        return self._arrivals.error

    @property
    def delivered_bytes(self) -> int:
        """Bytes of `class_bytes` that are here so far, in slabs or come as pieces."""
        granted = self.hold.granted if self.hold else None
        if granted is None:
            return 0
        if granted.landing is not None:
            return granted.landing.delivered_bytes
        return granted.readiness.there_bytes if granted.readiness else sum(self.class_bytes)

    def arrivals(self) -> Iterator[Arrival]:
        """Iterate over arrivals as they come; ends early, with `error` set, on failure."""
        return iter(self._arrivals)

    def on_arrival(self, callback: ArrivalCallback) -> None:
        """Call back on the I/O thread for every arrival so far and to come. It must be quick."""

        def listener(arrival: Arrival | None) -> None:
            if arrival is not None:  # On its own, so that what it raises harms no stream.
                self._scope.link.post(callback, arrival)

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
        leading chunks of the range are good, 0 before all its layers have arrived; targets behind
        them are unspecified. Raise INVALID for targets that do not fit or a range that was not
        promised.
        """
        area, class_count = _area_of(self._scope, self.hold, layers, planes, chunks)
        views = target_views(self._scope.grid, targets, area.layer_end - area.layer_begin)
        _check_room(views, token_begin, self._scope.keyspace.chunk_tokens, area)
        hold = self.hold
        if hold is None or area.chunk_begin >= area.chunk_end:
            return 0
        strips = hold.granted.strips
        return hold.read(
            area, class_count, lambda: strips.decode(area, planes, class_count, views, token_begin)
        )

    def verify(self, class_count: int, layers: tuple[int, int] | None = None) -> int:
        """Check roots and cells of the leading classes in place; return the good leading chunks.

        `layers` is (begin, end), default all fetched. Raise INVALID for what was not fetched, which
        would be found bad and condemned.
        """
        check_class_count(class_count)
        hold = self.hold
        if hold is None:
            return 0
        granted = hold.granted
        begin, end = granted.layers if layers is None else layers
        _check_layers((begin, end), granted.layers)
        area = Area(begin, end, 0, hold.counts[class_count - 1])
        return hold.read(area, class_count, lambda: granted.strips.check(area, class_count))

    def pin(self) -> bool:
        """Pin the slabs of a mapped fetch for the GPU; return whether all of them are."""
        slabs = self.hold.granted.slabs if self.hold else ()
        return bool(slabs) and all([s.mapping.pin(writable=s.writable) for s in slabs])

    def release(self, condemned: Iterable[int] = ()) -> None:
        """Give everything back, after the readers under way; further decoding answers 0.

        `condemned` are chunks whose values the caller found wrong: they are not offered again and
        replaced by the next put. What fails its checksum is reported without being asked.
        """
        found = list(condemned)
        promised = self.hold.granted.counts[0] if self.hold else 0
        if found and not 0 <= min(found) <= max(found) < promised:
            raise invalid(f"chunks {min(found)} to {max(found)} of {promised} promised")
        if self.hold is not None:
            self.hold.granted.strips.corrupt.update(found)
            self.hold.release()

    def __enter__(self) -> "Fetch":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _area_of(
    scope: Scope,
    hold: Hold | None,
    layers: tuple[int, int],
    planes: int,
    chunks: tuple[int, int] | None,
) -> tuple[Area, int]:
    """Return what is to be decoded, and of how many classes; raise INVALID.

    What was promised and did not come is no mistake of the caller's: it is left out.
    """
    if not (1 <= planes <= PLANES or planes == EXACT):
        raise invalid(f"planes is {planes}, allowed are 1 to {PLANES} and EXACT ({EXACT})")
    granted = hold.granted if hold else None
    _check_layers(layers, granted.layers if granted else (0, scope.grid.layers))
    profiles = granted.strips.profiles if granted else [scope.profile]
    class_count = classes_needed(scope.grid, profiles, planes)
    promised = granted.counts[class_count - 1] if granted else 0
    good = hold.counts[class_count - 1] if hold else 0
    begin, end = chunks if chunks is not None else (0, good)
    if not 0 <= begin <= end <= promised:
        raise invalid(f"chunks are {begin} to {end}, promised with {planes} planes: {promised}")
    return Area(layers[0], layers[1], begin, min(end, good)), class_count


def _check_layers(layers: tuple[int, int], fetched: tuple[int, int]) -> None:
    if not fetched[0] <= layers[0] < layers[1] <= fetched[1]:
        raise invalid(f"layers are {layers}, fetched are {fetched[0]} to {fetched[1]}")


def _check_room(views: CellViews, token_begin: int, chunk_tokens: int, area: Area) -> None:
    begin = token_begin + area.chunk_begin * chunk_tokens
    end = token_begin + area.chunk_end * chunk_tokens
    if area.chunk_begin < area.chunk_end and not 0 <= begin <= end <= views.tokens:
        raise invalid(f"targets hold {views.tokens} tokens, to be written are {begin} to {end}")

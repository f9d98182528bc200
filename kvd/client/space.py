"""The verbs of one keyspace and lane, blocking: put, lookup, fetch, release; for any thread."""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import numpy as np

from kvd.client import questions
from kvd.client.arrays import Tensors, source_views
from kvd.client.fetch import Fetch
from kvd.client.opening import Outcome, fetch_of, open_here
from kvd.client.outcomes import Cleared, Delivery, Found, Reason, Stored
from kvd.client.put import Put
from kvd.client.scope import Scope, Wish, check_class_count, chunk_count, invalid
from kvd.client.strips import Encoder, Prepared
from kvd.errors import KvdError
from kvd.identity import KVD_CHAIN, Keyspace, chain_digests
from kvd.shape import CellGrid
from kvd.types import CLASS_COUNT, Lane


class FetchHow(TypedDict, total=False):
    """How a fetch is to come. `deadline_s` covers the arrival of everything.

    `rate_bits` paces byte delivery to bits a second, 0 is no pace; `layers` (begin, end) limits it
    to these. `lease` is one of a lookup, to be taken over. `pinned` has the slabs of a mapped fetch
    pinned for the GPU, where there is one.
    """

    rate_bits: int
    deadline_s: float | None
    lease: int
    layers: tuple[int, int] | None
    pinned: bool


class Space:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    @property
    def keyspace(self) -> Keyspace:
        return self.scope.keyspace

    @property
    def lane(self) -> Lane:
        return self.scope.lane

    @property
    def grid(self) -> CellGrid:
        """The cells that this lane holds of every chunk."""
        return self.scope.grid

    def chain(self, tokens: Any, extras: bytes = b"") -> bytes:
        """Return the chain digests of the whole chunks of `tokens`, 32 bytes each, joined.

        `extras` is whatever else changes their KV. Raise INVALID for what are no token ids, and
        for a keyspace whose chain is an engine's own.
        """
        keyspace = self.scope.keyspace
        if keyspace.chain != KVD_CHAIN:
            raise invalid(f"the keyspace's chain is {keyspace.chain}: its engine makes the digests")
        ids = np.asarray(tokens)
        if ids.size == 0:
            return b""
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= 1 << 32:
            raise invalid(f"tokens of shape {ids.shape} and {ids.dtype} are no list of token ids")
        return chain_digests(ids.astype("<u4"), keyspace.chunk_tokens, extras)

    def put(
        self,
        chain: bytes,
        tensors: Tensors,
        first: int = 0,
        durability: str = "memory",
        deadline_s: float | None = None,
    ) -> Stored:
        """Encode and store chunks [first, end of chain) that are not stored yet.

        `tensors[layer][tensor]` is [heads, tokens, width] of the keyspace's dtype, its token 0
        being the first of chunk `first`. What is refused has a reason; a daemon that is away
        refuses all. Durability "disk" returns once all of it is on disk, or at the deadline with
        what is stored not `durable` yet; a daemon without a disk that works refuses all. Raise
        INVALID for tensors that do not fit.
        """
        count = _put_count(chain, first)
        views = source_views(self.scope.grid, tensors)
        needed = count * self.scope.keyspace.chunk_tokens
        if views.tokens < needed:
            raise invalid(f"tensors hold {views.tokens} tokens, {count} chunks need {needed}")
        if count == 0:
            return Stored(0, 0, 0, Reason.NONE, 0)
        return self._start_put(chain, durability, deadline_s).of_tensors(views, first, count)

    def prepare(self, tensors: Tensors, first: int = 0) -> Prepared:
        """Encode all whole chunks of `tensors` for `put_strips`, chunk `first` being the first.

        Raise OVERLOADED without memory for them.
        """
        scope = self.scope
        if first < 0:
            raise invalid(f"first is {first}, it must be 0 or more")
        views = source_views(scope.grid, tensors)
        count = views.tokens // scope.keyspace.chunk_tokens
        if count == 0:
            raise invalid(f"tensors hold {views.tokens} tokens, less than a chunk")
        encoder = Encoder(scope.grid, scope.keyspace.chunk_tokens, scope.profile)
        return encoder.encode(views, range(first, first + count), first, 1 << 62, scope.pool)

    def put_strips(
        self,
        chain: bytes,
        prepared: Prepared,
        first: int = 0,
        durability: str = "memory",
        deadline_s: float | None = None,
    ) -> Stored:
        """Store prepared strips of chunks [first, end of chain): checksums, places, copy, seal.

        Raise INVALID for strips of another shape or profile, or prepared with another `first`.
        """
        count = _put_count(chain, first)
        prepared.check(self.scope.grid, self.scope.keyspace.chunk_tokens, first)
        if prepared.count != count or count == 0:
            raise invalid(f"{prepared.count} chunks are prepared, the chain has {count} to put")
        if prepared.profile != self.scope.profile:
            raise invalid(f"prepared with codec profile {prepared.profile.id}, not this space's")
        return self._start_put(chain, durability, deadline_s).of_strips(prepared, first)

    def lookup(
        self,
        chain: bytes,
        *,
        lease: bool = False,
        lanes: Sequence[Lane] | None = None,
        deadline_s: float | None = None,
    ) -> Found:
        """Return how many leading chunks of each class are stored.

        With `lanes` the minimum over them instead of this lane's own. With `lease` they stay for
        the lease's time, until a fetch takes it over or `release` is called.
        """
        question = questions.lookup(self.scope, chain, lanes, deadline_s, lease=lease)
        return questions.found_of(self.scope, question.ask_here())

    def prefetch(
        self,
        chain: bytes,
        class_count: int = CLASS_COUNT,
        *,
        lanes: Sequence[Lane] | None = None,
        deadline_s: float | None = None,
    ) -> Found:
        """Have the daemon read what is only on its disk into memory.

        Return at once how many leading chunks of each class are there or on their way: less than a
        lookup finds where there is no room. Nothing is held: a fetch is to follow.
        """
        question = questions.prefetch(self.scope, chain, class_count, lanes, deadline_s)
        return questions.found_of(self.scope, question.ask_here())

    def clear(self, deadline_s: float | None = None) -> Cleared:
        """Forget all chunks of this keyspace, of all its lanes.

        When it returns without a reason, they would not come back after a crash either.
        """
        question = questions.clear(self.scope, deadline_s)
        return questions.cleared_of(self.scope, question.ask_here())

    def release(self, lease: int) -> None:
        """Give back the lease of a lookup."""
        questions.let_go(self.scope, lease)

    def fetch(
        self,
        chain: bytes,
        class_count: int = CLASS_COUNT,
        delivery: Delivery = Delivery.MAP,
        **how: Unpack[FetchHow],
    ) -> Fetch:
        """Ask for the longest stored prefix of the leading classes; return when it is promised."""
        wish = self.wish(chain, class_count, delivery, how)
        try:
            outcome: Outcome = open_here(self.scope, wish)
        except KvdError as error:
            outcome = error
        fetch = fetch_of(self.scope, outcome)
        if how.get("pinned") and fetch.hold is not None:
            fetch.hold.pin()
        return fetch

    def wish(
        self,
        chain: bytes,
        class_count: int,
        delivery: Delivery,
        how: FetchHow,
    ) -> Wish:
        """Return a fetch's checked arguments; raise INVALID."""
        chunk_count(chain)
        layers, rate_bits = how.get("layers"), how.get("rate_bits", 0)
        whole = (0, self.scope.grid.layers)
        begin, end = layers or whole
        if not 0 <= begin < end <= whole[1]:
            raise invalid(f"layers are {layers}, the lane has 0 to {whole[1]}")
        check_class_count(class_count)
        if not 0 <= rate_bits < 1 << 64:
            raise invalid(f"rate_bits is {rate_bits}, it must be 0 or more")
        kind = Delivery(delivery)
        seconds = self.scope.deadline(how.get("deadline_s"))
        of_layers, lease = (whole if kind == Delivery.MAP else (begin, end)), how.get("lease", 0)
        return Wish(chain, class_count, kind, rate_bits, seconds, lease, of_layers)

    def _start_put(self, chain: bytes, durability: str, deadline_s: float | None) -> Put:
        if durability not in ("memory", "disk"):
            raise invalid(f"durability is {durability!r}, allowed are 'memory' and 'disk'")
        scope = self.scope
        return Put(scope, chain, scope.deadline(deadline_s), to_disk=durability == "disk")


def _put_count(chain: bytes, first: int) -> int:
    total = chunk_count(chain)
    if not 0 <= first <= total:
        raise invalid(f"first is {first}, the chain has {total} chunks")
    return total - first

"""What must hold in the simulated world, and the rare situations that it must have been in.

Judges by the world's own records and by brute force over the core's tables; decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvd.core.effects import FetchDone, Found, Outcome, Promise, Shortfall
from kvd.core.events import Delivery, FetchWanted, LookupWanted
from kvd.core.index import NO_ROW
from kvd.core.state import State
from kvd.errors import KvdError
from kvd.limits import DIGEST_BYTES
from kvd.testing.memory import Fill, Memory
from kvd.types import CLASS_COUNT

# Each must happen over the seeds of a test, or the world does not show what it claims to show.
SOMETIMES = (
    "a coalesced seal", "a seal in parts", "a skipped seal", "an orphaned seal",
    "a replace", "a replace while leased", "a tail returned",
    "an evicted strip while others fill", "a promise with fewer exact than anchors",
    "a read under a live lease", "a lease lost during a read", "a read discarded by the counter",
    "wrong bytes caught by the counter", "a read past the end of its session",
    "a lease renewed", "a lease taken over", "a lookup with a lease never used",
    "a release twice", "a renewal too late", "a corrupt report", "a condemned shortfall",
    "a shortfall", "everything promised", "another tenant's chunk not seen",
    "a delivery completed", "a delivery stopped at its deadline", "a delivery cancelled",
    "a delivery that found wrong bytes", "a delivery that outlived its lease",
    "a delivery that outlived its session", "a release during delivery",
    "a reservation lost", "a reservation aborted", "a reservation left open",
    "a zombie write into a quarantined extent", "a zombie write into a destroyed slab",
    "a recall honoured", "a recall refused", "a detach ignored",
    "a slab given again for writing",
    "a slab failed", "a slab destroyed", "a foreign slab made anew",
    "a session ended while its process lives", "a session closed while its process lives",
    "a process gone at once", "draining",
    "refused: capacity", "refused: growing", "refused: prefix broken",
    "refused: lost reservation", "refused: draining",
    "refused: too many keyspaces", "refused: too many reservations", "refused: too many leases",
    "refused: too many leased bytes", "refused: too many requests",
)  # fmt: skip


class Violation(AssertionError):
    """An invariant did not hold; the message begins with its number."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise Violation(message)


@dataclass(slots=True)
class Wish:
    """A question of a client that waits for its one final answer (I10)."""

    event: Any
    on_answer: Callable[[Outcome], None]  # When the client receives it.
    on_promise: Callable[[Promise], None] | None = None
    note: Callable[[Outcome], None] | None = None  # At the very step, for the world's records.
    at_least: tuple[int, int, int] = (0, 0, 0)  # What a lookup's lease holds for it.
    deadline_ns: int = 0
    promise: Promise | None = None


class Wishes:
    """The wishes that are open, by request id."""

    def __init__(self) -> None:
        self.open: dict[int, Wish] = {}

    def answer(self, request: int) -> Wish:
        require(request in self.open, f"I10: wish {request} is answered twice, or was never made")
        return self.open.pop(request)

    def void(self, session: int) -> None:
        """Forget the wishes of a session that ended: there is nobody left to answer."""
        for request in [r for r, wish in self.open.items() if wish.event.session == session]:
            del self.open[request]

    def check_asked(self, state: State, request: int) -> None:
        """Require that a wish was answered at once, unless it waits for a delivery."""
        wish = self.open.get(request)
        waits = wish is not None and getattr(wish.event, "delivery", None) == Delivery.BYTES
        require(wish is None or waits, f"I10: wish {request} was not answered")
        require(not waits or request in state.pending, f"I10: nobody will answer {request}")

    def check_deadlines(self, now_ns: int) -> None:
        for request, wish in self.open.items():
            require(wish.deadline_ns > now_ns, f"I10: wish {request} has no answer by its deadline")


def counts_by_walk(state: State, event: LookupWanted | FetchWanted) -> tuple[int, ...]:
    """Return the leading chunks that all lanes have and offer, per class, chunk by chunk."""
    digest = state.sessions[event.session].keyspaces[event.keyspace][0]
    trees = [state.index.trees_by_key.get((digest, lane)) for lane in event.lanes]
    starts = range(0, len(event.chain), DIGEST_BYTES)
    counts = [0] * CLASS_COUNT
    for plane_class in range(CLASS_COUNT):
        for at in starts:
            chain = event.chain[at : at + DIGEST_BYTES]
            rows = [tree.rows.get(chain, NO_ROW) if tree else NO_ROW for tree in trees]
            if any(row == NO_ROW or state.index.condemned[row] for row in rows):
                break
            if not all(state.index.slab[row, plane_class] for row in rows):
                break
            counts[plane_class] += 1
    return tuple(counts)


def check_found(state: State, event: LookupWanted, found: Found) -> None:
    require(found.counts == counts_by_walk(state, event), f"I6: a lookup found {found.counts}")
    require(bool(found.lease) == bool(event.lease and found.counts[0]), "a lookup's lease")


def check_promise(memory: Memory, wish: Wish, promise: Promise, owner: tuple[str, bytes]) -> None:
    """I1, I2, I5, I6: what is named was sealed, by this tenant, and is what was asked for."""
    event, counts, asked = wish.event, promise.counts, wish.event.class_count
    chunks = len(event.chain) // DIGEST_BYTES
    require(chunks >= counts[0] >= counts[1] >= counts[2], f"I6: promised {counts}")
    require(not any(counts[asked:]), f"I6: promised {counts} of {asked} classes")
    whole = all(count == chunks for count in counts[:asked])
    reason = promise.reason
    require(whole == (reason == Shortfall.NONE), f"I5: promised {counts} of {chunks}: {reason}")
    require(bool(promise.lease) == bool(counts[0]), f"I5: promised {counts} without a lease")
    held = wish.at_least[:asked]
    kept = reason == Shortfall.CONDEMNED or all(
        count >= least for count, least in zip(counts, held, strict=False)
    )
    require(kept, f"I5: promised {counts}, a lease held {held}")
    if not counts[0]:
        return
    require(len(promise.lanes) == len(event.lanes), "I5: a lane is missing")
    for lane, columns in zip(event.lanes, promise.lanes, strict=True):
        for chunk in range(counts[0]):
            chain = event.chain[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]
            fill = memory.find_fill(int(columns.generations[chunk]), chain)
            require(fill is not None and fill.sealed, f"I1: chunk {chunk} was not sealed")
            named = (fill.tenant, fill.keyspace, fill.lane)
            require(named == (*owner, lane), f"tenants: {owner} was promised a chunk of {named}")
            require(not fill.reported, f"I5: chunk {chunk} was reported corrupt and is offered")
            for c in [c for c in range(CLASS_COUNT) if chunk < counts[c]]:
                _check_strip(fill, c, columns.sizes[c][chunk], columns.roots[c][chunk])


def _check_strip(fill: Fill, plane_class: int, size: np.uint32, root: np.uint64) -> None:
    require(int(size) == fill.sizes[plane_class], f"I2: size {size}, sealed {fill.sizes}")
    require(int(root) == fill.root(plane_class), f"I2: root {root} of another strip")


def check_done(wish: Wish, outcome: FetchDone | KvdError) -> None:
    """I5: what was promised was delivered, or the answer says that it was not."""
    promise = wish.promise
    require(promise is not None, "I5: a fetch ended without a promise")
    if wish.event.delivery == Delivery.BYTES and isinstance(outcome, FetchDone):
        sizes = [int(sizes.sum()) for lane in promise.lanes for sizes in lane.sizes]
        require(outcome.delivered_bytes == sum(sizes), f"I5: {outcome} of {sum(sizes)} promised")

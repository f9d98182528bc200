"""What must hold in the simulated world, as its clients see it.

Judges by the world's own records and by brute force over the core's tables; decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvd.core.effects import WHOLES, Deliver, FetchDone, Found, Outcome, Promise, Shortfall
from kvd.core.events import (
    ClearWanted,
    Delivery,
    FetchWanted,
    LookupWanted,
    PrefetchWanted,
    SealWanted,
)
from kvd.core.index import NO_ROW
from kvd.core.state import State
from kvd.limits import DIGEST_BYTES
from kvd.testing.memory import Fill, Memory, Strip
from kvd.types import CLASS_COUNT

Counts = Ready = tuple[int, int, int]
Question = LookupWanted | PrefetchWanted | FetchWanted
Slabs = dict[int, np.ndarray]


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
    on_ready: Callable[[Ready], None] | None = None
    note: Callable[[Outcome], None] | None = None  # At the very step, for the world's records.
    at_least: tuple[int, int, int] = (0, 0, 0)  # What a lookup's lease holds for it.
    deadline_ns: int = 0
    promise: Promise | None = None
    ready: Ready = (0, 0, 0)  # Of the promise, as was said last.


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
        """Require that a wish was answered at once, unless it may wait for a hand."""
        wish = self.open.get(request)
        if wish is None:
            return
        match wish.event:
            case FetchWanted(delivery=delivery):
                postponed = request in state.postponed and wish.promise is None
                waits = postponed or delivery == Delivery.BYTES or wish.ready != WHOLES
                known = postponed or request in state.pending
                require(known, f"I10: nobody will answer {request}")
            case SealWanted(deadline_ns=deadline_ns):
                waits = deadline_ns > 0
            case _:
                waits = isinstance(wish.event, ClearWanted)
        require(waits, f"I10: wish {request} was not answered")

    def check_deadlines(self, now_ns: int) -> None:
        for request, wish in self.open.items():
            require(wish.deadline_ns > now_ns, f"I10: wish {request} has no answer by its deadline")


def counts_by_walk(state: State, event: Question) -> Counts:
    """Return the leading chunks that all lanes have and offer, per class, chunk by chunk."""
    digest = state.sessions[event.session].keyspaces[event.keyspace][0]
    trees = [state.index.trees_by_key.get((digest, lane)) for lane in event.lanes]
    starts = range(0, len(event.chain), DIGEST_BYTES)
    counts = [0] * CLASS_COUNT
    for plane_class in range(getattr(event, "class_count", CLASS_COUNT)):
        for at in starts:
            chain = event.chain[at : at + DIGEST_BYTES]
            rows = [tree.rows.get(chain, NO_ROW) if tree else NO_ROW for tree in trees]
            if any(row == NO_ROW or state.index.condemned[row] for row in rows):
                break
            if not all(state.index.present[row, plane_class] for row in rows):
                break
            counts[plane_class] += 1
    return counts[0], counts[1], counts[2]


def check_found(state: State, event: LookupWanted | PrefetchWanted, found: Found) -> None:
    counts = counts_by_walk(state, event)
    if isinstance(event, PrefetchWanted):
        # There may be no room to read all of it into.
        fewer = all(f <= c for f, c in zip(found.counts, counts, strict=True))
        falling = found.counts[0] >= found.counts[1] >= found.counts[2]
        require(fewer and falling, f"I6: a prefetch found {found} of {counts}")
        require(not found.lease, "a prefetch with a lease")
        return
    require(found.counts == counts, f"I6: a lookup found {found.counts}")
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
    kept = reason not in (Shortfall.NONE, Shortfall.NOT_STORED) or all(
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
            require(not fill.cleared, f"clear: chunk {chunk} was cleared and is offered")
            for c in [c for c in range(CLASS_COUNT) if chunk < counts[c]]:
                _check_strip(fill, c, columns.sizes[c][chunk], columns.roots[c][chunk])


def _check_strip(fill: Fill, plane_class: int, size: np.uint32, root: np.uint64) -> None:
    require(int(size) == fill.sizes[plane_class], f"I2: size {size}, sealed {fill.sizes}")
    require(int(root) == fill.root(plane_class), f"I2: root {root} of another strip")


def strips_of(memory: Memory, named: Promise | Deliver, chain: bytes, slabs: Slabs) -> list[Strip]:
    """Return the promised strips in order of class, lane, chunk, through the given mappings."""
    strips = []
    for c in range(CLASS_COUNT):
        for lane, columns in enumerate(named.lanes):
            for chunk in range(named.counts[c]):
                digest = chain[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]
                fill = memory.find_fill(int(columns.generations[chunk]), digest)
                slab, offset = int(columns.slabs[c][chunk]), int(columns.offsets[c][chunk])
                require(slab in slabs, f"slab {slab} was named to a session that never got it")
                size = int(columns.sizes[c][chunk])
                strips.append(Strip(slab, slabs[slab], offset, size, fill, c, lane, chunk))
    return strips


def check_ready(memory: Memory, wish: Wish, ready: Ready, counts: Counts | None = None) -> None:
    """I1: what is said to be ready is there, all words of it; up to `counts` where less is left."""
    counts = counts or wish.promise.counts
    for strip in strips_of(memory, wish.promise, wish.event.chain, memory.slabs):
        if strip.chunk >= counts[strip.plane_class]:
            continue
        word = strip.wrong_word(strip.ready_sectors(ready[strip.plane_class]))
        if word is not None:
            what = f"class {strip.plane_class} of chunk {strip.chunk} is said to be ready: {ready}"
            raise Violation(f"I1: {what}, but there is {memory.origin(word)}")


def check_more_ready(memory: Memory, wish: Wish, ready: Ready) -> None:
    grown = all(now >= before for now, before in zip(ready, wish.ready, strict=True))
    require(grown, f"I1: ready shrinks from {wish.ready} to {ready}")
    wish.ready = ready
    check_ready(memory, wish, ready)


def check_done(memory: Memory, wish: Wish, outcome: FetchDone) -> None:
    """I5: what was promised was delivered, or the answer says that it was not."""
    promise = wish.promise
    require(promise is not None, "I5: a fetch ended without a promise")
    if wish.event.delivery == Delivery.BYTES:
        require(outcome.reason == Shortfall.NONE, f"I5: a delivery ended with {outcome}")
        sizes = [int(sizes.sum()) for lane in promise.lanes for sizes in lane.sizes]
        require(outcome.delivered_bytes == sum(sizes), f"I5: {outcome} of {sum(sizes)} promised")
    elif outcome.reason == Shortfall.NONE:
        check_ready(memory, wish, WHOLES)
    else:
        _check_cut(memory, wish, outcome)


def _check_cut(memory: Memory, wish: Wish, outcome: FetchDone) -> None:
    """Require that a promise was cut where a strip could not be read, and nowhere else."""
    counts, promised = outcome.counts, wish.promise.counts
    require(outcome.reason == Shortfall.READ_FAILED, f"I5: a promise ended with {outcome}")
    require(counts[0] >= counts[1] >= counts[2], f"I6: {outcome} is left of a promise")
    fewer = all(left <= all_ for left, all_ in zip(counts, promised, strict=True))
    require(fewer and counts != promised, f"I5: {outcome} of {promised} promised")
    check_ready(memory, wish, WHOLES, counts)
    for plane_class in range(CLASS_COUNT):
        chunk, limit = counts[plane_class], counts[max(0, plane_class - 1)]
        if chunk == promised[plane_class] or (plane_class and chunk == limit):
            continue
        digest = wish.event.chain[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]
        fills = (
            memory.find_fill(int(lane.generations[chunk]), digest) for lane in wish.promise.lanes
        )
        failed = any((fill.id, plane_class) in memory.unreadable for fill in fills)
        require(failed, f"I5: class {plane_class} of chunk {chunk} is cut, and could be read")

"""One put of the simulated world: reserve, fill piece by piece, seal in parts, or go wrong.

The process writes on for as long as it lives and has not said that it stopped, whatever became of
its session: a zombie's writes must do no harm.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvd.clock import NS_PER_MS
from kvd.core.effects import (
    Aborted,
    NotAdmitted,
    Outcome,
    ReserveState,
    Sealed,
    SealState,
)
from kvd.core.events import AbortWanted, ReserveWanted, SealWanted
from kvd.core.index import NO_ROW
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, PAGE_BYTES
from kvd.testing.memory import Fill, Strip
from kvd.testing.oracles import require
from kvd.types import CLASS_COUNT, Extent, Lane

if TYPE_CHECKING:
    from kvd.testing.client import Client

Prefix = tuple[int, bytes, tuple[Lane, ...]]  # Keyspace, chain, lanes.
FATES = {"seal": 60, "skip": 6, "abort": 8, "early end": 6, "stall": 14, "leave open": 6}
DEADLINES_MS = (20, 200, 1500, 8000)  # Of a Seal that shall be durable.
REWRITES = 20  # By a zombie, of places it was once given.
LAID_ON, LAID_MS = 4, 40  # How often, and how long, a client writes that was not told yet.


@dataclass(frozen=True, slots=True)
class _Seal:
    """What was asked to be made visible; `orphans` may be refused."""

    first: int
    sizes: np.ndarray
    orphans: set[int]
    asked_ns: int
    last: bool


def choose_prefix(client: "Client") -> Prefix:
    """Return a keyspace that it has, the beginning of a document, and lanes."""
    rng, world = client.world.rng, client.world
    keyspace = rng.choice(sorted(client.handles))
    document = world.documents[min(rng.randrange(len(world.documents)) for _ in range(2))]
    count = len(document) // DIGEST_BYTES
    chain = document[: rng.randint(1 + count // 2, count) * DIGEST_BYTES]
    lanes = list(world.lanes)
    rng.shuffle(lanes)
    return keyspace, chain, tuple(lanes[: rng.choice((1, 1, 2))])


class Put:
    def __init__(self, client: "Client", where: Prefix | None = None) -> None:
        self.client, self.world = client, client.world
        rng = self.world.rng
        self.fate = rng.choices(tuple(FATES), tuple(FATES.values()))[0]
        self.keyspace, self._prefix, lanes = where or choose_prefix(client)
        self.lane = lanes[0]
        count = len(self._prefix) // DIGEST_BYTES
        self._first = rng.randrange(count) if rng.random() < 0.2 else 0
        self.chain = self._prefix[self._first * DIGEST_BYTES :]
        self.count = count - self._first
        parent = self._prefix[: self._first * DIGEST_BYTES][-DIGEST_BYTES:]
        units = [rng.choices((1, 2, 3), (6, 3, 1), k=CLASS_COUNT) for _ in range(self.count)]
        self._reserved = np.array(units, np.uint32) * self.world.conditions.unit_bytes
        self._durable = rng.random() < (0.4 if self.world.tier else 0.02)
        self._clears = self.world.clears[client.digests[self.keyspace]]
        self.finished = False  # The client said that it writes no more.
        self.reservation = 0
        self._fills: dict[int, Fill] = {}
        self._strips: dict[int, list[Strip]] = {}
        self._replaces: set[int] = set()
        self._sealed = 0  # Chunks up to here were asked to be sealed.
        self._in_order, self._stalled, self._rewrites = True, False, 0
        self._half = False  # Of the strip that is being written.
        self._progress_ns = self.world.now_ns
        handle, session = client.handles[self.keyspace], client.session
        fields = (handle, self.lane, parent, self.chain, self._reserved, self._durable)
        client.ask(
            lambda request: ReserveWanted(request, session, *fields),
            self._on_reserved,
            note=self._note_reserved,
        )

    def digest(self, chunk: int) -> bytes:
        return self.chain[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]

    def _note_reserved(self, outcome: Outcome) -> None:
        """Record what was given at the very step, before any other event."""
        if isinstance(outcome, KvdError):
            return
        rng, world = self.world.rng, self.world
        states = outcome.states.tolist()
        refused = [state == ReserveState.NOT_ADMITTED for state in states]
        require(refused == sorted(refused), f"a place behind a refused chunk: {states}")
        require(any(refused) == (outcome.reason != NotAdmitted.NONE), "a refusal without a reason")
        index, known = world.state.index, self.client.rows_of(self.keyspace, self.lane)
        for chunk, state in enumerate(states):
            row = known.get(self.digest(chunk), NO_ROW)
            if state == ReserveState.HAVE:
                require(row != NO_ROW and index.complete(row), f"chunk {chunk} is not had")
                fill = world.memory.find_fill(int(index.generation[row]), self.digest(chunk))
                require(not fill.cleared, f"clear: chunk {chunk} was cleared and is had")
            if state not in (ReserveState.RESERVED, ReserveState.REPLACE):
                continue
            owner = (self.client.tenant, self.client.digests[self.keyspace], self.lane)
            fresh = outcome.generation > world.generations_given
            require(fresh, f"I2: generation {outcome.generation} was given before a restart")
            if world.state.ssd is None or world.state.ssd.catalog_fault is None:
                # Else the catalog cannot hear of it, and it may come again.
                world.generation = max(world.generation, outcome.generation)
            fill = world.memory.begin_fill(owner, self.digest(chunk), outcome.generation)
            cut = rng.randint(0, world.conditions.unit_pages) if rng.random() < 0.4 else 0
            sizes = np.maximum(self._reserved[chunk] - cut * PAGE_BYTES, PAGE_BYTES)
            fill.sizes = tuple(sizes.tolist())
            self._fills[chunk] = fill
            for c, size in enumerate(self._reserved[chunk].tolist()):
                place = int(outcome.slabs[chunk, c]), int(outcome.offsets[chunk, c])
                world.demands.check_given(Extent(*place, size), f"a place for chunk {chunk}")
            if state == ReserveState.REPLACE:
                self._replaces.add(chunk)

    def _on_reserved(self, outcome: Outcome) -> None:
        if isinstance(outcome, KvdError) or not outcome.reservation:
            return
        self.reservation = outcome.reservation
        for chunk, fill in self._fills.items():
            places = zip(outcome.slabs[chunk], outcome.offsets[chunk], fill.sizes, strict=True)
            strips = []
            for c, (slab, offset, size) in enumerate(places):
                mapping = self.client.mapped.get(int(slab))
                require(mapping is not None, f"slab {slab} is to be filled but was not given")
                strips.append(Strip(int(slab), mapping, int(offset), size, fill, c))
            self._strips[chunk] = strips
        if self.fate == "leave open":
            self.world.saw("a reservation left open")
        self._wait()

    def _wait(self) -> None:
        rng, delay_ms = self.world.rng, self.world.rng.choice((1, 5, 40))
        if self.fate == "stall" and not self._stalled and rng.random() < 0.5:
            self._stalled = True
            delay_ms = self.world.limits.reservation_ttl_ns // NS_PER_MS + 600
        self.client.pacer.after(delay_ms * NS_PER_MS, self._work)

    def _work(self) -> None:
        if not (self.client.alive or self.client.has_child) or self.finished:
            return
        if not self.client.open:
            self._haunt()
            return
        lost = {s.slab for strips in self._strips.values() for s in strips} - self.client.writable
        if lost:
            # Detached meanwhile, as the daemon seems not to know: nothing can be written there.
            self.abort()
            for slab in sorted(lost):
                self.client.detach(slab)
            return
        unwritten = [c for c, fill in self._fills.items() if fill.written < CLASS_COUNT]
        for chunk in unwritten[: self.world.rng.randint(1, 3)]:
            self._write(chunk)
        if unwritten[1:] and self.fate == "abort" and len(unwritten) * 2 < len(self._fills):
            self.abort()
        elif self.fate != "leave open" and (not unwritten or self.world.rng.random() < 0.3):
            self._seal()
        if not self.finished:
            self._wait()

    def _write(self, chunk: int) -> None:
        """Write one strip, or half of it, of a chunk."""
        fill = self._fills[chunk]
        strip = self._strips[chunk][fill.written]
        if self.world.rng.random() < 0.2 and not self._half:
            self._half = True
            strip.write(0, strip.sectors // 2)
            return
        self._half = False
        strip.write(0, strip.sectors)
        if self.world.rng.random() < 0.004:
            strip.damage()
        fill.written += 1

    def _haunt(self) -> None:
        """Write as a process that does not know that its session is over."""
        world = self.world
        # What it said that it detached from it can write no more, nor can a child forked since.
        chunks = {
            chunk: [strip for strip in strips if strip.slab in self.client.writable]
            for chunk, strips in self._strips.items()
            if not self._fills[chunk].sealed and chunk >= self._sealed
        }
        chunks = {chunk: strips for chunk, strips in chunks.items() if strips}
        if not chunks or self._rewrites >= REWRITES:
            return
        self._rewrites += 1
        chunk = world.rng.choice(sorted(chunks))
        strip = world.rng.choice(chunks[chunk])
        strip.write(0, strip.sectors)
        reserved = int(self._reserved[chunk, strip.plane_class])
        extent = Extent(strip.slab, strip.offset, reserved)
        if strip.slab not in world.state.slabs:
            world.saw("a zombie write into a destroyed slab")
        elif extent in world.state.quarantine.get(self.client.session, ()):
            world.saw("a zombie write into a quarantined extent")
        self.client.pacer.after(world.rng.choice((20, 200)) * NS_PER_MS, self._work)

    def _seal(self) -> None:
        """Ask to make visible what is written, from where the last seal ended."""
        first, end = self._sealed, self._sealed
        while end < self.count and (end not in self._fills or self._fills[end].written == 3):
            end += 1
        if first == end:
            return
        if self.fate == "skip" and end - first > 1 and self._in_order:
            first, self._in_order = first + 1, False
        if self.fate == "early end" and end - first > 1:
            end -= 1
        last = end == self.count or self.fate == "early end"
        if not last:
            self.world.saw("a seal in parts")
        self._sealed, self.finished = end, last
        sizes = self._reserved[first:end].copy()
        roots = np.zeros(sizes.shape, np.uint64)
        for chunk in range(first, end):
            if fill := self._fills.get(chunk):
                sizes[chunk - first] = fill.sizes
                roots[chunk - first] = [fill.root(c) for c in range(CLASS_COUNT)]
        deadline_ns = 0
        if self._durable:
            deadline_ns = self.world.now_ns + self.world.rng.choice(DEADLINES_MS) * NS_PER_MS
        orphans = {chunk for chunk in range(first, end) if self._may_be_orphan(chunk)}
        seal = _Seal(first, sizes, orphans, self.world.now_ns, last)
        fields = (self.reservation, first, sizes, roots, 1, last, deadline_ns)
        asked = self.client.ask(
            lambda request: SealWanted(request, self.client.session, *fields),
            _ignore,
            note=lambda outcome: self._note_sealed(outcome, seal),
        )
        if asked in self.world.wishes.open:
            self._note_visible(first, end)

    def _may_be_orphan(self, chunk: int) -> bool:
        """Return whether what it stands on was cleared or condemned, or a hand is busy with it."""
        if self._clears != self.world.clears[self.client.digests[self.keyspace]]:
            return True
        index, known = self.world.state.index, self.client.rows_of(self.keyspace, self.lane)
        row = known.get(self.digest(chunk), NO_ROW)
        if row != NO_ROW and index.busy(row):
            return True
        before = self._prefix[: (self._first + chunk) * DIGEST_BYTES]
        digests = [before[at : at + DIGEST_BYTES] for at in range(0, len(before), DIGEST_BYTES)]
        rows = [known.get(digest, NO_ROW) for digest in digests]
        return any(row == NO_ROW or index.condemned[row] for row in rows)

    def _note_visible(self, first: int, end: int) -> None:
        """Record what a Seal whose answer waits has made visible."""
        self._progress_ns = self.world.now_ns
        index, known = self.world.state.index, self.client.rows_of(self.keyspace, self.lane)
        for chunk in range(first, end):
            fill, row = self._fills.get(chunk), known.get(self.digest(chunk), NO_ROW)
            if fill and row != NO_ROW and index.generation[row] == fill.generation:
                fill.sealed = self.world.steps

    def abort(self) -> None:
        self.finished = True
        self.client.ask(
            lambda request: AbortWanted(request, self.client.session, self.reservation),
            _ignore,
            note=self._note_aborted,
        )

    def _note_aborted(self, outcome: Outcome) -> None:
        if isinstance(outcome, Aborted):
            self.world.saw("a reservation aborted")
        else:
            self._note_lost(outcome)

    def _note_lost(self, outcome: KvdError) -> None:
        require(outcome.kind == ErrorKind.LOST, f"a put was answered {outcome}")
        idle_ns = self.world.now_ns - self._progress_ns
        require(idle_ns >= self.world.limits.reservation_ttl_ns, f"lost after {idle_ns} ns")
        self.world.saw("refused: lost reservation")
        self.finished = True

    def _note_sealed(self, outcome: Outcome, seal: _Seal) -> None:
        first, sizes = seal.first, seal.sizes
        if not isinstance(outcome, Sealed):
            self._note_lost(outcome)
            if not seal.last:
                late = [each for c, each in self._strips.items() if c >= seal.first]
                _lay_on(self, [strip for strips in late for strip in strips], LAID_ON)
            return
        self._progress_ns = max(self._progress_ns, seal.asked_ns)
        if outcome.durable:
            require(self._durable, "I7: a seal is answered durable, and nobody asked")
            self.world.saw("a durable seal")
            end = first + len(outcome.states)
            chain = self._prefix[: (self._first + end) * DIGEST_BYTES]
            fills = [fill for chunk, fill in self._fills.items() if chunk < end and fill.sealed]
            digest = self.client.digests[self.keyspace]
            self.world.ledger.acknowledge(digest, self.lane, chain, fills)
        for chunk, state in enumerate(outcome.states.tolist(), first):
            fill = self._fills.get(chunk)
            require(
                (state == SealState.SKIPPED) == (fill is None),
                f"chunk {chunk} was given, {state!r}",
            )
            if state == SealState.SEALED:
                fill.sealed = fill.sealed or self.world.steps
                if chunk in self._replaces:
                    self.world.saw("a replace")
                if (sizes[chunk - first] < self._reserved[chunk]).any():
                    self.world.saw("a tail returned")
            elif state == SealState.ORPHANED:
                require(not self._in_order or chunk in seal.orphans, f"chunk {chunk}: a hole")
                self._in_order = False


def _lay_on(put: Put, strips: list[Strip], times: int) -> None:
    """Write what was to come behind a seal that came too late, then say that it is over."""
    if not put.client.open:
        return
    if times == 0:
        put.abort()
        return
    for strip in strips:
        strip.write(0, strip.sectors)
    put.world.saw("a write behind a seal that came too late")
    put.world.after(LAID_MS * NS_PER_MS, lambda: _lay_on(put, strips, times - 1))


def _ignore(outcome: Outcome) -> None:
    """The record was made at the very step; the client learns nothing more from the answer."""

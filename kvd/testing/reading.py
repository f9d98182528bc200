"""Readers of the simulated world: of mapped slabs, or of what is delivered to them.

A mapped reader reads as far as it was told that bytes are there, and looks at its revoke counter
when it is done, as a real one must.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvd.clock import NS_PER_MS
from kvd.core.effects import (
    WHOLES,
    FetchDone,
    Found,
    Outcome,
    Promise,
    Shortfall,
)
from kvd.core.events import (
    CancelWanted,
    Delivery,
    FetchWanted,
    LookupWanted,
    PrefetchWanted,
    RenewWanted,
)
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES
from kvd.testing.media import RowKey
from kvd.testing.memory import Strip
from kvd.testing.oracles import require, strips_of
from kvd.testing.putting import Prefix, Put, choose_prefix

if TYPE_CHECKING:
    from kvd.testing.client import Client


class Fetch:
    """One fetch by a client, mapped or delivered; it may come with a lookup before it."""

    def __init__(self, client: "Client", delivery: Delivery, where: Prefix | None = None) -> None:
        self.client, self.world, self.delivery = client, client.world, delivery
        self.keyspace, self.chain, self.lanes = where or choose_prefix(client)
        self.lease = 0
        self._held: tuple[int, int, int] = (0, 0, 0)
        self._strips: list[Strip] = []
        self._ready = (0, 0, 0)  # As far as it was told.
        self._damaged: set[int] = set()  # Chunks that it saw are damaged, as a release names them.
        self._clears = 0  # Of the keyspace, before it looked up.
        self._generations: list[np.ndarray] = []  # Promised, per lane and chunk.
        self._wrong = ""
        self._rounds = self.world.rng.randint(1, 4)
        self._counter = 0

    def look_up(self) -> None:
        """Ask with a lease first; then fetch under it, soon, late, or never."""
        handle = self.client.handles[self.keyspace]
        self._clears = self._count_clears()
        self.client.ask(
            lambda request: LookupWanted(
                request, self.client.session, handle, self.lanes, self.chain, True
            ),
            self._on_found,
        )

    def _on_found(self, found: Found | KvdError) -> None:
        rng = self.world.rng
        if isinstance(found, KvdError):
            return
        self._held, self.lease = found.counts, found.lease
        if rng.random() < 0.25:
            self.world.saw("a lookup with a lease never used")
            return
        self.client.pacer.after(rng.choice((5, 300, 3000)) * NS_PER_MS, self.start)

    def prefetch(self) -> None:
        """Have it brought to dram; then fetch it, perhaps."""
        handle, class_count = self.client.handles[self.keyspace], self.world.rng.randint(1, 3)
        self.client.ask(
            lambda request: PrefetchWanted(
                request, self.client.session, handle, self.lanes, self.chain, class_count
            ),
            lambda outcome: None,
        )
        if self.world.rng.random() < 0.6:
            self.client.pacer.after(self.world.rng.choice((20, 300)) * NS_PER_MS, self.start)

    def _count_clears(self) -> int:
        return self.world.clears[self.client.digests[self.keyspace]]

    def start(self) -> None:
        if not self.client.open:
            return
        if self._clears != self._count_clears():
            self._held = (0, 0, 0)  # What a lease holds may be cleared all the same.
        rng, world = self.world.rng, self.world
        # Before the question: a counter read later may already have moved for this promise.
        self._counter = world.revokes.get(self.client.session, 0)
        handle = self.client.handles[self.keyspace]
        deadline_ns = world.now_ns + rng.choice((100, 400, 3000)) * NS_PER_MS
        class_count, lease = rng.choice((1, 2, 3, 3, 3)), self.lease

        def question(request: int) -> FetchWanted:
            return FetchWanted(
                request, self.client.session, handle, self.lanes, self.chain, class_count,
                0, 0, self.delivery, 0, lease, deadline_ns,
            )  # fmt: skip

        asked = self.client.ask(
            question, self._on_done, self._on_promise, self._on_ready, at_least=self._held
        )
        if rng.random() < (0.15 if self.delivery == Delivery.BYTES else 0.05):
            cancel = CancelWanted(asked, self.client.session)
            self.client.pacer.after(rng.randint(1, 300) * NS_PER_MS, lambda: world.tell(cancel))

    def _on_promise(self, promise: Promise) -> None:
        if self.lease and promise.lease:
            self.world.saw("a lease taken over")
        self.lease = promise.lease
        self._generations = [lane.generations for lane in promise.lanes]
        self._ready = promise.ready
        if self.delivery == Delivery.MAP and promise.lease:
            mapped = self.client.mapped
            lost = promise.lease not in self.world.state.leases
            if lost and not _slabs_of(promise) <= mapped.keys():
                return  # It was stopped, and its lease lost meanwhile: as the SDK, it gives up.
            self._strips = strips_of(self.world.memory, promise, self.chain, mapped)
            self.client.fetches.append(self)
            self._wait()
        elif self.delivery == Delivery.BYTES and promise.lease and self.world.rng.random() < 0.06:
            self.world.saw("a release during delivery")
            self.client.release(self.lease)

    def _on_ready(self, ready: tuple[int, int, int]) -> None:
        self._ready = ready

    def _on_done(self, outcome: Outcome) -> None:
        done = isinstance(outcome, FetchDone)
        if self.delivery == Delivery.BYTES:
            if self.lease and (done or self.world.rng.random() < 0.5):
                self.client.release(self.lease)
        elif done and outcome.reason == Shortfall.NONE:
            self._ready = WHOLES
        elif done:
            counts, self._ready = outcome.counts, WHOLES
            self._strips = [s for s in self._strips if s.chunk < counts[s.plane_class]]

    def _wait(self) -> None:
        delay_ms = self.world.rng.choice((1, 20, 200, 1500, 3000))
        self.client.pacer.after(delay_ms * NS_PER_MS, self._read)

    def _read(self) -> None:
        """Read some of the strips; a process reads on when its session is gone."""
        if not self.client.alive:
            return
        rng = self.world.rng
        for strip in rng.sample(self._strips, (len(self._strips) + 1) // 2):
            end = strip.ready_sectors(self._ready[strip.plane_class])
            word = strip.wrong_word(end)
            if word is not None:
                self._wrong = f"read {self.world.memory.origin(word)} for {strip.fill.name()}"
            elif strip.is_flipped(end):
                self._damaged.add(strip.lane << 24 | strip.chunk)
        self._rounds -= 1
        if self._rounds:
            if self.client.open and rng.random() < 0.2:
                self._renew()
            self._wait()
            return
        self.client.fetches.remove(self)
        self._judge()
        if self.client.open:
            self._let_go()

    def _judge(self) -> None:
        """Require right bytes, unless the lease is gone and the counter says so."""
        world = self.world
        held = self.lease in world.state.leases
        moved = world.revokes.get(self.client.session, 0) != self._counter
        require(
            not self._wrong or (moved and not held),
            f"I2, I4: lease held: {held}, counter moved: {moved}, but a reader {self._wrong}",
        )
        if moved:
            world.saw("a read discarded by the counter")
        if self._wrong:
            world.saw("wrong bytes caught by the counter")
        world.saw("a read under a live lease" if held else "a lease lost during a read")
        if not self.client.open:
            world.saw("a read past the end of its session")

    def _renew(self) -> None:
        def answered(outcome: Outcome) -> None:
            late = isinstance(outcome, KvdError)
            require(not late or outcome.kind == ErrorKind.LOST, f"a renewal: {outcome}")
            self.world.saw("a renewal too late" if late else "a lease renewed")

        lease, session = self.lease, self.client.session
        self.client.ask(lambda request: RenewWanted(request, session, lease), answered)

    def _let_go(self) -> None:
        """Release once, twice, never, or with a report of wrong bytes."""
        rng = self.world.rng
        dice = rng.random()
        if dice < 0.12:
            return
        if self._ready != WHOLES:
            self.world.saw("a release before everything was read")
        corrupt = sorted(self._damaged)
        if corrupt:
            self.world.saw("damage that a reader saw")
        elif dice < 0.26 and self._strips:
            chunks = len([s for s in self._strips if s.plane_class == 0]) // len(self.lanes)
            corrupt = [rng.randrange(len(self.lanes)) << 24 | rng.randrange(chunks)]
        self.client.release(self.lease, self, corrupt)
        if corrupt:
            # As an engine would: it finds less now, recomputes, and stores again.
            where = (self.keyspace, self.chain, self.lanes)
            Fetch(self.client, self.delivery, where).start()
            Put(self.client, where)
        if dice > 0.9:
            self.client.release(self.lease)

    def note_reported(self, corrupt: Sequence[int], before: np.ndarray) -> None:
        """Record at the step of the release which fills must not be offered any more.

        `before`, by row: what was condemned already.
        """
        rows_of, index = self.client.rows_of, self.world.state.index
        for word in corrupt:
            lane, chunk = word >> 24, word & 0xFFFFFF
            digest = self.chain[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]
            row = rows_of(self.keyspace, self.lanes[lane]).get(digest)
            if row is None:
                continue
            generation, read = int(index.generation[row]), int(self._generations[lane][chunk])
            if generation != read:  # Somebody else replaced it since.
                condemned = bool(index.condemned[row] and not before[row])
                require(not condemned, f"a report about {read} condemned {generation}")
            else:
                fill = self.world.memory.find_fill(generation, digest)
                fill.reported = True
                self.world.ledger.excuse(RowKey(fill.keyspace, fill.lane, digest))
                self.world.saw("a corrupt report")


def _slabs_of(promise: Promise) -> set[int]:
    return {slab for lane in promise.lanes for slabs in lane.slabs for slab in slabs.tolist()}

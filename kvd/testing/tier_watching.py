"""Notes the rare situations of the ssd tier, from what goes in and out of the core."""

from typing import TYPE_CHECKING

import numpy as np

from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core import effects as out
from kvd.core.counts import Shed
from kvd.core.effects import WHOLE, WHOLES, Promise, Shortfall
from kvd.core.events import Delivery, Event, FetchWanted, PrefetchWanted
from kvd.core.story import Why
from kvd.errors import ErrorKind, KvdError
from kvd.testing.media import RowKey
from kvd.testing.oracles import Wish

if TYPE_CHECKING:
    from kvd.testing.world import World

COUNTED = {
    "tier degraded": lambda counts: counts.ssd_degradations.total(),
    "tier recovered": lambda counts: counts.ssd_recoveries.total(),
    "budget shrunk": lambda counts: counts.ssd_budget_shrinks.total(),
    "a chunk left in dram for its quota": lambda counts: counts.ssd_shed_chunks[Shed.QUOTA],
    "a chunk off the disk for its quota": lambda counts: sum(
        count for key, count in counts.evicted_strips.items() if key[-1] == Why.SSD_QUOTA
    ),
    "day budget spent": lambda counts: counts.ssd_shed_chunks[Shed.DAILY_BOUND],
    "a segment reclaimed": lambda counts: counts.ssd_segments_cleared.total(),
}


class TierWatch:
    def __init__(self, world: "World") -> None:
        self.world, self.saw = world, world.saw
        self._changes: dict[int, str] = {}  # Requests, and what came of them if nothing fails.
        self._counts: dict[str, int] = {}
        self._in_dram = self._read = self._condemned = np.zeros(0, bool)

    def before(self, event: Event) -> None:
        index = self.world.state.index
        if isinstance(event, FetchWanted):
            self._in_dram = (index.slab != 0) & (index.missing == 0)
            self._read = index.missing != 0
        if isinstance(event, told.Probed):
            self._condemned = index.condemned.copy()

    def after(self, event: Event, effects: list[out.Effect]) -> None:
        self._note_event(event)
        for effect in effects:
            match effect:
                case asked.MakeSegment(request):
                    self._changes[request] = "a segment made"
                case asked.RecycleSegment(request):
                    self._changes[request] = "a segment recycled"
                case asked.RemoveSegment(request):
                    self._changes[request] = "a segment removed"
                case asked.ReadStrips() if isinstance(event, PrefetchWanted):
                    self.saw("a prefetch from disk")
        if self.world.state.ssd is not None:
            self._note_counts()

    def _note_event(self, event: Event) -> None:
        match event:
            case FetchWanted(request) if request in self.world.state.postponed:
                self.saw("a fetch put off")
            case told.Probed():
                self._excuse_condemned()
            case told.SegmentDone(request, fault):
                change = self._changes.pop(request)
                self.saw(change if fault is None else "a segment not made")
            case told.Committed(fault=fault) if fault is not None:
                self.saw("a commit that failed")
            case told.StripsWritten(faults=faults) if faults:
                self.saw("a write that failed")
            case told.StripsRead(faults=faults) if faults:
                self.saw("a read that failed")

    def _excuse_condemned(self) -> None:
        """What could not be read, while its directory can be, is offered to nobody any more."""
        index = self.world.state.index
        for row in np.flatnonzero(index.condemned & ~self._condemned).tolist():
            tree, digest = index.trees[index.tree_id[row]], index.chain[row]
            assert digest is not None
            self.world.ledger.excuse(RowKey(tree.digest, tree.lane, digest))
            self.saw("a strip given up that the canary speaks against")

    def _note_counts(self) -> None:
        for situation, count in COUNTED.items():
            now = count(self.world.state.counts)
            if now > self._counts.get(situation, 0):
                self.saw(situation)
            self._counts[situation] = now

    def promised(self, wish: Wish, promise: Promise) -> None:
        """Note where the strips of a promise are when it is given."""
        if promise.reason == Shortfall.NO_ROOM:
            self.saw("no room to read into")
        if promise.reason == Shortfall.READ_FAILED:
            self.saw("a shortfall by a failed read")
        if promise.ready == WHOLES:
            return
        rows = self._rows(wish)
        there, coming = self._in_dram[rows, 0], self._read[rows, 0]
        if there.any() and not (there | coming).all():
            self.saw("a fetch half from disk")
        if not (there | coming).any():
            self.saw("a fetch from disk only")
        if coming.any():
            self.saw("a joined read")

    def _rows(self, wish: Wish) -> np.ndarray:
        state, event = self.world.state, wish.event
        digest = state.sessions[event.session].keyspaces[event.keyspace][0]
        chains = [event.chain[32 * n : 32 * n + 32] for n in range(wish.promise.counts[0])]
        trees = [state.index.trees_by_key[digest, lane] for lane in event.lanes]
        return np.array([tree.rows[chain] for tree in trees for chain in chains], np.int64)

    def ready(self, ready: tuple[int, int, int]) -> None:
        self.saw("more of a promise ready")
        if any(0 < pieces < WHOLE for pieces in ready):
            self.saw("some pieces ready")

    def answered(self, wish: Wish, outcome: out.Outcome) -> None:
        waited = wish.promise is not None and wish.promise.ready != WHOLES
        match outcome:
            case out.FetchDone(reason=Shortfall.NONE) if waited:
                self.saw("a promise kept from disk")
            case out.FetchDone() if waited:
                self.saw("a promise cut by a failed read")
            case KvdError(kind=ErrorKind.LATE) if waited:
                self.saw("a fetch late for its disk")
            case KvdError() if waited and wish.event.delivery == Delivery.BYTES:
                self.saw("a delivery without its bytes")
            case out.Sealed(durable=False) if getattr(wish.event, "deadline_ns", 0):
                late = wish.event.deadline_ns <= self.world.now_ns
                self.saw(
                    "a seal not durable in time"
                    if late
                    else "a seal not durable before its deadline"
                )

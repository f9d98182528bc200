"""Somebody has keyspaces forgotten, a client or an operator: what was sealed before is never found
again."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from kvd.clock import NS_PER_MS
from kvd.core.effects import Cleared, Outcome
from kvd.core.events import ClearWanted
from kvd.errors import ErrorKind, KvdError
from kvd.testing.media import RowKey
from kvd.testing.memory import Fill
from kvd.testing.oracles import require

if TYPE_CHECKING:
    from kvd.testing.client import Client
    from kvd.testing.world import World

DEADLINES_MS = (300, 3000, 9000)


class Clear:
    """What a question that is about to be asked must make forgotten, by its answer."""

    def __init__(self, world: "World", digests: Collection[bytes]) -> None:
        self.world, self._digests = world, digests
        self._fills = [f for f in world.memory.fills if f.sealed and f.keyspace in digests]
        self._chunks = self._count()
        self.deadline_ns = world.now_ns + world.rng.choice(DEADLINES_MS) * NS_PER_MS
        for digest in digests:
            world.clears[digest] += 1
        for fill in self._fills:
            world.ledger.excuse(RowKey(fill.keyspace, fill.lane, fill.chain))

    def _count(self) -> int:
        trees = self.world.state.index.trees_by_key
        return sum(len(tree.rows) for (digest, _), tree in trees.items() if digest in self._digests)

    def note(self, outcome: Outcome) -> None:
        """Record at the very step that all that was sealed before the question is gone."""
        if isinstance(outcome, KvdError):
            known = (ErrorKind.LATE, ErrorKind.UNAVAILABLE, ErrorKind.OVERLOADED, ErrorKind.LOST)
            require(outcome.kind in known, f"a clear was answered {outcome}")
            self.world.saw("a clear too late")
            return
        assert isinstance(outcome, Cleared)
        right = 0 <= outcome.chunks + outcome.held <= self._chunks
        require(right, f"{outcome} of {self._chunks} chunks")
        self.world.saw("a clear" if self.world.tier else "a clear without a tier")
        if outcome.held:
            self.world.saw("a clear with readers")
        for fill in self._fills:
            self._forget(fill)

    def _forget(self, fill: Fill) -> None:
        fill.cleared = True
        row = self.world.media.catalog.rows.get(RowKey(fill.keyspace, fill.lane, fill.chain))
        gone = row is None or row.generation != fill.generation
        require(gone, f"chunk {fill.chain[:4].hex()} is cleared, and in the catalog")


def clear(client: "Client", keyspace: int) -> None:
    """Have a client clear one of its keyspaces."""
    clear, handle = Clear(client.world, {client.digests[keyspace]}), client.handles[keyspace]
    client.ask(
        lambda request: ClearWanted(request, client.session, handle, clear.deadline_ns),
        lambda outcome: None,
        note=clear.note,
    )

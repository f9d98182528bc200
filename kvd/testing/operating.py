"""An operator in some of the simulated worlds: evicts, pins, unpins and clears while all act.

Has a chance of its own, so that a world without one is the same as ever.
"""

import random
from typing import TYPE_CHECKING

from kvd.clock import NS_PER_MS
from kvd.core.effects import Cleared, Evicted, Outcome, Pinned
from kvd.core.operator_events import EvictWanted, ForgetWanted, PinWanted, UnpinWanted
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES
from kvd.testing.clearing import Clear
from kvd.testing.oracles import require

if TYPE_CHECKING:
    from kvd.core.events import Event
    from kvd.testing.world import World

WORLDS_EACH = 3  # One of so many has an operator.


class Operator:
    def __init__(self, world: "World") -> None:
        self.world, self.rng = world, random.Random(f"operator {world.seed} {world.starts}")
        self.pins: list[int] = []
        self._asked: dict[int, Event] = {}
        self._clears: dict[int, Clear] = {}  # What of it is to be forgotten, and not yet.

    def start(self) -> None:
        if self.world.seed % WORLDS_EACH == 0:
            self._later()

    def stop(self) -> None:
        """Let go of everything."""
        for pin in list(self.world.state.pins):
            self._ask(UnpinWanted(self._number(), pin))

    def answered(self, request: int, outcome: Outcome) -> None:
        require(request in self._asked, f"I10: an operator was answered {request}")
        event = self._asked.pop(request)
        if (clear := self._clears.pop(request, None)) is not None:
            if isinstance(outcome, Cleared):
                self.world.saw("a clear by an operator")
            clear.note(outcome)
            return
        known = (ErrorKind.INVALID, ErrorKind.OVERLOADED, ErrorKind.UNAVAILABLE)
        if isinstance(outcome, KvdError):
            require(outcome.kind in known, f"{type(event).__name__} was answered {outcome}")
        elif isinstance(outcome, Pinned):
            self.pins.append(outcome.pin)
            self.world.saw("a prefix pinned")
        elif isinstance(outcome, Evicted) and outcome.strips:
            self.world.saw("an eviction by an operator")

    def require_answered(self) -> None:
        require(not self._asked, f"I10: an operator waits: {self._asked}")

    def _later(self) -> None:
        self.world.after(self.rng.choice((200, 900, 2000)) * NS_PER_MS, self._act)

    def _act(self) -> None:
        if self.world.stopped:
            return
        trees = [tree for tree in self.world.state.index.trees if tree.rows]
        if trees:
            tree = self.rng.choice(trees)
            deeds = (self._evict, self._pin, self._unpin, self._forget)
            self.rng.choices(deeds, (4, 4, 4, 1))[0](tree)
        self._later()

    def _evict(self, tree: object) -> None:
        size_bytes = self.rng.choice((0, 1 << 14, 1 << 16))
        lossy = self.rng.random() < 0.5
        self._ask(EvictWanted(self._number(), tree.tenant, b"", size_bytes, lossy))  # type: ignore[attr-defined]

    def _pin(self, tree: object) -> None:
        index = self.world.state.index
        row = self.rng.choice(sorted(tree.rows.values()))  # type: ignore[attr-defined]
        chain = b""
        while row >= 0:
            chain = index.chain[row] + chain
            row = int(index.parent[row])
        assert len(chain) % DIGEST_BYTES == 0
        self._ask(PinWanted(self._number(), tree.digest, chain, self.rng.randint(1, 3)))  # type: ignore[attr-defined]

    def _unpin(self, tree: object) -> None:
        if self.pins:
            self._ask(UnpinWanted(self._number(), self.pins.pop(0)))

    def _forget(self, tree: object) -> None:
        """Clear one keyspace, or all of its tenant."""
        clients = self.world.clients.values()
        mine = {d for c in clients if c.tenant == tree.tenant for d in c.digests.values()}  # type: ignore[attr-defined]
        one = self.rng.random() < 0.7
        clear = Clear(self.world, {tree.digest} if one else mine | {tree.digest})  # type: ignore[attr-defined]
        number, keyspace = self._number(), tree.digest if one else b""  # type: ignore[attr-defined]
        event = ForgetWanted(number, tree.tenant, keyspace, clear.deadline_ns)  # type: ignore[attr-defined]
        self._clears[number], self._asked[number] = clear, event
        self.world.tell(event)

    def _number(self) -> int:
        self.world.request += 1
        return self.world.request

    def _ask(self, event: "Event") -> None:
        self._asked[event.request] = event  # type: ignore[union-attr]
        self.world.tell(event)
        require(event.request not in self._asked, f"I10: {event} was not answered")  # type: ignore[union-attr]

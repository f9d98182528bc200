"""One process of the simulated world with one session, and the ways in which both end.

Holds what a client knows: its handles, its mappings, and whether it may write them. A process
may live on after its session, with all its mappings.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kvd.clock import NS_PER_MS
from kvd.core.effects import KeyspaceGranted, Outcome, Promise, Released
from kvd.core.events import (
    KeyspaceWanted,
    ProcessGone,
    ReleaseWanted,
    SessionEnded,
    SlabDetached,
)
from kvd.errors import ErrorKind, KvdError
from kvd.testing.oracles import Wish, require
from kvd.testing.pausing import Pacer
from kvd.testing.reading import Fetch
from kvd.types import Lane

if TYPE_CHECKING:
    from kvd.testing.world import World


Ready = tuple[int, int, int]
CHILD_MS = 900


class Client:
    def __init__(self, world: "World", session: int, tenant: str) -> None:
        self.world, self.session, self.tenant = world, session, tenant
        self.alive, self.open = True, True
        self.has_child = False  # Which was forked with the mappings, and writes on in them.
        self.mapped: dict[int, np.ndarray] = {}
        self.writable: set[int] = set()
        self.handles: dict[int, int] = {}
        self.digests: dict[int, bytes] = {}
        self.fetches: list[Fetch] = []
        self.pacer, self._heard_ns = Pacer(world), 0
        self._detaching: set[int] = set()  # Slabs of which the word is on its way.

    # ---- its end ----

    def end_session(self) -> None:
        """Lose the sockets; the process lingers, for a while or to the end of the world."""
        self.world.saw("a session ended while its process lives")
        self._close()
        self.world.tell(SessionEnded(self.session))
        if self.world.rng.random() < 0.7:
            self.world.after(self.world.rng.choice((50, 800, 5000)) * NS_PER_MS, self.die)

    def die(self) -> None:
        if self.alive:
            if self.open and not self.world.stopped:
                self.world.saw("a process gone at once")
            self._close()
            self.alive = False
            _leave_child(self)

    def stop(self, *, gone: bool) -> None:
        """End the session, and the process as well if `gone`."""
        if gone:
            self.die()
        elif self.open:
            self._close()
            self.world.tell(SessionEnded(self.session))

    def vanish(self) -> None:
        """Lose everything with the daemon; nobody is told."""
        self._close()
        self.alive = self.has_child = False

    def _close(self) -> None:
        self.open = False
        self.world.wishes.void(self.session)

    # ---- what it asks ----

    def ask(
        self,
        make: Callable[[int], object],
        on_answer: Callable[[Outcome], None],
        on_promise: Callable[[Promise], None] | None = None,
        on_ready: Callable[[Ready], None] | None = None,
        note: Callable[[Outcome], None] | None = None,
        at_least: tuple[int, int, int] = (0, 0, 0),
    ) -> int:
        """Ask a question under a new request id, and return the id."""
        self.world.request += 1
        event = make(self.world.request)
        deadline_ns = getattr(event, "deadline_ns", 0) or self.world.now_ns + 1
        wish = Wish(event, on_answer, on_promise, on_ready, note, at_least, deadline_ns)
        self.world.wishes.open[event.request] = wish
        self.world.tell(event)
        return event.request

    def register(self, keyspace: int) -> None:
        def note(outcome: Outcome) -> None:
            if isinstance(outcome, KeyspaceGranted):
                self.handles[keyspace] = outcome.keyspace
                self.digests[keyspace] = outcome.digest

        fields = self.world.keyspaces[keyspace]
        self.ask(lambda request: KeyspaceWanted(request, self.session, fields), note)

    def release(
        self, lease: int, fetch: Fetch | None = None, corrupt: list[int] | tuple[int, ...] = ()
    ) -> None:
        before = self.world.state.index.condemned.copy()

        def note(outcome: Outcome) -> None:
            if isinstance(outcome, KvdError):
                require(outcome.kind == ErrorKind.LOST, f"a release: {outcome}")
                self.world.saw("a release twice")
            elif fetch is not None and isinstance(outcome, Released):
                fetch.note_reported(corrupt, before)

        words = np.array(corrupt, np.uint32)
        self.ask(
            lambda request: ReleaseWanted(request, self.session, lease, words),
            lambda outcome: None,
            note=note,
        )

    def rows_of(self, keyspace: int, lane: Lane) -> dict[bytes, int]:
        """Return the core's rows of a lane by chain digest; none when nothing was put there."""
        tree = self.world.state.index.trees_by_key.get((self.digests[keyspace], lane))
        return {} if tree is None else tree.rows

    # ---- what it is told ----

    def hear(self, action: Callable[[], object]) -> None:
        """Take in what the daemon sent, a little later and in the order sent."""
        world = self.world
        delay_ns = world.rng.choice((0, 1, 3)) * NS_PER_MS
        self._heard_ns = max(self._heard_ns, world.now_ns + delay_ns)
        self.pacer.after(self._heard_ns - world.now_ns, lambda: self.open and action())

    def on_slab(self, slab: int, *, writable: bool) -> None:
        if writable and slab in self.mapped:
            self.world.saw("a slab given again for writing")
        self.mapped[slab] = self.world.memory.slabs[slab]
        if writable:
            self.writable.add(slab)

    def on_drop(self, slab: int) -> None:
        """Unmap; who still reads or writes there holds the mapping."""
        self.mapped.pop(slab, None)
        self.writable.discard(slab)

    def on_recall(self, slab: int) -> None:
        """Give the slab back soon, too late, or not at all."""
        rng = self.world.rng
        if rng.random() < 0.8:
            delay_ms = rng.choice((1, 50, 2 * self.world.limits.recall_ns // NS_PER_MS))
            self.pacer.after(delay_ms * NS_PER_MS, lambda: self.detach(slab))

    def detach(self, slab: int) -> None:
        """Make the mapping read-only, then say so; the word may take its time."""
        if not self.open or slab in self._detaching:
            return  # Said twice, it might be heard after the slab was given again.
        self.writable.discard(slab)
        self._detaching.add(slab)

        def say() -> None:
            self._detaching.remove(slab)
            self.world.tell(SlabDetached(self.session, slab))

        self.world.after(self.world.rng.choice((1, 30)) * NS_PER_MS, say)


def _leave_child(client: Client) -> None:
    """Have a process go; what every third one could write, a child of it can, for a while yet."""
    world, session = client.world, client.session
    written = frozenset(client.writable & world.state.slabs.keys())
    if session % 3 or not written or world.stopped:
        world.tell(ProcessGone(session))
        return

    def lose_child() -> None:
        if client.has_child:
            client.has_child = False
            world.tell(ProcessGone(session))

    client.has_child = True
    world.saw("a child that writes on")
    world.tell(ProcessGone(session, written))
    world.after(CHILD_MS * NS_PER_MS, lose_child)

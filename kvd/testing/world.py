"""The simulated world: one seed, a virtual clock, the real core, and everybody around it.

A heap of (time, sequence, action) drives `core.step`; after each step every invariant is checked
and every effect carried out, as the daemon would.
"""

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvd.clock import NS_PER_MS
from kvd.core import effects as out
from kvd.core.disk_events import Probed, SpaceSeen
from kvd.core.dram import LeftDram
from kvd.core.events import Event, SessionOpened, SlabFailed, SlabTouched, Ticked
from kvd.core.invariants import Checker
from kvd.core.operator_events import OPERATOR
from kvd.core.sampling import check_some
from kvd.core.state import CoreConfig, new_state
from kvd.core.step import step
from kvd.errors import Fault, FaultKind
from kvd.identity import Keyspace
from kvd.limits import PAGE_BYTES
from kvd.shape import BlockShape
from kvd.testing.client import Client
from kvd.testing.conditions import draw_conditions, draw_documents
from kvd.testing.delivering import ByteDelivery
from kvd.testing.demands import Demands
from kvd.testing.ledger import Ledger
from kvd.testing.media import Media
from kvd.testing.memory import Memory
from kvd.testing.operating import Operator
from kvd.testing.oracles import (
    Wishes,
    check_more_ready,
    check_promise,
    check_ready,
)
from kvd.testing.sharing import draw_quotas
from kvd.testing.situations import SOMETIMES, TENANTS
from kvd.testing.tier import Tier
from kvd.testing.trace import feed
from kvd.testing.watching import Watch
from kvd.types import Dtype, Lane, Shard, ShardScheme

LOOKS = (Ticked, Probed, SpaceSeen)  # A fifth of all events, and mostly nothing comes of them.
SAMPLED_EVERY = 32  # Steps: what daemons in service look at must hold here, too.
SHAPE = BlockShape.of_attention(layers=2, heads=2, width=8, dtype=Dtype.BF16)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did: its effects as one digest, and how often it was in rare situations."""

    seed: int
    events: int
    log: str
    sometimes: Counter


class World:
    def __init__(self, seed: int, tiered: bool | None = None) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.fate = random.Random(~seed)  # Of what a restart keeps.
        self.writers: set[int] = set()  # Slabs that processes from before it may still write.
        self.conditions = draw_conditions(self.rng, seed, tiered)
        self.limits, self.ssd = self.conditions.limits, self.conditions.ssd
        self.memory, self.wishes = Memory(), Wishes()
        self.media = Media(self.ssd.segment_bytes // PAGE_BYTES if self.ssd else 0)
        self.ledger, self.demands = Ledger(self), Demands(self)
        self.documents = draw_documents(self.rng)
        self.lanes = tuple(Lane(shard=Shard(ShardScheme.HEADS, i, 2)) for i in range(2))
        self.keyspaces = [Keyspace("m", f"r{i}", SHAPE, chunk_tokens=4) for i in range(3)]
        self.clients: dict[int, Client] = {}
        self.clears: Counter = Counter()  # By keyspace digest, as they were asked for.
        self.seen: Counter = Counter()
        self.now_ns = self.request = self.steps = self.starts = 0
        self.day = 1000  # Of the date, which may be set back.
        self.generation = 0  # The newest that was given out while the catalog was well.
        self.stopped = False
        self._sequence = 0
        self._log = hashlib.blake2b(digest_size=16)
        self.begin()

    def begin(self, left: LeftDram | None = None) -> None:
        """Begin anew as a daemon that has just been started: only the media is there, and `left`.

        Then a slab less may be configured.
        """
        dram_bytes = self.conditions.dram_bytes
        least = 5 if self.ssd else 2  # Of fewer slabs each has another size.
        if left is not None and dram_bytes >= least * left.slab_bytes and self.fate.random() < 0.2:
            dram_bytes -= left.slab_bytes
        config = CoreConfig(dram_bytes, self.limits, self.ssd)
        quotas = draw_quotas(self.seed, self.starts, config, TENANTS)
        config = replace(config, quotas=quotas)
        self.state = new_state(config, epoch=self.seed + self.starts * 1_000_003)
        self.tier: Tier | None = None
        if self.ssd is not None:
            weather = self.conditions.weather
            self.tier = Tier(self, self.ssd, self.media, weather, self.ledger)
        self.deliveries: dict[int, ByteDelivery] = {}
        self.revokes: dict[int, int] = {}
        self._heap: list[tuple[int, int, Callable[[], object]]] = []
        self._watch, self._checker = Watch(self), Checker()
        self.operator = Operator(self)
        # What is given out from now on must come after these two.
        self.generations_given = 0
        if self.ssd is not None:
            self.generations_given = max(self.generation, self.media.catalog.generation - 1)
        if left is not None:
            self.generations_given = max(self.generations_given, left.generation)

    # ---- time ----

    def after(self, delay_ns: int, action: Callable[[], object]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ns + delay_ns, self._sequence, action))

    def advance(self) -> None:
        """Let the next thing happen."""
        when_ns, _, action = heapq.heappop(self._heap)
        self.now_ns = max(self.now_ns, when_ns)
        action()

    def advance_until(self, until_ns: int) -> None:
        while self._heap and self._heap[0][0] <= until_ns:
            self.advance()
        self.now_ns = max(self.now_ns, until_ns)

    def join(self, tenant: str) -> Client:
        session = len(self.clients) + 1
        self.clients[session] = client = Client(self, session, tenant)
        self.tell(SessionOpened(session, tenant))
        client.register(0)
        if self.rng.random() < 0.5:
            client.register(1)
        return client

    # ---- the core and its effects ----

    def tell(self, event: Event) -> list[out.Effect]:
        """Have the core take in one event; check everything; carry out what it asks for."""
        self.steps += 1
        self._watch.before(event)
        effects = step(self.state, event, self.now_ns)
        if effects or not isinstance(event, LOOKS):
            self._checker.check(self.state)  # Else with the next event.
        if self.steps % SAMPLED_EVERY == 0:
            check_some(self.state, self.steps // SAMPLED_EVERY)
        self.demands.on_event(event)
        for effect in effects:
            feed(self._log, effect)
            self._carry_out(effect)
        self._watch.after(event, effects)
        if request := getattr(event, "request", 0):
            self.wishes.check_asked(self.state, request)
        return effects

    def _carry_out(self, effect: out.Effect) -> None:
        match effect:
            case out.CreateSlab(slab, size):
                delays_ms = (1, 1, 40) if self.starts else (1, 40, 600)
                self.after(self.rng.choice(delays_ms) * NS_PER_MS, lambda: self._made(slab, size))
            case out.GiveSlab(session, slab, writable):
                self._watch.given(session, slab)
                if self.clients[session].open:
                    self.clients[session].on_slab(slab, writable=writable)
            case out.DropSlab(session, slab):
                self.clients[session].on_drop(slab)
            case out.RecallSlab(session, slab):
                self.clients[session].on_recall(slab)
            case out.Revoke(session, counter):
                self.revokes[session] = counter
            case out.LeaseLost(session, lease):
                if any(fetch.lease == lease for fetch in self.clients[session].fetches):
                    self.saw("a lease lost during a read")
            case out.Answer(request, session, outcome):
                self._answer(request, session, outcome)
            case out.Tell(request, session, promise):
                self._promise(request, session, promise)
            case out.TellReady(request, session, ready):
                self._ready(request, session, ready)
            case _:
                self._carry_out_bytes(effect)

    def _carry_out_bytes(self, effect: out.Effect) -> None:
        match effect:
            case out.DestroySlab(slab):
                self.demands.check_idle(slab)
            case out.Deliver(request):
                chain = self.wishes.open[request].event.chain
                self.deliveries[request] = ByteDelivery(self, effect, chain)
            case out.DeliverMore(request, ready):
                if wish := self.wishes.open.get(request):
                    check_more_ready(self.memory, wish, ready)
                if delivery := self.deliveries.get(request):
                    delivery.go_on(ready)
            case out.StopDelivery(request):
                if delivery := self.deliveries.get(request):
                    delivery.stop()
            case out.TellDraining() | out.CloseSession():
                pass
            case _:
                self.tier.carry_out(effect)
                self.demands.check(effect)

    def _made(self, slab: int, size: int) -> None:
        if self.rng.random() < 0.1 and not self.stopped:
            self.saw("a slab failed")
            self.tell(SlabFailed(slab, Fault(FaultKind.NO_SPACE, "no memory")))
        else:
            self.memory.create(slab, size)
            self.tell(SlabTouched(slab))

    def _answer(self, request: int, session: int, outcome: out.Outcome) -> None:
        if session == OPERATOR:
            self.operator.answered(request, outcome)
            return
        wish, client = self.wishes.answer(request), self.clients[session]
        self._watch.answered(wish, outcome)
        if wish.note is not None:
            wish.note(outcome)
        client.hear(lambda: wish.on_answer(outcome))

    def _promise(self, request: int, session: int, promise: out.Promise) -> None:
        wish, client = self.wishes.open[request], self.clients[session]
        digest = self.state.sessions[session].keyspaces[wish.event.keyspace][0]
        wish.promise, wish.ready = promise, promise.ready
        check_promise(self.memory, wish, promise, (client.tenant, digest))
        check_ready(self.memory, wish, promise.ready)
        self._watch.promised(wish, promise)
        assert wish.on_promise is not None
        client.hear(lambda: wish.on_promise(promise))

    def _ready(self, request: int, session: int, ready: tuple[int, int, int]) -> None:
        wish, client = self.wishes.open[request], self.clients[session]
        check_more_ready(self.memory, wish, ready)
        self._watch.ready(ready)
        client.hear(lambda: wish.on_ready(ready))

    # ---- the record ----

    def saw(self, situation: str) -> None:
        assert situation in SOMETIMES, situation
        self.seen[situation] += 1

    def result(self) -> Result:
        return Result(self.seed, self.steps, self._log.hexdigest(), self.seen)

"""Watches each step from outside, and notes the rare situations that the world was in."""

from typing import TYPE_CHECKING

from kvd.core import effects as out
from kvd.core import events as told
from kvd.core.effects import NotAdmitted, SealState, Shortfall
from kvd.core.ssd import SEGMENTS_LEAST
from kvd.core.transitions import LeaseState, SlabState, StripState
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES
from kvd.testing.counting import Tally
from kvd.testing.oracles import Wish, check_done, check_found, require
from kvd.testing.sharing import Sharing
from kvd.testing.tier_watching import TierWatch

if TYPE_CHECKING:
    from kvd.testing.world import World

REFUSED_PUTS = {
    NotAdmitted.CAPACITY: "refused: capacity",
    NotAdmitted.QUOTA: "refused: quota",
    NotAdmitted.GROWING: "refused: growing",
    NotAdmitted.PREFIX_BROKEN: "refused: prefix broken",
}
SEALS = {
    SealState.COALESCED: "a coalesced seal",
    SealState.SKIPPED: "a skipped seal",
    SealState.ORPHANED: "an orphaned seal",
}


class Watch:
    def __init__(self, world: "World") -> None:
        self.world, self.state, self.saw = world, world.state, world.saw
        self._slabs: dict[int, SlabState] = {}
        self._sessions: set[int] = set()
        self._ready_bytes = self._limbo = self._lost = 0
        self._filling = False
        self._tier, self._tally = TierWatch(world), Tally(world)
        self._sharing = Sharing(world)

    def before(self, event: told.Event) -> None:
        state = self.state
        self._slabs = {slab.id: slab.state for slab in state.slabs.values()}
        self._sessions = set(state.sessions)
        self._ready_bytes = state.bytes_in(StripState.READY)
        self._filling = state.bytes_in(StripState.FILLING) > 0
        self._limbo, self._lost = len(state.limbo), self._count_lost()
        self._tier.before(event)
        self._tally.before(event)

    def _count_lost(self) -> int:
        return sum(reservation.lost for reservation in self.state.reservations.values())

    def after(self, event: told.Event, effects: list[out.Effect]) -> None:
        match event:
            case told.ReserveWanted():
                if self._filling and self.state.bytes_in(StripState.READY) < self._ready_bytes:
                    self.saw("an evicted strip while others fill")
            case told.SealWanted():
                if len(self.state.limbo) > self._limbo:
                    self.saw("a replace while leased")
            case told.SlabDetached(_, slab):
                if self._slabs.get(slab) in (SlabState.OWNED, SlabState.RECALLING):
                    idle = self.state.slabs[slab].state == SlabState.IDLE
                    self.saw("a recall honoured" if idle else "a detach ignored")
            case told.Ticked():
                self._after_tick(effects)
            case told.CancelWanted():
                if any(isinstance(effect, out.StopDelivery) for effect in effects):
                    self.saw("a delivery cancelled")
        for effect in effects:
            if isinstance(effect, out.DestroySlab):
                self.saw("a slab destroyed")
                if self._slabs.get(effect.slab) == SlabState.IDLE:
                    self.saw("a foreign slab made anew")
        self._tier.after(event, effects)
        self._sharing.after(event)
        self._tally.after(event, effects)

    def _after_tick(self, effects: list[out.Effect]) -> None:
        if any(isinstance(effect, out.StopDelivery) for effect in effects):
            self.saw("a delivery stopped at its deadline")
        if self._count_lost() > self._lost:
            self.saw("a reservation lost")
        now_ns = self.world.now_ns
        for lease in self.state.leases.values():
            late = lease.state == LeaseState.GRANTED and lease.expires_ns <= now_ns
            require(not late, f"lease {lease.id} outlives its time")
        for reservation in self.state.reservations.values():
            late = not reservation.lost and reservation.expires_ns <= now_ns
            require(not late, f"reservation {reservation.id} outlives its time")
        for slab, before in self._slabs.items():
            now = self.state.slabs.get(slab)
            if before == SlabState.RECALLING and now and now.state == SlabState.OWNED:
                self.saw("a recall refused")
        for session in self._sessions - set(self.state.sessions):
            if session > 0 and self.world.clients[session].alive:
                self.saw("a session closed while its process lives")

    def given(self, session: int, slab: int) -> None:
        """Require that no slab is ever seen by two tenants."""
        tenants = self.world.memory.tenants[slab]
        tenants.add(self.world.clients[session].tenant)
        require(len(tenants) == 1, f"tenants: slab {slab} was given to {sorted(tenants)}")

    def answered(self, wish: Wish, outcome: out.Outcome) -> None:
        self._tier.answered(wish, outcome)
        self._tally.answered(wish, outcome)
        match outcome:
            case KvdError():
                self._refused(wish, outcome)
            case out.Found():
                check_found(self.state, wish.event, outcome)
            case out.FetchDone():
                check_done(self.world.memory, wish, outcome)
                if wish.event.delivery and outcome.delivered_bytes:
                    self.saw("a delivery completed")
            case out.Reserved(reason=reason) if reason in REFUSED_PUTS:
                self.saw(REFUSED_PUTS[reason])
            case out.Sealed(states):
                for state in states.tolist():
                    if state in SEALS:
                        self.saw(SEALS[state])

    def ready(self, ready: tuple[int, int, int]) -> None:
        self._tier.ready(ready)

    def promised(self, wish: Wish, promise: out.Promise) -> None:
        self._tier.promised(wish, promise)
        self._tally.promised(wish, promise)
        counts = promise.counts
        if wish.event.class_count == 3 and counts[2] < counts[0]:
            self.saw("a promise with fewer exact than anchors")
        match promise.reason:
            case Shortfall.NONE:
                self.saw("everything promised")
            case Shortfall.CONDEMNED:
                self.saw("a condemned shortfall")
            case Shortfall.NOT_STORED if counts[0]:
                self.saw("a shortfall")
            case Shortfall.NOT_STORED:
                self._note_hidden(wish)

    def _note_hidden(self, wish: Wish) -> None:
        """Note that somebody put the same tokens who is another, or has other weights."""
        client = self.world.clients[wish.event.session]
        digest = self.state.sessions[client.session].keyspaces[wish.event.keyspace][0]
        first, lanes = wish.event.chain[:DIGEST_BYTES], wish.event.lanes
        for fill in self.world.memory.fills:
            if not fill.sealed or fill.chain != first or fill.lane not in lanes:
                continue
            if fill.tenant != client.tenant:
                self.saw("another tenant's chunk not seen")
            elif fill.keyspace != digest:
                self.saw("another revision's chunk not seen")

    def _refused(self, wish: Wish, error: KvdError) -> None:
        """Note a refusal; nobody here asks for what is invalid or not his."""
        session = self.state.sessions.get(wish.event.session)
        known = (ErrorKind.INVALID, ErrorKind.DENIED, ErrorKind.INCOMPATIBLE)
        require(error.kind not in known, f"{type(wish.event).__name__} was answered {error}")
        match error.kind, wish.event:
            case ErrorKind.UNAVAILABLE, _ if self.state.draining:
                self.saw("refused: draining")
            case ErrorKind.UNAVAILABLE, event:
                self._unavailable(event, error)
            case ErrorKind.CORRUPT, _:
                self.saw("a delivery that found wrong bytes")
            case ErrorKind.OVERLOADED, told.KeyspaceWanted():
                self.saw("refused: too many keyspaces")
            case ErrorKind.OVERLOADED, told.ReserveWanted():
                self.saw("refused: too many reservations")
            case ErrorKind.OVERLOADED, _:
                self.saw(self._bound_of(session))

    def _unavailable(self, event: told.Event, error: KvdError) -> None:
        """Require that only durability is refused, and only where there is a reason."""
        match event:
            case told.ReserveWanted(durable=True) if self.world.tier is None:
                self.saw("refused: no tier")
            case told.ReserveWanted(durable=True) | told.ClearWanted():
                tier = self.world.tier
                hangs = tier.is_hanging(self.world.limits.write_ns)
                full = self.world.state.ssd.segments_max < SEGMENTS_LEAST
                require(tier.faults_told or hangs or full, f"{error}, and nothing failed")
                self.saw("refused: the tier hangs" if hangs else "refused: tier degraded")
            case told.FetchWanted(delivery=told.Delivery.BYTES):
                require(self.world.memory.unreadable, f"{error}, and no read failed")
            case _:
                require(False, f"{type(event).__name__} was answered {error}")

    def _bound_of(self, session: object) -> str:
        limits = self.world.limits
        if len(session.requests) >= limits.requests_per_session_max:
            return "refused: too many requests"
        if len(session.leases) >= limits.leases_per_session_max:
            return "refused: too many leases"
        return "refused: too many leased bytes"

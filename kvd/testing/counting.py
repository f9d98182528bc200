"""Counts by hand what the core counts, from what goes in and out of it, and compares the two.

Chunk by chunk, where the core sums columns; and what is in a tier must be what came less what went.
"""

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core import effects as out
from kvd.core import events as wished
from kvd.core.counts import DRAM, SSD, Counts
from kvd.core.effects import NotAdmitted, Promise, ReserveState, SealState
from kvd.core.slabs import is_own
from kvd.core.transitions import SessionState
from kvd.limits import DIGEST_BYTES
from kvd.testing.oracles import Wish, require
from kvd.types import CLASS_COUNT

if TYPE_CHECKING:
    from kvd.testing.world import World

COMPARED = (
    "fetches", "fetch_requested_strips", "fetch_hit_strips", "fetch_missed_strips",
    "fetch_promised_bytes", "fetch_shortfalls", "lookups", "lookup_requested_strips",
    "lookup_hit_strips", "lookup_missed_strips", "prefetches", "deliveries", "delivered_bytes",
    "reserved_chunks", "not_admitted_chunks", "sealed_chunks", "sealed_bytes",
    "reservations_opened", "sessions_opened", "sessions_ended", "leases_granted", "leases_lost",
    "slabs_made", "slabs_failed", "slabs_recalled", "ssd_written_strips", "ssd_written_bytes",
    "ssd_commits", "ssd_commit_faults",
)  # fmt: skip
SUMS_EVERY = 4  # Steps: what is counted wrong stays wrong.
_VERDICTS = {
    SealState.COALESCED: "coalesced",
    SealState.SKIPPED: "skipped",
    SealState.ORPHANED: "orphaned",
}


class Tally:
    def __init__(self, world: "World") -> None:
        self.world, self.state = world, world.state
        self.expected: dict[str, Counter] = {name: Counter() for name in COMPARED}
        self._known: set[bytes] = set()  # Of the tree that is sealed to in this step.
        self._chain: list[bytes] = []  # Of the reservation that is.
        self._seals: dict[int, np.ndarray] = {}  # Answered in this step, by request.
        self._delivered_to = ""
        self._open: set[int] = set()
        self._sizes: dict[int, np.ndarray] = {}  # Bytes of each item, by batch of writes.
        self._classes: dict[int, np.ndarray] = {}
        self._found_on_disk = np.zeros(CLASS_COUNT, np.int64)

    def before(self, event: wished.Event) -> None:
        sessions = self.state.sessions.values()
        self._open = {s.id for s in sessions if s.state == SessionState.OPEN}
        reservation = self.state.reservations.get(getattr(event, "reservation", 0))
        self._known = set(reservation.tree.rows) if reservation else set()
        self._chain = reservation.chain if reservation else []
        self._seals.clear()
        lease = self.state.leases.get(self.state.delivering.get(getattr(event, "request", 0), 0))
        self._delivered_to = self.state.sessions[lease.session].tenant if lease else ""

    def after(self, event: wished.Event, effects: list[out.Effect]) -> None:
        for effect in effects:
            self._on_effect(effect)
        self._on_event(event)
        if self.world.steps % SUMS_EVERY == 0:
            _compare(self.expected, self.state.counts)
            self._check_sums()
            self._check_tiers()
            self._check_bytes()

    # ---- what is said to clients ----

    def promised(self, wish: Wish, promise: Promise) -> None:
        event, index = wish.event, self.state.index
        session = self.state.sessions[event.session]
        digest, tenant = session.keyspaces[event.keyspace][0], session.tenant
        chains = [event.chain[at : at + 32] for at in range(0, len(event.chain), DIGEST_BYTES)]
        for plane_class, lane, chunk in product(
            range(event.class_count), event.lanes, range(len(chains))
        ):
            there, coming = chunk < promise.counts[plane_class], False
            if there:
                row = index.trees_by_key[digest, lane].rows[chains[chunk]]
                coming = bool(index.missing[row, plane_class])
                size = int(index.size[row, plane_class])
                self.expected["fetch_promised_bytes"][tenant, plane_class] += size
            self._fetched((tenant, DRAM, plane_class), hit=there and not coming)
            if self.state.ssd is not None and (coming or not there):
                self._fetched((tenant, SSD, plane_class), hit=coming)
        delivery = "bytes" if event.delivery else "map"
        self.expected["fetches"][tenant, delivery] += 1
        self.expected["fetch_shortfalls"][tenant, promise.reason] += promise.reason != 0
        self.expected["leases_granted"][tenant] += promise.lease != 0

    def _fetched(self, key: tuple[str, str, int], *, hit: bool) -> None:
        self.expected["fetch_requested_strips"][key] += 1
        self.expected["fetch_hit_strips" if hit else "fetch_missed_strips"][key] += 1

    def answered(self, wish: Wish, outcome: out.Outcome) -> None:
        event = wish.event
        session = self.state.sessions.get(event.session)
        tenant = self.world.clients[event.session].tenant
        match outcome:
            case out.Found(counts, lease) if isinstance(event, wished.LookupWanted):
                asked_for = len(event.chain) // DIGEST_BYTES * len(event.lanes)
                for plane_class, count in enumerate(counts):
                    key, hit = (tenant, plane_class), count * len(event.lanes)
                    self.expected["lookup_requested_strips"][key] += asked_for
                    self.expected["lookup_hit_strips"][key] += hit
                    self.expected["lookup_missed_strips"][key] += asked_for - hit
                self.expected["lookups"][tenant] += 1
                self.expected["leases_granted"][tenant] += lease != 0
            case out.Found():
                self.expected["prefetches"][tenant] += 1
            case out.Reserved(reservation, _, states, _, _, reason):
                assert session is not None
                self._reserved(tenant, states, reason)
                self.expected["reservations_opened"][tenant] += reservation != 0

    def _reserved(self, tenant: str, states: np.ndarray, reason: NotAdmitted) -> None:
        for said in states.tolist():
            if said == ReserveState.NOT_ADMITTED:
                self.expected["not_admitted_chunks"][tenant, reason] += 1
            else:
                self.expected["reserved_chunks"][tenant, said] += 1

    # ---- what happens ----

    def _on_event(self, event: wished.Event) -> None:
        count = self.expected
        match event:
            case wished.SealWanted(request):
                self._sealed(event, request)
            case wished.SessionOpened(_, tenant):
                count["sessions_opened"][tenant] += 1
            case wished.SessionEnded(session) | wished.ProcessGone(session):
                if session in self._open:
                    count["sessions_ended"][self.world.clients[session].tenant] += 1
            case wished.DeliveryEnded(_, delivered_bytes, fault):
                tenant = self._delivered_to
                count["deliveries"][tenant, "whole" if fault is None else "ended_early"] += 1
                count["delivered_bytes"][tenant] += delivered_bytes
            case wished.SlabTouched():
                count["slabs_made"][()] += 1
            case wished.SlabFailed():
                count["slabs_failed"][()] += 1
            case told.Recovered():
                # In the same step some of it may be dropped for room.
                on_disk = (self.state.index.segment != 0).sum(axis=0)
                self._found_on_disk = on_disk + self._gone(SSD)
            case told.StripsWritten(batch, items, kinds):
                self._written(batch, items[kinds == 0])
            case told.Committed(_, fault):
                count["ssd_commits"][()] += fault is None
                if fault is not None:
                    count["ssd_commit_faults"][fault.kind] += 1

    def _sealed(self, event: wished.SealWanted, request: int) -> None:
        states = self._seals.get(request)
        if states is None and self.state.ssd is not None and request in self.state.ssd.waits:
            states = self.state.ssd.waits[request].states
        if states is None:
            return  # Refused.
        tenant = self.world.clients[event.session].tenant
        for at, said in enumerate(states.tolist()):
            if said != SealState.SEALED:
                self.expected["sealed_chunks"][tenant, _VERDICTS[said]] += 1
                continue
            known = self._chain[event.first + at] in self._known
            self.expected["sealed_chunks"][tenant, "replaced" if known else "new"] += 1
            for plane_class in range(CLASS_COUNT):
                size = int(event.sizes[at, plane_class])
                self.expected["sealed_bytes"][tenant, plane_class] += size

    def _on_effect(self, effect: out.Effect) -> None:
        match effect:
            case out.LeaseLost(session):
                self.expected["leases_lost"][self.world.clients[session].tenant] += 1
            case out.RecallSlab():
                self.expected["slabs_recalled"][()] += 1
            case out.Answer(request, _, out.Sealed(states)):
                self._seals[request] = states
            case asked.WriteStrips(batch, strips):
                self._sizes[batch], self._classes[batch] = strips.sizes, strips.classes

    def _written(self, batch: int, items: np.ndarray) -> None:
        for size, plane_class in zip(
            self._sizes[batch][items].tolist(), self._classes[batch][items].tolist(), strict=True
        ):
            self.expected["ssd_written_bytes"][plane_class] += size
            self.expected["ssd_written_strips"][plane_class] += 1

    # ---- what must hold among the counts ----

    def _check_sums(self) -> None:
        counts, state = self.state.counts, self.state
        for what in ("fetch", "lookup"):
            hit, missed = (getattr(counts, f"{what}_{kind}_strips") for kind in ("hit", "missed"))
            for key, number in getattr(counts, f"{what}_requested_strips").items():
                require(hit[key] + missed[key] == number, f"counts: {what} {key}")
        for (tenant, tier, plane_class), number in counts.fetch_requested_strips.items():
            if tier == SSD:
                missed = counts.fetch_missed_strips[tenant, DRAM, plane_class]
                require(number == missed, f"counts: asked of ssd {number}, dram missed {missed}")
        ended = counts.leases_ended.total()
        require(counts.leases_granted.total() - ended == len(state.leases), "counts: leases")
        ended = counts.reservations_ended.total()
        there = sum(not reservation.lost for reservation in state.reservations.values())
        require(counts.reservations_opened.total() - ended == there, "counts: reservations")
        ended = counts.sessions_opened.total() - counts.sessions_ended.total()
        sessions = [s for s in state.sessions.values() if s.state == SessionState.OPEN]
        there = sum(not is_own(session.id) for session in sessions)
        require(ended == there, "counts: sessions")

    def _check_tiers(self) -> None:
        """What is in a tier is what came less what went."""
        counts, index = self.state.counts, self.state.index
        chunks = sum(counts.sealed_chunks[key] for key in counts.sealed_chunks if _is_put(key))
        in_dram = ((index.slab != 0) & (index.in_flight == 0)).sum(axis=0)
        on_disk = (index.segment != 0).sum(axis=0)
        gone = {tier: self._gone(tier) for tier in (DRAM, SSD)}
        for plane_class in range(CLASS_COUNT):
            came = chunks + counts.ssd_read_strips[plane_class]
            came += counts.adopted_strips[plane_class]
            left = came - gone[DRAM][plane_class]
            require(left == in_dram[plane_class], f"counts: class {plane_class} in dram")
            came = self._found_on_disk[plane_class] + counts.ssd_durable_strips[plane_class]
            left = came - gone[SSD][plane_class]
            require(left == on_disk[plane_class], f"counts: class {plane_class} on disk")

    def _check_bytes(self) -> None:
        """As of strips; `kvd.daemon.gauges` relies on it, as the columns are long."""
        counts, index = self.state.counts, self.state.index
        whole = (index.slab != 0) & (index.in_flight == 0)
        in_dram = np.where(whole, index.size, 0).sum(axis=0, dtype=np.int64)
        for plane_class in range(CLASS_COUNT):
            left = counts.adopted_bytes[plane_class] + counts.ssd_read_bytes[plane_class]
            left += sum(n for (_, c), n in counts.sealed_bytes.items() if c == plane_class)
            for (_, tier, c, _), size_bytes in counts.evicted_bytes.items():
                left -= size_bytes * (tier == DRAM and c == plane_class)
            require(left == in_dram[plane_class], f"counts: bytes of class {plane_class} in dram")

    def _gone(self, wanted: str) -> np.ndarray:
        gone = np.zeros(CLASS_COUNT, np.int64)
        for (_, tier, plane_class, _), number in self.state.counts.evicted_strips.items():
            gone[plane_class] += number * (tier == wanted)
        return gone


def _is_put(key: tuple[str, str]) -> bool:
    return key[1] in ("new", "replaced")


def _compare(expected: dict[str, Counter], counts: Counts) -> None:
    for name, family in expected.items():
        counted = getattr(counts, name)
        # As dicts first, which is quick; as counters a zero is as good as nothing.
        if not dict.__eq__(counted, family) and counted != family:
            require(False, f"counts: {name} {_differing(counted, family)}")


def _differing(counted: Counter, expected: Counter) -> str:
    keys = [key for key in {**counted, **expected} if counted[key] != expected[key]]
    return ", ".join(f"{key}: {counted[key]}, should be {expected[key]}" for key in keys)

"""Many of everything, nobody cleaning up, nothing that fits: it ends, and the sums are exact."""

import random

import pytest

from kvd.core import evict as evicting
from kvd.core.effects import NotAdmitted, Renewed, Reserved, ReserveState
from kvd.core.events import (
    AbortWanted,
    ProcessGone,
    RenewWanted,
    SessionEnded,
    SlabDetached,
    SlabTouched,
)
from kvd.core.evict import evict
from kvd.core.invariants import check
from kvd.core.step import step
from kvd.core.transitions import StripState
from kvd.errors import ErrorKind
from kvd.limits import DIGEST_BYTES, PAGE_BYTES, Limits
from kvd.testing.scene import Scene, chain_of, kind_of

LEASES = 1000


class Quick(Scene):
    """A scene that looks at all invariants now and then only, for many events."""

    steps = 0

    def tell(self, event):
        self.effects = effects = step(self.state, event, self.now_ns)
        self.steps += 1
        if self.steps % 997 == 0:
            check(self.state)
        for effect in effects:
            match type(effect).__name__:
                case "CreateSlab":
                    self.tell(SlabTouched(effect.slab))
                case "RecallSlab":
                    self.tell(SlabDetached(effect.session, effect.slab))
        self.effects = effects
        return effects


def test_a_thousand_leases_that_nobody_uses_hold_nothing_after_their_time() -> None:
    limits = Limits(slab_bytes=16 * PAGE_BYTES, leases_per_session_max=LEASES)
    scene = Quick(slabs=4, limits=limits)
    writer, idle = scene.join(), scene.join()
    texts = range(15)
    for text in texts:
        assert scene.put(writer, chain_of(1, text)) == NotAdmitted.NONE
    for number in range(LEASES):
        assert scene.look_up(idle, chain_of(1, number % 15), lease=True).lease
    assert kind_of(scene.look_up(idle, chain_of(1), lease=True)) == ErrorKind.OVERLOADED
    while evict(scene.state, set(scene.state.slabs), wanted_bytes=1):
        pass
    assert all(scene.counts(writer, chain_of(1, text)) == (1, 1, 1) for text in texts)
    scene.wait(limits.lease_ttl_ns)
    scene.wait(limits.quarantine_ns)
    assert not scene.state.leases and idle in scene.state.sessions
    while evict(scene.state, set(scene.state.slabs), wanted_bytes=1):
        pass
    assert not scene.state.index.present.any() and scene.state.bytes_in(StripState.READY) == 0
    check(scene.state)


def test_after_any_work_free_and_readable_bytes_are_all_there_is() -> None:
    chance = random.Random(54)
    scene = Quick(slabs=8, slab_pages=32)
    sessions = [scene.join() for _ in range(3)]
    leases, reservations = [], []
    for _ in range(5000):
        session, text = chance.choice(sessions), chance.randrange(60)
        chain = chain_of(chance.randint(1, 4), text)
        match chance.randrange(8):
            case 0 | 1:
                scene.put(session, chain, pages=chance.randint(1, 3))
            case 2:
                reserved = scene.reserve(session, chain)
                if isinstance(reserved, Reserved) and reserved.reservation:
                    reservations.append((session, reserved.reservation))
            case 3 if reservations:
                session, number = reservations.pop(chance.randrange(len(reservations)))
                scene.ask(AbortWanted(scene.number(), session, number))
            case 4:
                found = scene.look_up(session, chain, lease=True)
                leases.append((session, getattr(found, "lease", 0)))
            case 5:
                leases.append((session, getattr(scene.fetch(session, chain), "lease", 0)))
            case 6 if leases:
                scene.release(*leases[chance.randrange(len(leases))])  # Some of them twice.
            case 7 if chance.random() < 0.05:
                scene.wait(chance.choice((1, 10, 100)) * 10**9)
                if chance.random() < 0.3:
                    gone = sessions.pop(0)
                    scene.tell(SessionEnded(gone))
                    scene.tell(ProcessGone(gone))
                    sessions.append(scene.join())
    for session in sessions:
        scene.tell(SessionEnded(session))
        scene.tell(ProcessGone(session))
    for _ in range(5):
        scene.wait(scene.limits.reservation_ttl_ns)
    check(scene.state)
    state = scene.state
    assert not (state.sessions or state.leases or state.reservations)
    ready = state.bytes_in(StripState.READY)
    free = sum(slab.extents.free_bytes for slab in state.slabs.values())
    assert ready + free == 8 * scene.limits.slab_bytes and ready > 0
    columns = state.index
    assert ready == int(columns.size[columns.slab != 0].sum())
    assert not columns.pins.any() and not columns.reads.any()


def test_released_or_renewed_after_its_end_it_is_lost_and_others_keep_theirs() -> None:
    scene = Scene()
    session, other, chain = scene.join(), scene.join(), chain_of(2)
    scene.put(session, chain)
    late, kept = scene.fetch(session, chain).lease, scene.fetch(other, chain).lease
    pins = scene.state.index.pins.sum()
    for _ in range(4):
        scene.wait(scene.limits.lease_ttl_ns // 2)
        assert isinstance(scene.ask(RenewWanted(scene.number(), other, kept)), Renewed)
    scene.wait(scene.limits.quarantine_ns)
    scene.ask(RenewWanted(scene.number(), other, kept))
    before = scene.state.index.pins.sum()
    assert before == pins // 2
    for _ in range(3):
        assert kind_of(scene.release(session, late)) == ErrorKind.LOST
        wish = RenewWanted(scene.number(), session, late)
        assert kind_of(scene.ask(wish)) == ErrorKind.LOST
    assert scene.state.index.pins.sum() == before and list(scene.state.leases) == [kept]


@pytest.mark.parametrize("pages", (2, 7, 16))
def test_small_things_in_every_place_do_not_stop_a_large_one(pages: int) -> None:
    """All can go, nothing is free, and no one of them makes room enough."""
    scene = Scene(slabs=3, slab_pages=16)
    session = scene.join()
    for text in range(40):
        scene.put(session, chain_of(1, text))
    assert scene.put(session, chain_of(1, 99), pages=pages) == NotAdmitted.NONE
    assert scene.counts(session, chain_of(1, 99)) == (1, 1, 1)


def test_what_is_larger_than_all_there_is_is_refused_at_once() -> None:
    scene = Scene(slabs=2, slab_pages=16)
    session = scene.join()
    for text in range(40):
        scene.put(session, chain_of(1, text))
    assert scene.put(session, chain_of(1, 99), pages=16) == NotAdmitted.CAPACITY
    assert kind_of(scene.reserve(session, chain_of(1, 99), pages=17)) == ErrorKind.INVALID
    assert scene.put(session, chain_of(1, 98)) == NotAdmitted.NONE


def test_one_wish_for_very_much_is_served_in_parts_so_that_others_are_between(monkeypatch) -> None:
    """Whatever is asked for, one step makes room a bounded number of times; it is asked again."""
    monkeypatch.setattr(evicting, "ROUNDS_MAX", 8)
    rounds = []
    make_room = evicting._make_room
    monkeypatch.setattr(evicting, "_make_room", lambda *told: rounds.append(1) or make_room(*told))
    scene = Scene(slabs=4, slab_pages=96)
    session = scene.join()
    for text in range(160):
        scene.put(session, chain_of(1, text))
    chain, done, steps = chain_of(100, 777), 0, 0
    while done < 100:
        rounds.clear()
        rest, before = chain[done * DIGEST_BYTES :], chain[: done * DIGEST_BYTES][-DIGEST_BYTES:]
        reserved = scene.reserve(session, rest, before)
        assert len(rounds) <= 8
        states = reserved.states.tolist()
        admitted = states.count(ReserveState.RESERVED)
        whole = admitted == len(states)
        assert admitted and (reserved.reason == NotAdmitted.NONE) == whole
        assert whole or reserved.reason == NotAdmitted.GROWING
        scene.seal(session, reserved.reservation, 0, admitted, last=True)
        done, steps = done + admitted, steps + 1
    assert steps > 3 and scene.counts(session, chain)[0] == 100

"""Who may write which slab: growing, recalls, shares, orphans, tenants."""

import pytest

from kvd.core import shares, slabs
from kvd.core.effects import (
    DestroySlab,
    NotAdmitted,
    RecallSlab,
    Reserved,
)
from kvd.core.events import (
    ProcessGone,
    SessionEnded,
    SlabDetached,
)
from kvd.core.transitions import StripState
from kvd.errors import ErrorKind
from kvd.testing.scene import Scene, chain_of, kind_of

SLABS, SLAB_PAGES = 4, 12
CHUNKS_OF_SLAB = SLAB_PAGES // 3


def fill_up(scene: Scene, session: int, text: int = 0) -> None:
    """Put one chain that takes all slabs."""
    assert scene.put(session, chain_of(SLABS * CHUNKS_OF_SLAB, text)) == NotAdmitted.NONE
    assert scene.state.bytes_in(StripState.FREE) == 0


def put_patiently(scene: Scene, session: int, text: int, rounds: int = 60) -> int:
    """Put other chunks until one is admitted, all recalls honoured; return the rounds it took."""
    for at in range(rounds):
        reason = scene.put(session, chain_of(1, text * 1000 + at))
        honour(scene)
        if reason == NotAdmitted.NONE:
            return at
        scene.wait()
    raise AssertionError(f"no room in {rounds} rounds: {reason!r}")


def honour(scene: Scene) -> None:
    for effect in [e for e in scene.effects if isinstance(e, RecallSlab)]:
        scene.tell(SlabDetached(effect.session, effect.slab))


@pytest.mark.parametrize("tenant", ("red", "blue"))
@pytest.mark.parametrize("event", (SessionEnded, ProcessGone))
def test_what_a_dead_session_left_is_room_for_the_next(event: type, tenant: str) -> None:
    """Its process may live on, as after a reconnect; its slabs must not be out of use for that."""
    scene = Scene(SLABS, SLAB_PAGES)
    dead = scene.join("red")
    texts = range(SLABS * CHUNKS_OF_SLAB)
    for text in texts:
        assert scene.put(dead, chain_of(1, text)) == NotAdmitted.NONE
    for text in [text for turn in range(3) for text in texts[turn::3]]:
        scene.wait()
        scene.look_up(dead, chain_of(1, text), lease=True)
    scene.tell(event(dead))
    scene.wait(scene.limits.quarantine_ns)
    assert dead not in scene.state.sessions
    put_patiently(scene, scene.join(tenant), text=1)
    other = scene.join("red")
    lost = [text for text in texts if not scene.counts(other, chain_of(1, text))[0]]
    assert len(lost) <= CHUNKS_OF_SLAB + 1, "one slab is emptied, not all of them a little"


def test_an_empty_slab_of_another_tenant_is_made_anew() -> None:
    scene = Scene(SLABS, SLAB_PAGES)
    red = scene.join("red")
    assert isinstance(scene.reserve(red, chain_of(SLABS * CHUNKS_OF_SLAB)), Reserved)
    scene.tell(ProcessGone(red))
    assert scene.state.bytes_in(StripState.FREE) == scene.state.capacity_bytes
    put_patiently(scene, scene.join("blue"), text=1)
    destroyed = [e for e in scene.seen if isinstance(e, DestroySlab)]
    assert len(destroyed) == 1, "memory that red wrote is never shown to blue"


@pytest.mark.parametrize("tenant", ("red", "blue"))
def test_a_second_writer_comes_to_its_share(tenant: str) -> None:
    """Though the first goes on putting, and would take back what it gave."""
    scene = Scene(SLABS, SLAB_PAGES)
    rich, poor = scene.join("red"), scene.join(tenant)
    fill_up(scene, rich)
    for at in range(50):
        put_patiently(scene, rich, text=2 * at + 2)
        scene.put(poor, chain_of(1, 2 * at + 3))
        honour(scene)
        scene.wait(10**8)
    owned = [len(scene.state.sessions[session].slabs_owned) for session in (rich, poor)]
    assert owned == [SLABS // 2, SLABS // 2]


def test_who_cannot_make_room_takes_nothing_from_another_tenant() -> None:
    scene = Scene(SLABS, SLAB_PAGES)
    red, blue = scene.join("red"), scene.join("blue")
    chain = chain_of(SLABS // 2 * CHUNKS_OF_SLAB)
    for session in (red, blue):
        assert scene.put(session, chain) == NotAdmitted.NONE
    assert scene.look_up(blue, chain, lease=True).lease
    for text in range(20):
        assert scene.put(blue, chain_of(3, 1 + text)) == NotAdmitted.CAPACITY
    assert scene.counts(red, chain) == (SLABS // 2 * CHUNKS_OF_SLAB,) * 3


def test_a_detach_waits_for_a_lost_reservation() -> None:
    """Its extents are set aside in the slab: without it they would be in a slab that is gone."""
    scene = Scene(SLABS, SLAB_PAGES)
    red, blue = scene.join("red"), scene.join("blue")
    reserved = scene.reserve(red, chain_of(SLABS * CHUNKS_OF_SLAB))
    scene.wait(scene.limits.reservation_ttl_ns)
    for slab in list(scene.state.slabs):
        scene.tell(SlabDetached(red, slab))
    assert scene.put(blue, chain_of(1)) == NotAdmitted.CAPACITY
    assert kind_of(scene.seal(red, reserved.reservation, 0, 1, last=True)) == ErrorKind.LOST
    for slab in list(scene.state.slabs):
        scene.tell(SlabDetached(red, slab))
    put_patiently(scene, blue, text=1)


def test_more_writers_than_slabs_take_turns() -> None:
    """Who has no slab gets that of the writer who has not put for longest."""
    scene = Scene(2, SLAB_PAGES)
    idle, busy, third = (scene.join("red") for _ in range(3))
    for text, session in enumerate((idle, busy)):
        assert scene.put(session, chain_of(CHUNKS_OF_SLAB, text)) == NotAdmitted.NONE
    scene.wait()
    assert scene.put(busy, chain_of(1, 2)) == NotAdmitted.NONE
    put_patiently(scene, third, text=3)
    owned = [len(scene.state.sessions[s].slabs_owned) for s in (idle, busy, third)]
    assert owned == [0, 1, 1]
    put_patiently(scene, idle, text=4)


def test_all_idle_slabs_are_weighed_once_however_many_are_full(monkeypatch) -> None:
    """As an engine finds them that begins anew: one walk over all slabs, not one for each."""
    walks = 0

    def is_last_for_reading(state, session) -> bool:
        nonlocal walks
        walks += 1
        return shares.is_last_for_reading(state, session)

    monkeypatch.setattr(slabs, "is_last_for_reading", is_last_for_reading)
    scene = Scene(slabs=30, slab_pages=6)
    session = scene.join()
    scene.put(session, chain_of(60))
    scene.tell(ProcessGone(session))
    session, walks = scene.join(), 0
    assert scene.put(session, chain_of(1, 7)) == NotAdmitted.NONE
    assert 0 < walks < 10


def test_who_waits_for_a_slab_is_told_to_try_again_each_time() -> None:
    scene = Scene(2, SLAB_PAGES)
    red, blue = scene.join("red"), scene.join("blue")
    assert scene.put(red, chain_of(2 * CHUNKS_OF_SLAB, text=1)) == NotAdmitted.NONE
    reasons = [scene.put(blue, chain_of(1, text)) for text in (2, 3, 4)]
    assert reasons == [NotAdmitted.GROWING] * 3
    for slab in [s for s in scene.state.slabs.values() if s.kept_for == blue]:
        scene.tell(SlabDetached(red, slab.id))
    # It holds another tenant's roots, which go after their leaves: a few at each try.
    assert NotAdmitted.NONE in [scene.put(blue, chain_of(1, text)) for text in range(5, 15)]

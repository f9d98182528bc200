"""Leases by example: bounds, release, expiry, take-over, and what they hold."""

import numpy as np
import pytest

from kvd.core.disk_effects import ReadStrips
from kvd.core.disk_events import StripsRead
from kvd.core.effects import (
    Answer,
    Deliver,
    FetchDone,
    LeaseLost,
    NotAdmitted,
    Promise,
    Released,
    Renewed,
    Revoke,
    SealState,
    Shortfall,
    StopDelivery,
)
from kvd.core.events import (
    CancelWanted,
    Delivery,
    DeliveryEnded,
    DeliveryMoved,
    FetchWanted,
    RenewWanted,
    SessionEnded,
)
from kvd.core.evict import evict
from kvd.core.transitions import LeaseState, StripState
from kvd.errors import ErrorKind, Fault, FaultKind
from kvd.limits import DIGEST_BYTES, PAGE_BYTES, Limits
from kvd.testing.scene import LANE, Scene, chain_of, kind_of
from kvd.types import Lane, Part
from tests.unit.disk_scene import on_disk_only

LEASES = Limits(slab_bytes=16 * PAGE_BYTES, leases_per_session_max=2)
BYTES = Limits(slab_bytes=16 * PAGE_BYTES, lease_bytes_per_session_max=9 * PAGE_BYTES)


def stored(limits: Limits | None = None, count: int = 3) -> tuple[Scene, int, bytes]:
    scene = Scene(limits=limits)
    session, chain = scene.join(), chain_of(count)
    scene.put(session, chain)
    return scene, session, chain


@pytest.mark.parametrize("limits", (LEASES, BYTES), ids=("count", "bytes"))
def test_bounds_refuse_and_leave_no_trace(limits: Limits) -> None:
    scene, session, chain = stored(limits)
    leases = []
    while kind_of(found := scene.look_up(session, chain, lease=True)) is None:
        leases.append(found.lease)
    assert found.kind == ErrorKind.OVERLOADED and found.retry_after_ms
    assert kind_of(scene.fetch(session, chain)) == ErrorKind.OVERLOADED
    assert list(scene.state.leases) == leases
    scene.release(session, leases[0])
    assert isinstance(scene.fetch(session, chain), Promise)


@pytest.mark.parametrize("limits", (LEASES, BYTES), ids=("count", "bytes"))
def test_a_fetch_takes_a_lease_over_at_the_bound(limits: Limits) -> None:
    """Its own lease ends in the same step: it must not be what stands in its way."""
    scene, session, chain = stored(limits)
    while kind_of(found := scene.look_up(session, chain, lease=True)) is None:
        last = found.lease
    promise = scene.fetch(session, chain, lease=last)
    assert isinstance(promise, Promise) and promise.counts == (3, 3, 3)
    assert last not in scene.state.leases


def test_a_second_release_is_lost_and_changes_nobodys_count() -> None:
    scene, session, chain = stored()
    mine = scene.fetch(session, chain).lease
    other = scene.fetch(scene.join(), chain).lease
    assert scene.release(session, mine) == Released()
    for lease in (mine, other, 99):
        assert kind_of(scene.release(session, lease)) == ErrorKind.LOST
    assert list(scene.state.leases) == [other]


def test_a_second_release_during_delivery_is_lost() -> None:
    scene, session, chain = stored()
    lease = scene.fetch(session, chain, Delivery.BYTES).lease
    request = next(e.request for e in scene.effects if isinstance(e, Deliver))
    assert scene.release(session, lease) == Released()
    assert kind_of(scene.release(session, lease)) == ErrorKind.LOST
    assert lease in scene.state.leases, "the daemon itself still reads there"
    effects = scene.tell(DeliveryEnded(request, 5, None))
    assert [e.outcome for e in effects] == [FetchDone(5)], "nothing is revoked that was released"
    assert not scene.state.leases


def test_a_lookup_without_progress_frees_what_it_held() -> None:
    """Looked up, never fetched: lost after its time, evictable after quarantine."""
    scene, session, chain = stored(Limits(slab_bytes=9 * PAGE_BYTES))
    scene.look_up(session, chain, lease=True)
    scene.wait(scene.limits.lease_ttl_ns)
    assert LeaseLost(session, 1) in scene.effects
    assert scene.state.leases[1].state == LeaseState.LOST
    scene.wait(scene.limits.quarantine_ns)
    assert scene.effects[:1] == [Revoke(session, 1)], "before anything is reused"
    assert not scene.state.leases and not scene.state.index.pins.any()


def test_renewed_by_its_holder_and_by_a_moving_delivery() -> None:
    scene, session, chain = stored()
    ttl_ns = scene.limits.lease_ttl_ns
    mapped = scene.fetch(session, chain).lease
    delivered = scene.fetch(session, chain, Delivery.BYTES).lease
    request = next(e.request for e in scene.effects if isinstance(e, Deliver))
    for _ in range(3):
        scene.wait(ttl_ns - 1)
        assert scene.ask(RenewWanted(scene.number(), session, mapped)) == Renewed(ttl_ns)
        scene.tell(DeliveryMoved(request))
    assert {lease.state for lease in scene.state.leases.values()} == {LeaseState.GRANTED}
    scene.wait(ttl_ns)
    assert kind_of(scene.ask(RenewWanted(scene.number(), session, mapped))) == ErrorKind.LOST
    assert scene.state.leases[delivered].state == LeaseState.LOST


@pytest.mark.parametrize("delivery", Delivery)
def test_a_disk_that_moves_keeps_the_lease(delivery: Delivery) -> None:
    """Each piece comes in less than a lease's time, all of them in many times that."""
    scene, session, chain = on_disk_only(chunks=6)
    ttl_ns = scene.limits.lease_ttl_ns
    deadline_ns = scene.now_ns + 30 * ttl_ns
    number = scene.number()
    scene.tell(
        FetchWanted(number, session, 1, (LANE,), chain, 3, 0, 0, delivery, 0, 0, deadline_ns)
    )
    [lease] = scene.state.leases.values()
    read = scene.take(ReadStrips)
    assert read.strips.count == 18
    for item in range(read.strips.count):
        scene.wait(ttl_ns * 3 // 4)
        assert lease.state == LeaseState.GRANTED, item
        came = np.array([item])
        scene.tell(StripsRead(read.batch, came, np.zeros(1, np.uint8), (), False))
    if delivery == Delivery.MAP:
        assert Answer(number, session, FetchDone(0)) in scene.effects
    scene.wait(ttl_ns - 1)
    assert lease.state == LeaseState.GRANTED
    scene.wait(1)
    assert lease.state == LeaseState.LOST, "nothing moves any more"


def test_what_others_read_keeps_no_lease() -> None:
    scene, session, chain = on_disk_only(chunks=6)
    ttl_ns = scene.limits.lease_ttl_ns
    for count in (1, 6):
        few, deadline_ns = chain[: count * DIGEST_BYTES], scene.now_ns + 30 * ttl_ns
        scene.tell(
            FetchWanted(
                scene.number(), session, 1, (LANE,), few, 3, 0, 0, Delivery.MAP, 0, 0, deadline_ns
            )
        )
    scene.take(ReadStrips)
    read = scene.take(ReadStrips)
    first, second = scene.state.leases.values()
    scene.wait(ttl_ns - 1)
    scene.tell(StripsRead(read.batch, np.array([0]), np.zeros(1, np.uint8), (), False))
    scene.wait(1)
    assert (first.state, second.state) == (LeaseState.LOST, LeaseState.GRANTED)


def test_a_lost_lease_that_is_released_moves_no_counter() -> None:
    scene, session, chain = stored()
    lease = scene.fetch(session, chain).lease
    scene.wait(scene.limits.lease_ttl_ns)
    assert scene.release(session, lease) == Released()
    scene.wait(scene.limits.quarantine_ns)
    assert not [e for e in scene.seen if isinstance(e, Revoke)]


def test_take_over_keeps_what_was_found() -> None:
    """Between lookup and fetch the cache is filled: the fetch gets what the lookup was told."""
    scene = Scene(slabs=1, slab_pages=12)
    session, chain = scene.join(), chain_of(3)
    scene.put(session, chain)
    found = scene.look_up(session, chain, lease=True)
    for text in range(1, 9):
        scene.put(session, chain_of(1, text))
    promise = scene.fetch(session, chain, lease=found.lease)
    assert (promise.counts, promise.reason) == ((3, 3, 3), Shortfall.NONE)
    assert list(scene.state.leases) == [promise.lease]


def test_a_lease_that_ended_cannot_be_taken_over() -> None:
    scene, session, chain = stored()
    found = scene.look_up(session, chain, lease=True)
    scene.release(session, found.lease)
    assert kind_of(scene.fetch(session, chain, lease=found.lease)) == ErrorKind.LOST
    other = scene.join()
    theirs = scene.look_up(other, chain, lease=True)
    assert kind_of(scene.fetch(session, chain, lease=theirs.lease)) == ErrorKind.LOST
    assert not scene.state.sessions[session].leases


@pytest.mark.parametrize("end", ("deadline", "cancel"))
def test_a_delivery_that_does_not_end_in_time(end: str) -> None:
    """One answer, at the deadline; its extents stay until the hands say that they stopped."""
    scene, session, chain = stored()
    scene.fetch(session, chain, Delivery.BYTES)
    request = next(e.request for e in scene.effects if isinstance(e, Deliver))
    if end == "cancel":
        scene.tell(CancelWanted(request, session))
    else:
        scene.wait(scene.limits.deadline_ns)
    stop, answer = scene.effects
    assert stop == StopDelivery(request) and kind_of(answer.outcome) == ErrorKind.LATE
    assert not scene.state.pending and request in scene.state.delivering
    assert not [e for e in scene.tell(CancelWanted(request, session)) if e != stop]
    assert scene.tell(DeliveryEnded(request, 4, None)) == []


def test_a_session_that_ends_during_delivery_owns_its_lease_until_it_stopped() -> None:
    scene, session, chain = stored()
    scene.fetch(session, chain, Delivery.BYTES)
    request = next(e.request for e in scene.effects if isinstance(e, Deliver))
    assert StopDelivery(request) in scene.tell(SessionEnded(session))
    scene.wait(10 * scene.limits.quarantine_ns)
    assert session in scene.state.sessions and scene.state.leases
    scene.tell(DeliveryEnded(request, 0, None))
    scene.wait()
    assert not scene.state.sessions and not scene.state.leases


def test_a_strip_that_a_delivery_found_broken_is_not_offered_and_heals() -> None:
    """Its reader got nothing that he could report: without that, nobody would ever mend it."""
    scene, session, chain = stored(count=5)
    scene.fetch(session, chain, Delivery.BYTES)
    request = next(e.request for e in scene.effects if isinstance(e, Deliver))
    fault = Fault(FaultKind.CHECKSUM, "no table")
    [answer] = scene.tell(DeliveryEnded(request, 7, fault, (0, 3)))
    assert kind_of(answer.outcome) == ErrorKind.CORRUPT
    assert scene.counts(session, chain) == (3, 3, 3)
    assert scene.put(session, chain) == NotAdmitted.NONE
    assert scene.counts(session, chain) == (5, 5, 5)


def test_what_was_reported_corrupt_is_not_offered_until_replaced() -> None:
    scene, session, chain = stored(count=5)
    promise = scene.fetch(session, chain)
    scene.release(session, promise.lease, 2)
    short = scene.fetch(session, chain)
    assert (short.counts, short.reason) == ((2, 2, 2), Shortfall.CONDEMNED)
    assert scene.counts(session, chain) == (2, 2, 2)
    scene.put(session, chain)
    assert scene.fetch(session, chain).counts == (5, 5, 5)
    assert scene.state.bytes_in(StripState.FREEING) > 0, "the short one still holds the old"


def test_a_condemned_chunk_that_goes_takes_the_mark_with_it() -> None:
    """Or all lookups would walk their chains for ever after."""
    scene, session, chain = stored(count=2)
    scene.release(session, scene.fetch(session, chain).lease, 1)
    while evict(scene.state, set(scene.state.slabs), wanted_bytes=1):
        pass
    scene.wait()
    assert not scene.state.index.condemned.any()


def test_a_report_is_not_about_what_replaced_the_bytes() -> None:
    scene, session, chain = stored()
    early, late = (scene.fetch(session, chain).lease for _ in range(2))
    scene.release(session, early, 1)
    assert scene.fetch(session, chain).reason == Shortfall.CONDEMNED
    scene.put(session, chain)
    assert scene.fetch(session, chain).counts == (3, 3, 3)
    scene.release(session, late, 1)
    assert scene.fetch(session, chain).counts == (3, 3, 3)


def test_nor_about_what_was_reserved_before_and_sealed_after() -> None:
    """What replaces may have the older generation: the order of seals counts."""
    scene, chain = Scene(), chain_of(3)
    session, slow = scene.join(), scene.join()
    reserved = scene.reserve(slow, chain)
    scene.put(session, chain)
    early, late = (scene.fetch(session, chain).lease for _ in range(2))
    scene.release(session, early, 1)
    states = scene.seal(slow, reserved.reservation, 0, 3, last=True)
    assert states == [SealState.COALESCED, SealState.SEALED, SealState.COALESCED]
    scene.release(session, late, 1)
    fresh = scene.fetch(session, chain)
    assert fresh.counts == (3, 3, 3)
    scene.release(session, fresh.lease, 1)
    assert scene.counts(session, chain) == (1, 1, 1)


def test_no_tenant_waits_for_the_readers_of_another() -> None:
    scene, session, chain = stored()
    stranger = scene.join("blue")
    scene.put(stranger, chain)
    foreign = scene.fetch(stranger, chain).lease
    own = scene.fetch(session, chain).lease
    scene.release(session, own, 1)
    reader = scene.fetch(session, chain).lease
    scene.put(session, chain)
    assert scene.state.bytes_in(StripState.FREEING) > 0
    scene.release(session, reader)
    assert scene.state.bytes_in(StripState.FREEING) == 0 and foreign in scene.state.leases


def test_asking_costs_no_memory() -> None:
    scene, session, chain = stored()
    trees = len(scene.state.index.trees)
    strange = Lane(part=Part(b"8 bytes.", 3))
    assert scene.counts(session, chain, strange) == (0, 0, 0)
    assert len(scene.state.index.trees) == trees

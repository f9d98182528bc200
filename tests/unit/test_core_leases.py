"""Leases by example: bounds, release, expiry, take-over, and what they hold."""

import pytest

from kvd.core.effects import (
    Deliver,
    FetchDone,
    Promise,
    Released,
)
from kvd.core.events import (
    Delivery,
    DeliveryEnded,
)
from kvd.errors import ErrorKind
from kvd.limits import PAGE_BYTES, Limits
from kvd.testing.scene import Scene, chain_of, kind_of

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

"""What an operator may do to the cache, and what it may not: with every invariant checked."""

import pytest

from kvd.core.effects import Cleared, Evicted, Pinned, Unpinned
from kvd.core.events import ClearWanted, DrainStarted
from kvd.core.operate import STRIPS_PER_STEP
from kvd.core.operator_events import EvictWanted, ForgetWanted, PinWanted, UnpinWanted
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, PAGE_BYTES
from kvd.testing.scene import Scene, branch_of, chain_of, kind_of
from kvd.types import CLASS_COUNT

PAGES = 3  # Of one chunk.


def digest(scene: Scene) -> bytes:
    return scene.state.index.trees[0].digest


def pin(scene: Scene, chain: bytes, class_count: int = 3) -> Pinned | KvdError:
    return scene.ask(PinWanted(scene.number(), digest(scene), chain, class_count))


def evict(scene: Scene, size_bytes: int = 0, *, lossy: bool = True, tenant: str = "red") -> Evicted:
    return scene.ask(EvictWanted(scene.number(), tenant, b"", size_bytes, lossy))


def test_what_is_nowhere_else_goes_only_if_it_is_said() -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(4))
    assert evict(scene, lossy=False) == Evicted(0, 0, False)
    assert evict(scene) == Evicted(12, 12 * PAGE_BYTES, False)
    assert scene.counts(session, chain_of(4)) == (0, 0, 0)


def test_some_bytes_leave_leaves_and_low_planes_first() -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(4))
    assert evict(scene, 4 * PAGE_BYTES).strips == 4
    assert scene.counts(session, chain_of(4)) == (3, 3, 2)


def test_what_is_held_stays_and_other_tenants_keep_theirs() -> None:
    scene = Scene(slabs=6)
    red, blue = scene.join("red"), scene.join("blue")
    scene.put(red, branch_of(chain_of(2), 1, text=1))
    scene.put(blue, chain_of(2))
    promise = scene.fetch(red, chain_of(2))
    assert evict(scene) == Evicted(PAGES, PAGES * PAGE_BYTES, False)
    assert scene.counts(red, chain_of(2)) == (2, 2, 2) == scene.counts(blue, chain_of(2))
    scene.release(red, promise.lease)
    assert evict(scene).strips == 2 * PAGES


def test_much_that_is_held_does_not_slow_down_the_rest() -> None:
    """A long chain is deeper than all that may go, and comes before it."""
    scene = Scene(slabs=8, slab_pages=256)
    session, long, short = scene.join(), chain_of(400, 1), chain_of(30, 2)
    scene.put(session, long)
    scene.put(session, short)
    lease = scene.look_up(session, long, lease=True).lease
    strips = 30 * CLASS_COUNT
    assert evict(scene) == Evicted(strips, strips * PAGE_BYTES, False)
    scene.release(session, lease)
    first = evict(scene)
    assert first == Evicted(STRIPS_PER_STEP, STRIPS_PER_STEP * PAGE_BYTES, True)
    assert first.strips + evict(scene).strips == 400 * CLASS_COUNT


def test_a_tenant_or_keyspace_that_has_nothing() -> None:
    scene = Scene()
    assert evict(scene, tenant="nobody") == Evicted(0, 0, False)
    assert scene.ask(ForgetWanted(scene.number(), "nobody", b"", 0)) == Cleared(0, 0)
    refusal = scene.ask(EvictWanted(scene.number(), "", b"\7" * 32, 0, True))
    assert kind_of(refusal) == ErrorKind.INVALID and "0707" in refusal.message


def test_a_pin_holds_its_prefix_through_eviction() -> None:
    scene = Scene(slabs=2, slab_pages=12)
    session = scene.join()
    scene.put(session, chain_of(2, text=1))
    pinned = pin(scene, chain_of(3, text=1))
    assert pinned == Pinned(1, (2, 2, 2), 2 * PAGES * PAGE_BYTES)
    for text in range(2, 12):
        scene.put(session, chain_of(3, text))
    assert scene.counts(session, chain_of(2, text=1)) == (2, 2, 2)
    assert evict(scene).strips and scene.counts(session, chain_of(2, text=1)) == (2, 2, 2)
    assert scene.ask(UnpinWanted(scene.number(), pinned.pin)) == Unpinned()
    assert evict(scene).strips == 2 * PAGES
    assert kind_of(scene.ask(UnpinWanted(scene.number(), pinned.pin))) == ErrorKind.INVALID


def test_a_pin_of_some_classes_leaves_the_others() -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(2))
    assert pin(scene, chain_of(2), 1).counts == (2, 0, 0)
    evict(scene)
    assert scene.counts(session, chain_of(2)) == (2, 0, 0)


def test_pins_have_bounds() -> None:
    scene = Scene(slabs=1, slab_pages=12)
    session = scene.join()
    scene.put(session, chain_of(3))
    refusal = pin(scene, chain_of(3))
    assert kind_of(refusal) == ErrorKind.INVALID and "half of dram" in refusal.message
    assert pin(scene, chain_of(2)).size_bytes == 2 * PAGES * PAGE_BYTES
    assert kind_of(pin(scene, chain_of(1))) == ErrorKind.INVALID
    assert kind_of(pin(scene, chain_of(2, text=5))) == ErrorKind.INVALID


@pytest.mark.parametrize("by_operator", [True, False])
def test_a_clear_ends_pins_and_drops_all(by_operator: bool) -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(3))
    pin(scene, chain_of(2))
    wish = ClearWanted(scene.number(), session, 1, 0)
    if by_operator:
        wish = ForgetWanted(scene.number(), "", digest(scene), 0)
    assert scene.ask(wish) == Cleared(3, 0)
    assert not scene.state.pins and scene.counts(session, chain_of(3)) == (0, 0, 0)


def test_a_tenant_is_cleared_with_all_its_keyspaces() -> None:
    scene = Scene(slabs=6)
    red, blue = scene.join("red"), scene.join("blue")
    scene.put(red, chain_of(3))
    scene.put(blue, chain_of(2))
    assert scene.ask(ForgetWanted(scene.number(), "red", b"", 0)) == Cleared(3, 0)
    assert scene.counts(blue, chain_of(2)) == (2, 2, 2)


def test_a_pin_outlives_the_session_that_put() -> None:
    scene = Scene()
    session, other = scene.join(), scene.join()
    scene.put(session, chain_of(2))
    pin(scene, chain_of(2))
    scene.put(other, chain_of(2) + branch_of(chain_of(2), 1, 3)[2 * DIGEST_BYTES :])
    assert scene.counts(other, chain_of(2)) == (2, 2, 2)


def test_nothing_is_taken_while_draining() -> None:
    scene = Scene()
    scene.put(scene.join(), chain_of(1))
    scene.tell(DrainStarted())
    assert kind_of(pin(scene, chain_of(1))) == ErrorKind.UNAVAILABLE

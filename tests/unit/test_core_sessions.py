"""Sessions by example: what ends with them, what waits for their process, who sees what."""

import numpy as np
import pytest

from kvd.core.effects import (
    DestroySlab,
    GiveSlab,
    KeyspaceGranted,
    NotAdmitted,
    Revoke,
    SealState,
    TellDraining,
)
from kvd.core.events import (
    DrainStarted,
    KeyspaceWanted,
    LookupWanted,
    ProcessGone,
    SessionEnded,
    SessionOpened,
    SlabDetached,
    SlabFailed,
    SlabTouched,
    Started,
)
from kvd.core.slabs import TOUCH_RETRY_NS
from kvd.core.state import CoreConfig, new_state
from kvd.core.step import step
from kvd.core.transitions import SlabState, StripState
from kvd.errors import ErrorKind, Fault, FaultKind
from kvd.identity import Keyspace
from kvd.limits import PAGE_BYTES, Limits
from kvd.shape import BlockShape, HitRule, KvGroup, TensorShape
from kvd.testing.scene import KEYSPACE, LANE, SHAPE, Scene, chain_of, kind_of
from kvd.types import Dtype, Lane, Role, Shard, ShardScheme


def test_tenants_never_see_each_others_chunks() -> None:
    """The same tokens, the same keyspace, the same lane: two tenants, two trees, two slabs."""
    scene = Scene()
    red, blue = scene.join("red"), scene.join("blue")
    scene.put(red, chain_of(3))
    assert scene.counts(blue, chain_of(3)) == (0, 0, 0)
    assert scene.fetch(blue, chain_of(3)).counts == (0, 0, 0)
    assert scene.put(blue, chain_of(3)) == NotAdmitted.NONE
    for session in (red, blue):
        assert scene.fetch(session, chain_of(3)).counts == (3, 3, 3)
    given = {}
    for effect in scene.seen:
        if isinstance(effect, GiveSlab):
            given.setdefault(effect.slab, set()).add(scene.state.sessions[effect.session].tenant)
    assert sorted(map(sorted, given.values())) == [["blue"], ["red"]]


def test_a_handle_belongs_to_its_session() -> None:
    scene = Scene()
    session = scene.join()
    other = Keyspace("another", "revision", SHAPE)
    assert scene.ask(KeyspaceWanted(scene.number(), session, other)).keyspace == 2
    assert scene.ask(KeyspaceWanted(scene.number(), session, KEYSPACE)).keyspace == 1
    assert scene.counts(scene.join(), chain_of(1)) == (0, 0, 0)
    for handle in (0, 2, 9):
        stranger = scene.join()
        wish = LookupWanted(scene.number(), stranger, handle, (LANE,), chain_of(1), False)
        assert kind_of(scene.ask(wish)) == ErrorKind.INVALID


STATE = TensorShape(Role.STATE, 1, 8, Dtype.BF16)
SHAPES = {
    "no layers": (BlockShape.of_attention(0, 2, 8, Dtype.BF16), ErrorKind.INVALID),
    "no groups": (BlockShape(()), ErrorKind.INVALID),
    "a rule of later": (
        BlockShape((KvGroup(2, (STATE,), HitRule.STATE),)),
        ErrorKind.INCOMPATIBLE,
    ),
    "a state under the rule of tokens": (
        BlockShape((KvGroup(2, (STATE,)),)),
        ErrorKind.INVALID,
    ),
    "a state beside KV of tokens": (
        BlockShape((*SHAPE.groups, KvGroup(2, (*SHAPE.groups[0].tensors, STATE)))),
        ErrorKind.INVALID,
    ),
}


@pytest.mark.parametrize(("shape", "kind"), SHAPES.values(), ids=SHAPES)
def test_shapes_that_cannot_be(shape: BlockShape, kind: ErrorKind) -> None:
    scene = Scene()
    wish = KeyspaceWanted(scene.number(), scene.join(), Keyspace("m", "r", shape))
    assert kind_of(scene.ask(wish)) == kind


@pytest.mark.parametrize("field", ("model", "weight_revision", "chain", "layout", "chunk_tokens"))
def test_a_keyspace_names_what_it_is_of(field: str) -> None:
    scene = Scene()
    values = {"model": "m", "weight_revision": "r", "shape": SHAPE}
    values[field] = 0 if field == "chunk_tokens" else ""
    refusal = scene.ask(KeyspaceWanted(scene.number(), scene.join(), Keyspace(**values)))
    assert kind_of(refusal) == ErrorKind.INVALID and field in refusal.message


def test_bounded_keyspaces() -> None:
    scene = Scene(limits=Limits(slab_bytes=16 * PAGE_BYTES, keyspaces_per_session_max=2))
    session = scene.join()
    kinds = [
        kind_of(scene.ask(KeyspaceWanted(scene.number(), session, Keyspace("m", name, SHAPE))))
        for name in ("a", "b", "a")
    ]
    assert kinds == [None, ErrorKind.OVERLOADED, None]


def test_a_lane_outside_the_shape_is_refused() -> None:
    scene = Scene()
    session = scene.join()
    for lane in (Lane(kv_group=1), Lane(shard=Shard(ShardScheme.HEADS, 0, 3))):
        wish = LookupWanted(scene.number(), session, 1, (lane,), chain_of(1), False)
        assert kind_of(scene.ask(wish)) == ErrorKind.INVALID
    twice = LookupWanted(scene.number(), session, 1, (LANE, LANE), chain_of(1), False)
    assert kind_of(scene.ask(twice)) == ErrorKind.INVALID


def test_a_client_killed_during_a_put_leaves_nothing() -> None:
    scene = Scene()
    session = scene.join()
    reserved = scene.reserve(session, chain_of(4))
    scene.seal(session, reserved.reservation, 0, 1, last=False)
    scene.tell(ProcessGone(session))
    assert not scene.state.sessions and not scene.state.reservations
    assert scene.state.bytes_in(StripState.READY) == 3 * PAGE_BYTES
    assert scene.state.bytes_in(StripState.FREE) == scene.state.capacity_bytes - 3 * PAGE_BYTES
    assert scene.counts(scene.join(), chain_of(4)) == (1, 1, 1)


def test_a_zombie_keeps_its_places_until_its_process_is_gone() -> None:
    scene = Scene()
    session = scene.join()
    scene.reserve(session, chain_of(4))
    scene.tell(SessionEnded(session))
    scene.wait(10 * scene.limits.quarantine_ns)
    assert session not in scene.state.sessions, "its record goes, its extents stay"
    assert scene.state.bytes_in(StripState.QUARANTINED) == 0, "but an emptied slab is given up"
    assert not [s for s in scene.state.slabs.values() if s.state == SlabState.ORPHAN]


def test_a_zombies_slab_with_something_to_read_stays() -> None:
    scene = Scene()
    session = scene.join()
    reserved = scene.reserve(session, chain_of(4))
    scene.seal(session, reserved.reservation, 0, 1, last=False)
    scene.tell(SessionEnded(session))
    scene.wait(10 * scene.limits.quarantine_ns)
    quarantined = scene.state.bytes_in(StripState.QUARANTINED)
    assert quarantined == 9 * PAGE_BYTES
    assert [s.state for s in scene.state.slabs.values()].count(SlabState.ORPHAN) == 1
    scene.tell(ProcessGone(session))
    assert scene.state.bytes_in(StripState.QUARANTINED) == 0
    assert all(slab.state == SlabState.IDLE for slab in scene.state.slabs.values())


def test_what_a_child_may_still_write_is_offered_to_nobody() -> None:
    """A process is gone, and one that it forked has its mappings (I4)."""
    scene = Scene(slabs=2, slab_pages=9)
    session = scene.join()
    reserved = scene.reserve(session, chain_of(6))
    scene.seal(session, reserved.reservation, 0, 4, last=False)
    scene.tell(ProcessGone(session, frozenset({1, 2})))
    assert session not in scene.state.sessions
    assert [s.state for s in scene.state.slabs.values()] == [SlabState.ORPHAN] * 2
    assert scene.state.bytes_in(StripState.QUARANTINED) == 6 * PAGE_BYTES
    assert scene.counts(scene.join(), chain_of(6)) == (4, 4, 4), "it is read, as before"
    scene.tell(ProcessGone(session, frozenset({2})))
    assert [s.state for s in scene.state.slabs.values()] == [SlabState.IDLE, SlabState.ORPHAN]
    assert scene.state.bytes_in(StripState.QUARANTINED) == 6 * PAGE_BYTES
    scene.tell(ProcessGone(session))
    assert [s.state for s in scene.state.slabs.values()] == [SlabState.IDLE] * 2
    assert scene.state.bytes_in(StripState.QUARANTINED) == 0


def test_what_a_child_may_still_write_is_given_up_once_nothing_in_it_is_read() -> None:
    scene = Scene(slabs=1, slab_pages=9)
    session = scene.join()
    scene.reserve(session, chain_of(3))
    scene.tell(ProcessGone(session, frozenset({1})))
    assert DestroySlab(1) in scene.seen
    scene.wait()
    assert scene.put(scene.join(), chain_of(3)) == NotAdmitted.NONE
    scene.tell(ProcessGone(session))


def test_the_leases_of_a_lost_session_are_revoked_before_reuse() -> None:
    scene = Scene()
    writer, reader = scene.join(), scene.join()
    scene.put(writer, chain_of(2))
    scene.fetch(reader, chain_of(2))
    scene.tell(SessionEnded(reader))
    assert scene.state.index.pins.any(), "its process may still read"
    scene.wait(scene.limits.quarantine_ns)
    assert [e for e in scene.effects if isinstance(e, Revoke)] == [Revoke(reader, 1)]
    assert not scene.state.index.pins.any()


def test_endings_in_any_order_and_twice() -> None:
    scene = Scene()
    for order in ((SessionEnded, ProcessGone), (ProcessGone, SessionEnded), (ProcessGone,) * 2):
        session = scene.join()
        scene.reserve(session, chain_of(2))
        for event in order:
            scene.tell(event(session))
        assert session not in scene.state.sessions
    scene.tell(SlabDetached(99, 1))
    scene.tell(SlabDetached(session, 99))


def test_draining_takes_no_new_wishes_and_ends_what_is_under_way() -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(2))
    lease = scene.fetch(session, chain_of(2)).lease
    reserved = scene.reserve(session, chain_of(4))
    assert scene.tell(DrainStarted()) == [TellDraining(session)]
    refused = (
        scene.reserve(session, chain_of(1)),
        scene.look_up(session, chain_of(1)),
        scene.fetch(session, chain_of(1)),
        scene.ask(KeyspaceWanted(scene.number(), session, KEYSPACE)),
    )
    assert [kind_of(outcome) for outcome in refused] == [ErrorKind.UNAVAILABLE] * 4
    states = scene.seal(session, reserved.reservation, 2, 2, last=True)
    assert states == [SealState.SEALED] * 2
    assert kind_of(scene.release(session, lease)) is None
    late = scene.number()
    assert scene.tell(SessionOpened(late, "red")) == [TellDraining(late)]


def test_dram_grows_slab_by_slab_and_bears_a_failure() -> None:
    limits = Limits(slab_bytes=6 * PAGE_BYTES)
    state = new_state(CoreConfig(3 * limits.slab_bytes, limits), epoch=1)
    (first,) = step(state, Started(), 0)
    assert state.capacity_bytes == 0
    (second,) = step(state, SlabTouched(first.slab), 1)
    assert state.capacity_bytes == limits.slab_bytes
    fault = Fault(FaultKind.NO_SPACE, "no memory")
    assert step(state, SlabFailed(second.slab, fault), 2) == []
    scene = Scene.__new__(Scene)
    scene.state, scene.limits, scene.now_ns, scene._number = state, limits, 2, 0
    scene.effects, scene.seen = [], []
    session = scene.join()
    assert scene.put(session, chain_of(2)) == NotAdmitted.NONE, "what there is serves"
    scene.wait(TOUCH_RETRY_NS - 3)
    assert state.capacity_bytes == limits.slab_bytes
    scene.wait(3)
    assert state.capacity_bytes == 3 * limits.slab_bytes


def test_growing_is_said_while_it_lasts() -> None:
    limits = Limits(slab_bytes=3 * PAGE_BYTES)
    state = new_state(CoreConfig(2 * limits.slab_bytes, limits), epoch=1)
    (first,) = step(state, Started(), 0)
    step(state, SlabTouched(first.slab), 0)
    step(state, SessionOpened(1, "red"), 0)
    (granted,) = step(state, KeyspaceWanted(1, 1, KEYSPACE), 0)
    assert isinstance(granted.outcome, KeyspaceGranted)
    scene = Scene.__new__(Scene)
    scene.state, scene.limits, scene.now_ns, scene._number = state, limits, 0, 10
    scene.effects, scene.seen = [], []
    assert scene.put(1, chain_of(2)) == NotAdmitted.GROWING
    assert scene.counts(1, chain_of(2)) == (1, 1, 1), "what had room is not thrown away"
    assert np.array_equal(scene.state.index.pins, np.zeros_like(scene.state.index.pins))

"""Reserve and Seal by example: what each chunk is answered, and what becomes of its places."""

import numpy as np
import pytest

from kvd.core.effects import NotAdmitted, Reserved, ReserveState, SealState
from kvd.core.events import AbortWanted, ReserveWanted, SealWanted, SessionEnded
from kvd.core.evict import drop_class
from kvd.core.story import Why
from kvd.core.transitions import StripState
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, PAGE_BYTES, Limits
from kvd.testing.scene import LANE, Scene, branch_of, chain_of, kind_of
from kvd.types import CLASS_COUNT, PlaneClass

HAVE, RESERVED, REPLACE, REFUSED = (
    ReserveState.HAVE,
    ReserveState.RESERVED,
    ReserveState.REPLACE,
    ReserveState.NOT_ADMITTED,
)


def drop(scene: Scene, chain: bytes, *classes: PlaneClass) -> None:
    """Drop classes of the last chunk of a chain."""
    row = scene.state.index.trees[0].rows[chain[-DIGEST_BYTES:]]
    for plane_class in classes:
        drop_class(scene.state, row, plane_class, Why.ROOM)


def test_what_is_had_what_is_incomplete_and_what_is_not_there() -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(3))
    drop(scene, chain_of(3), PlaneClass.EXACT)
    reserved = scene.reserve(session, chain_of(5))
    assert reserved.states.tolist() == [HAVE, HAVE, REPLACE, RESERVED, RESERVED]
    assert (reserved.slabs != 0).all(axis=1).tolist() == [False, False, True, True, True]
    states = scene.seal(session, reserved.reservation, 0, 5, last=True)
    assert states == [SealState.SKIPPED] * 2 + [SealState.SEALED] * 3
    assert scene.counts(session, chain_of(5)) == (5, 5, 5)


@pytest.mark.parametrize("seals", (1, 2))
def test_a_chunk_behind_a_gap_cannot_be_one_that_is_known_elsewhere(seals: int) -> None:
    """A chain names its whole past: a known chunk behind an unknown one is another chain's."""
    scene = Scene()
    session = scene.join()
    known, unknown = chain_of(1, text=1), chain_of(1, text=2)
    if seals == 1:
        scene.put(session, known)
        drop(scene, known, PlaneClass.EXACT)
        assert kind_of(scene.reserve(session, unknown + known)) == ErrorKind.INVALID
        return
    reserved = scene.reserve(session, unknown + known)
    scene.put(session, known)
    drop(scene, known, PlaneClass.EXACT)
    states = scene.seal(session, reserved.reservation, 0, 2, last=True)
    assert states == [SealState.SEALED, SealState.ORPHANED]


def test_the_same_chunk_twice_is_no_chain() -> None:
    scene = Scene()
    assert kind_of(scene.reserve(scene.join(), chain_of(1) * 2)) == ErrorKind.INVALID


def test_a_known_chunk_behind_another_parent_is_invalid() -> None:
    scene = Scene()
    session = scene.join()
    stem = chain_of(2)
    scene.put(session, branch_of(stem, 2, text=1))
    scene.put(session, chain_of(2, text=5))
    tail = branch_of(stem, 2, text=1)[len(stem) :]
    assert kind_of(scene.reserve(session, tail, parent=stem[:DIGEST_BYTES])) == ErrorKind.INVALID
    assert kind_of(scene.reserve(session, chain_of(2, text=5) + tail)) == ErrorKind.INVALID
    assert scene.reserve(session, tail, parent=stem[-DIGEST_BYTES:]).states.tolist() == [HAVE, HAVE]


def test_coalesced_and_replaced_by_another() -> None:
    """Two puts of the same chunks: the first seal wins, the second keeps nothing."""
    scene = Scene()
    first, second = scene.join(), scene.join()
    chain = chain_of(3)
    mine, other = scene.reserve(first, chain), scene.reserve(second, chain)
    assert other.generation > mine.generation
    assert scene.seal(second, other.reservation, 0, 2, last=False) == [SealState.SEALED] * 2
    states = scene.seal(first, mine.reservation, 0, 3, last=True)
    assert states == [SealState.COALESCED] * 2 + [SealState.SEALED]
    assert scene.seal(second, other.reservation, 2, 1, last=True) == [SealState.COALESCED]
    promise = scene.fetch(first, chain)
    generations = promise.lanes[0].generations.tolist()
    assert generations == [other.generation] * 2 + [mine.generation]
    assert scene.state.bytes_in(StripState.READY) == 9 * PAGE_BYTES


def test_orphaned_when_the_chunk_before_is_not_there() -> None:
    scene = Scene()
    session = scene.join()
    reserved = scene.reserve(session, chain_of(4))
    states = scene.seal(session, reserved.reservation, 1, 2, last=False)
    assert states == [SealState.ORPHANED] * 2
    assert scene.seal(session, reserved.reservation, 0, 4, last=True) == [
        SealState.SEALED, SealState.SKIPPED, SealState.SKIPPED, SealState.ORPHANED,
    ]  # fmt: skip
    assert scene.counts(session, chain_of(4)) == (1, 1, 1)


def test_nothing_is_found_before_its_seal() -> None:
    scene = Scene()
    session = scene.join()
    reserved = scene.reserve(session, chain_of(4), pages=2)
    assert scene.counts(session, chain_of(4)) == (0, 0, 0)
    scene.seal(session, reserved.reservation, 0, 2, last=False)
    assert scene.counts(session, chain_of(4)) == (2, 2, 2)
    assert scene.state.bytes_in(StripState.FILLING) == 2 * 6 * PAGE_BYTES
    assert scene.state.bytes_in(StripState.READY) == 2 * 3 * PAGE_BYTES, "the tails returned"
    scene.ask(AbortWanted(scene.number(), session, reserved.reservation))
    assert scene.counts(session, chain_of(4)) == (2, 2, 2)
    assert scene.state.bytes_in(StripState.FILLING) == 0


def test_a_replaced_generation_is_readable_until_the_seal_and_under_its_lease() -> None:
    scene = Scene()
    session = scene.join()
    chain = chain_of(2)
    scene.put(session, chain)
    old = scene.fetch(session, chain, class_count=2)
    drop(scene, chain, PlaneClass.EXACT)
    reserved = scene.reserve(session, chain)
    assert reserved.states.tolist() == [HAVE, REPLACE]
    assert scene.counts(session, chain) == (2, 2, 1)
    scene.seal(session, reserved.reservation, 0, 2, last=True)
    assert scene.counts(session, chain) == (2, 2, 2)
    assert scene.state.bytes_in(StripState.FREEING) == 2 * PAGE_BYTES, "the old is still read"
    new = scene.fetch(session, chain)
    assert new.lanes[0].generations[1] > old.lanes[0].generations[1]
    scene.release(session, old.lease)
    assert scene.state.bytes_in(StripState.FREEING) == 0


def test_what_was_answered_as_had_stays_until_the_reservation_ends() -> None:
    scene = Scene(slabs=1, slab_pages=12)
    session, chain = scene.join(), chain_of(3)
    scene.put(session, chain)
    reserved = scene.reserve(session, chain_of(4))
    assert reserved.states.tolist() == [HAVE] * 3 + [RESERVED]
    assert scene.put(session, chain_of(1, text=7)) == NotAdmitted.CAPACITY
    assert scene.seal(session, reserved.reservation, 3, 1, last=True) == [SealState.SEALED]
    assert scene.put(session, chain_of(1, text=7)) == NotAdmitted.NONE
    assert scene.counts(session, chain_of(4))[2] < 4


@pytest.mark.parametrize("parent", (chain_of(1, text=9), chain_of(3)[-DIGEST_BYTES:]))
def test_a_broken_prefix_is_not_admitted(parent: bytes) -> None:
    """The parent was never stored, or lost a class."""
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(3))
    drop(scene, chain_of(3), PlaneClass.EXACT)
    reserved = scene.reserve(session, branch_of(chain_of(3), 2, text=1)[-64:], parent)
    assert (reserved.reason, reserved.reservation) == (NotAdmitted.PREFIX_BROKEN, 0)
    assert reserved.states.tolist() == [REFUSED] * 2


def test_a_full_cache_refuses_the_tail() -> None:
    scene = Scene(slabs=1, slab_pages=9)
    session = scene.join()
    reserved = scene.reserve(session, chain_of(5))
    assert reserved.states.tolist() == [RESERVED] * 3 + [REFUSED] * 2
    assert reserved.reason == NotAdmitted.CAPACITY
    states = scene.seal(session, reserved.reservation, 0, 5, last=True)
    assert states == [SealState.SEALED] * 3 + [SealState.SKIPPED] * 2


SIZES = {
    "larger than a slab": (np.array([[17 * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES]], np.uint32),
                           ("69632", "65536")),
    "not whole pages": (np.array([[1000, PAGE_BYTES, PAGE_BYTES]], np.uint32), ("4096",)),
    "zero": (np.array([[0, PAGE_BYTES, PAGE_BYTES]], np.uint32), ("4096",)),
    "wrong shape": (np.full((2, CLASS_COUNT), PAGE_BYTES, np.uint32), ("(2, 3)", "1 chunks")),
}  # fmt: skip


@pytest.mark.parametrize(("sizes", "named"), SIZES.values(), ids=SIZES)
def test_sizes_that_cannot_be_are_refused_with_the_numbers(
    sizes: np.ndarray, named: tuple[str, ...]
) -> None:
    scene = Scene()
    session = scene.join()
    wish = ReserveWanted(scene.number(), session, 1, LANE, b"", chain_of(1), sizes)
    refusal = scene.ask(wish)
    assert isinstance(refusal, KvdError) and refusal.kind == ErrorKind.INVALID
    assert all(number in refusal.message for number in named), refusal


SEALS = {
    "past the end": (2, np.full((2, 3), PAGE_BYTES, np.uint32)),
    "larger than reserved": (0, np.full((2, 3), 2 * PAGE_BYTES, np.uint32)),
    "not whole pages": (0, np.full((2, 3), 100, np.uint32)),
}


@pytest.mark.parametrize(("first", "sizes"), SEALS.values(), ids=SEALS)
def test_a_refused_seal_leaves_no_trace(first: int, sizes: np.ndarray) -> None:
    scene = Scene()
    session = scene.join()
    reserved = scene.reserve(session, chain_of(3))
    roots = np.zeros(sizes.shape, np.uint64)
    wish = SealWanted(
        scene.number(), session, reserved.reservation, first, sizes, roots, 1, True
    )  # fmt: skip
    assert kind_of(scene.ask(wish)) == ErrorKind.INVALID
    assert scene.counts(session, chain_of(3)) == (0, 0, 0)
    assert scene.seal(session, reserved.reservation, 0, 3, last=True) == [SealState.SEALED] * 3


def test_a_reservation_belongs_to_its_session() -> None:
    scene = Scene()
    owner, other = scene.join(), scene.join()
    reserved = scene.reserve(owner, chain_of(2))
    for number in (reserved.reservation, 77):
        assert kind_of(scene.seal(other, number, 0, 1, last=True)) == ErrorKind.LOST
    assert scene.seal(owner, reserved.reservation, 0, 2, last=True) == [SealState.SEALED] * 2
    assert kind_of(scene.seal(owner, reserved.reservation, 0, 1, last=True)) == ErrorKind.LOST


def test_a_stalled_writer_loses_its_places_and_gives_them_back_when_it_speaks() -> None:
    scene = Scene()
    session = scene.join()
    reserved = scene.reserve(session, chain_of(2))
    assert isinstance(reserved, Reserved)
    scene.wait(scene.limits.reservation_ttl_ns - 1)
    assert scene.seal(session, reserved.reservation, 0, 1, last=False) == [SealState.SEALED]
    scene.wait(scene.limits.reservation_ttl_ns)
    assert scene.state.bytes_in(StripState.QUARANTINED) == 3 * PAGE_BYTES
    assert kind_of(scene.seal(session, reserved.reservation, 1, 1, last=True)) == ErrorKind.LOST
    assert scene.state.bytes_in(StripState.QUARANTINED) == 0
    assert scene.counts(session, chain_of(2)) == (1, 1, 1)


@pytest.mark.parametrize("last", ("seal", "abort"))
def test_a_seal_that_comes_too_late_does_not_say_that_its_writer_has_stopped(last: str) -> None:
    """The strips behind it are laid meanwhile: nobody else may be given their places (I4)."""
    scene = Scene(slabs=1, slab_pages=9)
    session = scene.join()
    reserved = scene.reserve(session, chain_of(3))
    scene.wait(scene.limits.reservation_ttl_ns)
    for chunk in range(2):
        refusal = scene.seal(session, reserved.reservation, chunk, 1, last=False)
        assert kind_of(refusal) == ErrorKind.LOST
    assert scene.state.bytes_in(StripState.QUARANTINED) == 9 * PAGE_BYTES
    assert scene.put(session, chain_of(1, text=1)) == NotAdmitted.CAPACITY
    if last == "seal":
        refusal = scene.seal(session, reserved.reservation, 2, 1, last=True)
    else:
        refusal = scene.ask(AbortWanted(scene.number(), session, reserved.reservation))
    assert kind_of(refusal) == ErrorKind.LOST
    assert scene.put(session, chain_of(3, text=1)) == NotAdmitted.NONE


def test_bounded_reservations() -> None:
    limits = Limits(slab_bytes=16 * PAGE_BYTES, reservations_per_session_max=2)
    scene = Scene(limits=limits)
    session = scene.join()
    first = scene.reserve(session, chain_of(1, text=0))
    scene.reserve(session, chain_of(1, text=1))
    refusal = scene.reserve(session, chain_of(1, text=2))
    assert kind_of(refusal) == ErrorKind.OVERLOADED and "2" in refusal.message
    assert isinstance(scene.reserve(scene.join(), chain_of(1, text=2)), Reserved)
    scene.seal(session, first.reservation, 0, 1, last=True)
    assert isinstance(scene.reserve(session, chain_of(1, text=2)), Reserved)


def test_had_whole_needs_no_reservation() -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(3))
    reserved = scene.reserve(session, chain_of(3))
    assert (reserved.reservation, reserved.states.tolist()) == (0, [HAVE] * 3)
    assert not scene.state.index.pins.any()


def test_a_session_that_ended_cannot_seal() -> None:
    scene = Scene()
    session = scene.join()
    reserved = scene.reserve(session, chain_of(2))
    scene.tell(SessionEnded(session))
    assert kind_of(scene.seal(session, reserved.reservation, 0, 2, last=True)) == ErrorKind.LOST
    assert scene.counts(scene.join(), chain_of(2)) == (0, 0, 0)
    assert scene.state.bytes_in(StripState.QUARANTINED) == 6 * PAGE_BYTES

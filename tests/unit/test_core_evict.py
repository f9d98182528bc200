"""What goes when room is needed: in drop order, leaves first, the least valuable first."""

import pytest

from kvd.clock import NS_PER_S
from kvd.core.effects import NotAdmitted
from kvd.core.events import ProcessGone
from kvd.core.evict import evict
from kvd.core.transitions import StripState
from kvd.limits import PAGE_BYTES
from kvd.testing.scene import Scene, branch_of, chain_of

CHUNKS = 6


def one_slab(chunks: int = CHUNKS) -> tuple[Scene, int]:
    scene = Scene(slabs=1, slab_pages=3 * chunks)
    return scene, scene.join()


def drop_one(scene: Scene) -> None:
    assert evict(scene.state, set(scene.state.slabs), wanted_bytes=1)


def test_a_chain_goes_as_a_staircase() -> None:
    """Each step takes one strip: exact before residual before anchor, and the end before the stem.

    The counts never grow from class to class, and nothing behind a hole is left.
    """
    scene, session = one_slab()
    chain = chain_of(CHUNKS)
    scene.put(session, chain)
    before = (CHUNKS,) * 3
    for _ in range(3 * CHUNKS):
        drop_one(scene)
        counts = scene.counts(session, chain)
        assert sum(counts) == sum(before) - 1, "one strip at a time, none out of reach"
        assert counts[0] >= counts[1] >= counts[2]
        before = counts
    assert scene.state.index.row_count == 0
    assert not evict(scene.state, set(scene.state.slabs), wanted_bytes=1)


def test_of_equal_heat_all_exact_go_before_any_residual() -> None:
    scene, session = one_slab()
    scene.put(session, chain_of(CHUNKS))
    for wanted in [(6, 6, 6 - at) for at in range(1, 7)] + [(6, 6 - at, 0) for at in range(1, 7)]:
        drop_one(scene)
        assert scene.counts(session, chain_of(CHUNKS)) == wanted


def test_a_stem_stays_while_something_is_built_on_it() -> None:
    scene, session = one_slab(8)
    stem = chain_of(2)
    left, right = branch_of(stem, 3, text=1), branch_of(stem, 3, text=2)
    scene.put(session, left)
    scene.put(session, right)
    while scene.counts(session, left)[0] > 2 or scene.counts(session, right)[0] > 2:
        assert scene.counts(session, stem)[0] == 2
        drop_one(scene)


def test_a_hot_prefix_survives_a_scan() -> None:
    """What is asked for again and again stays; what passes by once goes."""
    scene, session = one_slab(8)
    hot = chain_of(3)
    scene.put(session, hot)
    for text in range(40):
        scene.wait(10 * NS_PER_S)
        scene.release(session, scene.look_up(session, hot, lease=True).lease)
        if text < 8:
            continue
        assert scene.put(session, chain_of(2, text)) == NotAdmitted.NONE
    assert scene.counts(session, hot) == (3, 3, 3)


def test_the_value_of_a_leaf_is_left_to_its_parent() -> None:
    """Asking for the end of a chain keeps the whole of it warm."""
    scene, session = one_slab(8)
    warm, cold = chain_of(3, text=1), chain_of(3, text=2)
    scene.put(session, warm)
    scene.wait(NS_PER_S)
    scene.put(session, cold)
    for _ in range(20):
        scene.wait(100 * NS_PER_S)
        scene.release(session, scene.look_up(session, warm, lease=True).lease)
    while scene.counts(session, cold)[0]:
        drop_one(scene)
        assert scene.counts(session, warm)[0] == 3


@pytest.mark.parametrize(("class_count", "kept"), ((1, (4, 0, 0)), (2, (4, 4, 0)), (3, (4, 4, 4))))
def test_a_lease_holds_its_classes_of_all_its_chunks(
    class_count: int, kept: tuple[int, int, int]
) -> None:
    scene, session = one_slab()
    chain = chain_of(4)
    scene.put(session, chain)
    scene.fetch(session, chain, class_count=class_count)
    while evict(scene.state, set(scene.state.slabs), wanted_bytes=1):
        pass
    assert scene.counts(session, chain) == kept


def test_everything_held_means_no_room_and_nothing_lost() -> None:
    scene, session = one_slab()
    chain = chain_of(CHUNKS)
    scene.put(session, chain)
    scene.look_up(session, chain, lease=True)
    assert scene.put(session, chain_of(1, text=1)) == NotAdmitted.CAPACITY
    assert scene.counts(session, chain) == (CHUNKS,) * 3


def test_room_is_made_of_what_is_least_dense() -> None:
    """Of two leaves of equal heat the larger strip goes first."""
    scene, session = one_slab(12)
    small, large = chain_of(1, text=1), chain_of(1, text=2)
    scene.put(session, small)
    row = scene.state.index.trees[0].rows[small]
    scene.put(session, large)
    big = scene.state.index.trees[0].rows[large]
    assert scene.state.index.heat[row] == scene.state.index.heat[big]
    scene.state.index.heat[big] -= 0.01
    drop_one(scene)
    assert scene.counts(session, large) == (1, 1, 0)
    assert scene.state.bytes_in(StripState.READY) == 5 * PAGE_BYTES


def many_texts(scene: Scene, count: int) -> list[bytes]:
    """Put chains of one chunk, each a minute after the one before; return them, oldest first."""
    session, texts = scene.join(), [chain_of(1, text) for text in range(count)]
    for text in texts:
        scene.now_ns += 60 * NS_PER_S
        assert scene.put(session, text) == NotAdmitted.NONE
    return texts


def test_a_sample_of_many_finds_old_ones() -> None:
    """Not the oldest, which would take a look at all, but nothing of the younger half."""
    scene = Scene(slabs=1, slab_pages=900)
    texts = many_texts(scene, 120)
    while scene.state.index.row_count > 110:
        drop_one(scene)
    session = scene.join()
    gone = [at for at, text in enumerate(texts) if scene.counts(session, text) == (0, 0, 0)]
    assert len(gone) == 10 and max(gone) < 60


def test_the_same_epoch_samples_the_same_victims() -> None:
    """I12: chance has its seed in the state."""
    left = []
    for _ in range(2):
        scene = Scene(slabs=1, slab_pages=900)
        texts = many_texts(scene, 80)
        for _ in range(40):
            drop_one(scene)
        session = scene.join()
        left.append([scene.counts(session, text) for text in texts])
    assert left[0] == left[1]


def test_room_is_found_where_it_helps_though_no_sample_shows_it() -> None:
    scene = Scene(slabs=2, slab_pages=240)
    many_texts(scene, 80)
    scene.tell(ProcessGone(1))
    writer = scene.join()
    assert scene.reserve(writer, chain_of(1, 1000), pages=80).reservation
    (full,) = [slab.id for slab in scene.state.slabs.values() if slab.owner == writer]
    scene.seal(writer, 81, 0, 1, last=True)
    for _ in range(3):
        assert evict(scene.state, {full}, wanted_bytes=1) == {full}

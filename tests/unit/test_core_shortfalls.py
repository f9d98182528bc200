"""Between a lookup and its fetch: what is less than was found is said, with its reason."""

import random

import numpy as np
import pytest

from kvd.core import disk_effects as asked
from kvd.core.effects import Answer, Found, Promise, RecallSlab, Shortfall, TellReady
from kvd.core.events import (
    FetchWanted,
    PrefetchWanted,
    ProcessGone,
    ReleaseWanted,
    SessionEnded,
    SlabDetached,
)
from kvd.core.evict import drop_class
from kvd.core.story import Why
from kvd.errors import ErrorKind
from kvd.limits import DIGEST_BYTES
from kvd.testing.scene import LANE, Scene, branch_of, chain_of, kind_of
from kvd.types import PlaneClass
from tests.unit.disk_scene import DiskScene, on_disk_only

CHUNKS = 30


def drop_from(scene: Scene, chain: bytes, chunk: int, plane_class: PlaneClass) -> None:
    """Drop a class of a chunk with all that stands on it."""
    rows = scene.state.index.trees[0].rows
    for at in range(len(chain) // DIGEST_BYTES - 1, chunk - 1, -1):
        row = rows[chain[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]]
        for each in range(PlaneClass.EXACT, plane_class - 1, -1):
            if scene.state.index.present[row, each]:
                drop_class(scene.state, row, PlaneClass(each), Why.ROOM)


def let_go(scene: DiskScene, session: int, lease: int) -> None:
    """Release, and let end what is still read for it."""
    scene.tell(ReleaseWanted(scene.number(), session, lease, np.zeros(0, np.uint32)))
    scene.settle()


@pytest.mark.parametrize("plane_class", PlaneClass)
def test_what_went_between_lookup_and_fetch_is_not_promised(plane_class: PlaneClass) -> None:
    """One class of the third chunk of six: those before it stay whole, the others shorter."""
    scene = Scene()
    session, chain = scene.join(), chain_of(6)
    scene.put(session, chain)
    assert scene.counts(session, chain) == (6, 6, 6)
    drop_from(scene, chain, 2, plane_class)
    promise = scene.fetch(session, chain)
    assert promise.counts == tuple(6 if each < plane_class else 2 for each in PlaneClass)
    assert promise.reason == Shortfall.NOT_STORED
    for each, count in zip(PlaneClass, promise.counts, strict=True):
        columns = promise.lanes[0]
        assert len(columns.slabs[each]) == count and columns.slabs[each].all()


def test_a_lookups_lease_keeps_its_promise_while_the_cache_is_full() -> None:
    """Twenty want more than fits together; who has a lease gets what he was told."""
    chance = random.Random(37)
    scene = Scene(slabs=8, slab_pages=30)
    session = scene.join()
    found: dict[int, Found] = {}
    for turn in range(250):
        text = chance.randrange(20)
        match chance.randrange(3):
            case 0:
                scene.put(session, chain_of(chance.randint(1, 6), text))
            case 1 if text not in found:
                answer = scene.look_up(session, chain_of(6, text), lease=True)
                if answer.lease:
                    found[text] = answer
            case 2 if found:
                text = chance.choice(sorted(found))
                told = found.pop(text)
                promise = scene.fetch(session, chain_of(6, text), lease=told.lease)
                assert isinstance(promise, Promise), turn
                pairs = zip(promise.counts, told.counts, strict=True)
                assert all(given >= said for given, said in pairs), turn
                scene.release(session, promise.lease)
    assert scene.state.counts.evicted_strips.total() > 30


def test_a_hit_that_memory_cannot_hold_says_so() -> None:
    scene, session, chain = on_disk_only()
    promise = scene.fetch(session, chain)
    assert scene.counts(session, chain) == (CHUNKS,) * 3, "the whole hit"
    assert 0 < sum(promise.counts) < 3 * CHUNKS and promise.reason == Shortfall.NO_ROOM
    held = sum(int(slabs.astype(bool).sum()) for slabs in promise.lanes[0].slabs)
    assert held == sum(promise.counts), "each promised strip has a place"


def test_with_all_memory_leased_a_fetch_is_short_and_whole_again_after_the_release() -> None:
    scene, session, chain = on_disk_only(chunks=6)
    texts, leases = 0, []
    while True:
        texts += 1
        if scene.put(session, chain_of(2, text=texts)):
            break
        leases.append(scene.look_up(session, chain_of(2, text=texts), lease=True).lease)
    promise = scene.fetch(session, chain)
    assert promise.reason == Shortfall.NO_ROOM and promise.counts < (6, 6, 6)
    let_go(scene, session, promise.lease)
    for lease in leases:
        let_go(scene, session, lease)
    scene.save()

    def whole() -> bool:
        promise = scene.fetch(session, chain)
        let_go(scene, session, promise.lease)
        for recall in [e for e in scene.seen if isinstance(e, RecallSlab)]:
            scene.tell(SlabDetached(recall.session, recall.slab))
        scene.wait()
        return promise.counts == (6, 6, 6)

    assert any(whole() for _ in range(20)), "slabs change hands within a few recalls"


def owned_by_a_writer() -> tuple[DiskScene, int, int, bytes]:
    """A writer has all slabs but one, and what a reader fetched fills that one."""
    scene = DiskScene(6, segments=80)
    writer, reader = scene.join(), scene.join()
    for text in range(40):
        scene.put(writer, chain_of(2, text))
        scene.save()
    for text in range(3):
        promise = scene.fetch(reader, chain_of(2, text))
    assert promise.reason == Shortfall.NO_ROOM and promise.counts < (2, 2, 2)
    return scene, writer, reader, chain_of(2, 3)


def is_whole(scene: DiskScene, reader: int, chain: bytes) -> bool:
    promise = scene.fetch(reader, chain)
    if promise.lease:
        let_go(scene, reader, promise.lease)
    return promise.counts == (2, 2, 2)


def test_a_slab_that_a_writer_gives_back_makes_room_to_read_into() -> None:
    scene, writer, reader, chain = owned_by_a_writer()
    [recall] = [e for e in scene.seen if isinstance(e, RecallSlab)]
    assert recall.session == writer and not is_whole(scene, reader, chain)
    scene.tell(SlabDetached(writer, recall.slab))
    assert is_whole(scene, reader, chain), "on the next try"


def test_a_writer_that_gives_no_slab_back_is_asked_for_each_once() -> None:
    """A stopped client's slabs are its own while its process lives; they come back with its end."""
    scene, writer, reader, chain = owned_by_a_writer()
    owned = len(scene.state.sessions[writer].slabs_owned)
    for _ in range(2 * owned):
        assert not is_whole(scene, reader, chain)
        scene.wait(scene.limits.recall_ns)
    recalls = [e.slab for e in scene.seen if isinstance(e, RecallSlab)]
    assert len(recalls) == len(set(recalls)) == owned
    assert len(scene.state.sessions[writer].slabs_owned) == owned
    scene.tell(SessionEnded(writer))
    scene.tell(ProcessGone(writer))
    assert is_whole(scene, reader, chain)


def test_a_prefetch_finds_no_more_than_there_is_room_for() -> None:
    scene, session, chain = on_disk_only()
    found = scene.ask(PrefetchWanted(scene.number(), session, 1, (LANE,), chain, 3))
    assert isinstance(found, Found) and sum(found.counts) < 3 * CHUNKS
    while scene.has(asked.ReadStrips):
        scene.answer(scene.take(asked.ReadStrips))
    index = scene.state.index
    assert int((index.slab != 0).sum()) >= sum(found.counts)
    promise = scene.fetch(session, chain)
    assert all(a >= b for a, b in zip(promise.counts, found.counts, strict=True))


def test_lookups_before_a_store_make_no_hole() -> None:
    for times in (0, 1, 5):
        scene = DiskScene()
        session, chain = scene.join(), chain_of(5)
        for _ in range(times):
            for lease in (False, True):
                assert scene.look_up(session, chain, lease=lease) == Found((0, 0, 0), 0)
            scene.ask(PrefetchWanted(scene.number(), session, 1, (LANE,), chain, 3))
        assert scene.put(session, chain) == 0
        assert scene.counts(session, chain) == (5, 5, 5), times
        scene.save()
        assert sum(len(commit.rows.keys.chain) for commit in scene.commits) == 5


def test_overlapping_fetches_read_each_strip_once_and_all_end_well() -> None:
    """Ten prefixes of one text, asked for at once; the strips of the longest are read."""
    scene, session, chain = on_disk_only(chunks=10)
    promises = []
    for number in range(10):
        how_many = 10 - number
        promises.append(scene.fetch(scene.join(), chain[: how_many * DIGEST_BYTES]))
        assert promises[-1].counts == (how_many,) * 3
    told: list[object] = []
    strips: list[tuple[int, int]] = []
    while scene.has(asked.ReadStrips):
        read = scene.take(asked.ReadStrips)
        places = zip(read.strips.slabs.tolist(), read.strips.offsets.tolist(), strict=True)
        strips += places
        told += scene.answer(read)
    assert len(strips) == len(set(strips)) == 30
    answers = [e.outcome for e in told if isinstance(e, Answer)]
    assert len(answers) == 10 and not [a for a in answers if kind_of(a)]
    assert any(isinstance(e, TellReady) for e in told)


@pytest.mark.parametrize("read_between", [0, 1, 2])
def test_two_prefetches_and_a_fetch_of_overlapping_chains(read_between: int) -> None:
    """Each strip is read once, and the fetch gets all of it, whoever asked for a part before."""
    scene, session, chain = on_disk_only(chunks=10)
    parted = branch_of(chain[: 4 * DIGEST_BYTES], 2, text=49)
    told: list[object] = []
    strips: list[tuple[int, int]] = []

    def read(count: int) -> None:
        while count and scene.has(asked.ReadStrips):
            one = scene.take(asked.ReadStrips)
            places = zip(one.strips.slabs.tolist(), one.strips.offsets.tolist(), strict=True)
            strips.extend(places)
            told.extend(scene.answer(one))
            count -= 1

    for part, chunks in ((chain[: 7 * DIGEST_BYTES], 7), (parted, 4)):
        found = scene.ask(PrefetchWanted(scene.number(), scene.join(), 1, (LANE,), part, 3))
        assert isinstance(found, Found) and found.counts == (chunks,) * 3
        read(read_between)
    promise = scene.fetch(session, chain)
    assert promise.counts == (10, 10, 10)
    read(1000)
    assert len(strips) == len(set(strips)) == 30
    answers = [e.outcome for e in told if isinstance(e, Answer)]
    assert [kind_of(a) for a in answers] == [None]
    let_go(scene, session, promise.lease)
    assert not scene.state.index.in_flight.any() and not scene.state.leases


def test_a_read_whose_end_is_never_told_is_answered_at_its_deadline() -> None:
    scene, session, chain = on_disk_only(chunks=2)
    wish = FetchWanted(
        scene.number(), session, 1, (LANE,), chain, 3, 0, 0, 0, 0, 0,
        scene.now_ns + scene.limits.deadline_ns,
    )  # fmt: skip
    scene.tell(wish)
    lost = scene.take(asked.ReadStrips)
    effects = scene.wait(scene.limits.deadline_ns)
    [answer] = [e for e in effects if isinstance(e, Answer)]
    assert kind_of(answer.outcome) == ErrorKind.LATE
    assert scene.state.index.in_flight.any(), "its places stay as they are for who may write there"
    scene.answer(lost)
    assert not scene.state.index.in_flight.any()
    assert np.all(scene.state.index.missing == 0)

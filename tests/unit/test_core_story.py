"""What `explain` says of chunks that are not whole, and that the story stays bounded."""

import pytest

from kvd.clock import NS_PER_S
from kvd.core.events import (
    AbortWanted,
    ClearWanted,
    Delivery,
    FetchWanted,
    KeyspaceWanted,
    SessionEnded,
    SessionOpened,
    SlabTouched,
    Started,
    Ticked,
)
from kvd.core.explain import LaneReport, Verdict, explain_chain, explain_miss
from kvd.core.keyspaces import tree_of
from kvd.core.state import new_state
from kvd.core.step import step
from kvd.core.story import CHUNKS_MAX, MISSES_MAX, NOTES_PER_CHUNK, Miss, Note, Story, Why
from kvd.identity import Keyspace
from kvd.limits import DIGEST_BYTES, Limits
from kvd.shape import BlockShape
from kvd.testing.scene import (
    CHUNK_TOKENS,
    KEYSPACE,
    LANE,
    SHAPE,
    Scene,
    branch_of,
    chain_of,
)
from kvd.types import Dtype, Lane, Shard, ShardScheme
from tests.unit.disk_scene import DiskScene, recovered

HALF = Lane(shard=Shard(ShardScheme.HEADS, 0, 2))


def report(scene: Scene, session: int, chain: bytes, lane: Lane = LANE) -> LaneReport:
    _, tree = tree_of(scene.state, session, 1, lane)
    return explain_chain(scene.state, tree, chain)


def last_why(found: LaneReport) -> Why:
    return found.finding.notes[-1].why


def test_what_is_whole() -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(3))
    found = report(scene, session, chain_of(3))
    assert (found.counts, found.in_dram, found.on_disk) == ((3, 3, 3), (3, 3, 3), (0, 0, 0))
    assert (found.first, found.finding.verdict) == (3, Verdict.WHOLE)


def test_what_was_never_stored_and_where_a_text_parts_from_others() -> None:
    scene = Scene()
    session = scene.join()
    assert report(scene, session, chain_of(2)).finding.verdict == Verdict.NEVER_STORED
    stem = chain_of(2)
    scene.put(session, branch_of(stem, 1, text=7))
    found = report(scene, session, branch_of(stem, 2, text=8))
    assert (found.first, found.finding.verdict) == (2, Verdict.DIVERGES)
    found = report(scene, session, chain_of(3, text=9))
    assert (found.first, found.finding.verdict) == (0, Verdict.DIVERGES)
    longer = branch_of(stem, 1, text=7)
    longer = branch_of(longer, 1, text=1)
    assert report(scene, session, longer).finding.verdict == Verdict.NEVER_STORED


def test_what_was_evicted_says_so_class_by_class() -> None:
    scene = Scene(slabs=1, slab_pages=6)
    session = scene.join()
    scene.put(session, chain_of(2, text=1))
    scene.put(session, chain_of(1, text=2))
    lost = report(scene, session, chain_of(2, text=1))
    assert lost.first < 2 and last_why(lost) == Why.ROOM
    assert lost.finding.verdict in (Verdict.GONE, Verdict.SHORTENED)
    scene.put(session, chain_of(2, text=3))
    assert report(scene, session, chain_of(2, text=1)).finding.verdict == Verdict.GONE


def test_puts_that_left_nothing() -> None:
    scene = Scene(slabs=1, slab_pages=6)
    session = scene.join()
    reserved = scene.reserve(session, chain_of(1, text=1))
    scene.ask(AbortWanted(scene.number(), session, reserved.reservation))
    assert last_why(report(scene, session, chain_of(1, text=1))) == Why.ABORTED
    held = scene.reserve(session, chain_of(2, text=2))
    assert scene.put(session, chain_of(1, text=3)) != 0
    assert last_why(report(scene, session, chain_of(1, text=3))) == Why.CAPACITY
    scene.wait(scene.limits.reservation_ttl_ns)
    assert last_why(report(scene, session, chain_of(2, text=2))) == Why.EXPIRED
    assert held.reservation


def test_a_session_that_ends_before_its_seal() -> None:
    scene = Scene()
    session, other = scene.join(), scene.join()
    scene.reserve(session, chain_of(1))
    scene.tell(SessionEnded(session))
    assert last_why(report(scene, other, chain_of(1))) == Why.SESSION_ENDED


def test_a_put_behind_what_is_not_there() -> None:
    scene = Scene()
    session = scene.join()
    chain = chain_of(2)
    scene.reserve(session, chain[DIGEST_BYTES:], parent=chain[:DIGEST_BYTES])
    scene.put(session, chain[:DIGEST_BYTES])
    assert last_why(report(scene, session, chain)) == Why.PREFIX_BROKEN


def test_what_was_cleared_and_what_a_reader_condemned() -> None:
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(2))
    promise = scene.fetch(session, chain_of(2))
    scene.release(session, promise.lease, 1)
    found = report(scene, session, chain_of(2))
    assert found.first == 1 and found.finding.verdict == Verdict.CONDEMNED
    assert last_why(found) == Why.WRONG_BYTES
    scene.tell(ClearWanted(scene.number(), session, 1, 0))
    found = report(scene, session, chain_of(2))
    assert (found.finding.verdict, last_why(found)) == (Verdict.GONE, Why.CLEARED)


@pytest.mark.parametrize(
    ("keyspace", "field"),
    [
        (Keyspace("model", "other", SHAPE, chunk_tokens=CHUNK_TOKENS), "weight_revision"),
        (Keyspace("model", "revision", SHAPE, layout="x", chunk_tokens=CHUNK_TOKENS), "layout"),
        (
            Keyspace("model", "revision", BlockShape.of_attention(4, 4, 8, Dtype.FP16),
                     chunk_tokens=CHUNK_TOKENS),
            "shape",
        ),
    ],
)  # fmt: skip
def test_the_same_tokens_under_other_fields(keyspace: Keyspace, field: str) -> None:
    scene = Scene()
    scene.put(scene.join(), chain_of(2))
    asking = scene.join(keyspace=keyspace)
    finding = report(scene, asking, chain_of(2)).finding
    assert finding.verdict == Verdict.OTHER_KEYSPACE
    [(name, asked, own)] = finding.alike[0].differing
    assert name == field and asked != own


def test_another_tenant_another_lane_and_a_nearly_equal_keyspace() -> None:
    scene = Scene(slabs=6)
    red, blue = scene.join("red"), scene.join("blue")
    scene.put(red, chain_of(2))
    finding = report(scene, blue, chain_of(2)).finding
    assert finding.verdict == Verdict.OTHER_TENANT and finding.alike[0].tenant == "red"
    assert report(scene, red, chain_of(2), HALF).finding.verdict == Verdict.OTHER_LANE
    other = Keyspace("model", "revision", SHAPE, rope="yarn", chunk_tokens=CHUNK_TOKENS)
    finding = report(scene, scene.join(keyspace=other), chain_of(2, text=9)).finding
    assert finding.verdict == Verdict.NEVER_STORED
    assert finding.alike[0].differing == (("rope", "yarn", ""),)


def test_the_last_misses_are_kept_and_explained() -> None:
    scene = Scene(slabs=6)
    session = scene.join()
    scene.put(session, chain_of(2))
    scene.counts(session, chain_of(2))
    assert not scene.state.story.misses, "what is found whole is no miss"
    scene.counts(session, branch_of(chain_of(2), 1, text=5))
    scene.fetch(session, chain_of(1, text=6))
    scene.counts(session, chain_of(2), LANE, HALF)
    first, second, third = scene.state.story.misses.values()
    assert (first.first, first.asked, first.before) == (2, 3, chain_of(2)[DIGEST_BYTES:])
    assert (second.first, second.asked, second.before) == (0, 1, b"")
    assert third.lane == HALF
    verdicts = [explain_miss(scene.state, miss).verdict for miss in (first, second, third)]
    assert verdicts == [Verdict.NEVER_STORED, Verdict.DIVERGES, Verdict.OTHER_LANE]


def test_who_asks_again_and_again_takes_one_place() -> None:
    scene = Scene()
    session = scene.join()
    for text in range(MISSES_MAX + 5):
        scene.counts(session, chain_of(1, text))
    scene.counts(session, chain_of(1, text=5))
    scene.counts(session, chain_of(3, text=5))
    misses = list(scene.state.story.misses.values())
    assert len(misses) == MISSES_MAX
    assert (misses[-1].chunk, misses[-1].times, misses[-1].asked) == (chain_of(1, 5), 3, 3)
    assert misses[0].chunk == chain_of(1, 6) and misses[0].times == 1


def test_a_fetch_that_is_put_off_misses_once() -> None:
    """It is tried again and again while dram grows; one question was asked."""
    before, stored = DiskScene(), chain_of(3)
    before.put(before.join(), stored)
    before.save()
    state = new_state(before.state.config, epoch=2)
    wish = FetchWanted(3, 1, 1, (LANE,), chain_of(5), 3, 0, 0, Delivery.MAP, 0, 0, 10 * NS_PER_S)
    begun = recovered(before), Started(), SessionOpened(1, "red"), KeyspaceWanted(2, 1, KEYSPACE)
    for event in (*begun, wish, Ticked(), Ticked()):
        step(state, event, 0)
    assert state.postponed and not state.story.misses
    step(state, SlabTouched(state.touching), NS_PER_S)
    assert not state.postponed
    assert [(miss.first, miss.times) for miss in state.story.misses.values()] == [(3, 1)]


def test_the_story_is_bounded_and_says_how_far_back_it_goes() -> None:
    story = Story()
    for number in range(CHUNKS_MAX + 10):
        story.note((b"k", LANE, number.to_bytes(4, "little")), Note(number, Why.ROOM))
    assert len(story.notes) == CHUNKS_MAX and story.forgotten_ns == 9
    name = (b"k", LANE, b"one")
    for number in range(20):
        story.note(name, Note(number, Why.ABORTED if number % 2 else Why.ROOM))
    assert [note.at_ns for note in story.notes[name]] == list(range(20 - NOTES_PER_CHUNK, 20))
    for plane_class in (2, 1, 0):
        story.note(name, Note(50, Why.ROOM, plane_class))
    assert story.notes[name][-1] == Note(50, Why.ROOM, 0)
    assert [note.at_ns for note in story.notes[name]].count(50) == 1


def test_a_miss_in_a_keyspace_that_nothing_was_put_in() -> None:
    scene = Scene(limits=Limits(slab_bytes=65536))
    miss = Miss(0, "red", 1, b"\1" * 32, KEYSPACE, LANE, chain_of(1), b"", 0, 1)
    assert explain_miss(scene.state, miss).verdict == Verdict.NEVER_STORED

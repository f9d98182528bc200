"""The ssd tier in the core, example by example: saved, demoted, read again, cleared, recovered."""

from dataclasses import replace

import numpy as np
import pytest

from kvd.clock import NS_PER_S
from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core.commits import ROWS_LEAST
from kvd.core.effects import Answer, Cleared, FetchDone, Found, Sealed, Shortfall, TellReady
from kvd.core.events import ClearWanted, PrefetchWanted, ReserveWanted, SealWanted
from kvd.core.save import is_saved
from kvd.core.ssd import SsdConfig
from kvd.errors import ErrorKind, FaultKind
from kvd.limits import DIGEST_BYTES, PAGE_BYTES, SEGMENT_NUMBER_MAX
from kvd.testing.scene import LANE, chain_of, kind_of
from kvd.types import CLASS_COUNT, SegmentState
from tests.unit.disk_scene import LIMITS, DiskScene, demote, fault_of, recovered


def stored(scene: DiskScene, chunks: int, text: int = 0) -> tuple[int, bytes]:
    session, chain = scene.join(), chain_of(chunks, text)
    scene.put(session, chain)
    scene.save()
    return session, chain


def test_what_is_sealed_is_written_committed_and_durable() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 3)
    assert is_saved(scene.state)
    assert scene.state.index.segment[:3].all() or (scene.state.index.segment != 0).sum() == 9
    assert sum(len(commit.rows.parents) for commit in scene.commits) == 3
    assert scene.counts(session, chain) == (3, 3, 3)


def test_parents_are_committed_before_their_children() -> None:
    scene = DiskScene()
    stored(scene, 7)
    known = {b""}
    for commit in scene.commits:
        known.update(commit.rows.keys.chain)
        assert set(commit.rows.parents) <= known


def test_a_fetch_brings_back_what_left_dram() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 3)
    demote(scene)
    assert scene.counts(session, chain) == (3, 3, 3)
    promise = scene.fetch(session, chain)
    assert promise.counts == (3, 3, 3) and promise.ready == (0, 0, 0)
    read = scene.take(asked.ReadStrips)
    assert read.strips.count == 9
    assert read.strips.classes.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    effects = scene.answer(read)
    assert [e.ready for e in effects if isinstance(e, TellReady)] == [(255, 255, 255)]
    assert [e.outcome for e in effects if isinstance(e, Answer)] == [FetchDone(0)]


def test_two_fetches_share_one_read() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 2)
    demote(scene)
    first, second = scene.fetch(session, chain), scene.fetch(session, chain)
    assert first.counts == second.counts
    assert [a.tolist() for a in first.lanes[0].offsets] == [
        a.tolist() for a in second.lanes[0].offsets
    ]
    read = scene.take(asked.ReadStrips)
    assert not scene.has(asked.ReadStrips)
    answers = [e for e in scene.answer(read) if isinstance(e, Answer)]
    assert len(answers) == 2


def test_a_failed_read_shortens_the_promise() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 3)
    demote(scene)
    scene.fetch(session, chain)
    read = scene.take(asked.ReadStrips)
    kinds = np.zeros(9, np.uint8)
    kinds[4] = FaultKind.IO  # The residual of the second chunk.
    event = told.StripsRead(read.batch, np.arange(9), kinds, (fault_of(FaultKind.IO),), False)
    answers = [e.outcome for e in scene.tell(event) if isinstance(e, Answer)]
    assert answers == [FetchDone(0, (3, 1, 1), Shortfall.READ_FAILED)]
    assert scene.counts(session, chain) == (3, 3, 3)


def test_wrong_bytes_on_disk_condemn_the_chunk() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 3)
    demote(scene)
    scene.fetch(session, chain)
    scene.answer(scene.take(asked.ReadStrips), fault_of(FaultKind.CHECKSUM))
    assert scene.counts(session, chain) == (0, 0, 0)
    assert scene.put(session, chain) == 0
    scene.save()
    assert scene.counts(session, chain) == (3, 3, 3)


def test_a_hung_read_keeps_its_place_until_it_is_released() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 1)
    demote(scene)
    promise = scene.fetch(session, chain)
    read = scene.take(asked.ReadStrips)
    kinds = np.full(3, FaultKind.TIMEOUT, np.uint8)
    faults = (fault_of(FaultKind.TIMEOUT),)
    effects = scene.tell(told.StripsRead(read.batch, np.arange(3), kinds, faults, True))
    assert any(isinstance(e, Answer) for e in effects)
    scene.release(session, promise.lease)
    quarantined = scene.state.index.hung.sum()
    assert quarantined == 3
    assert scene.fetch(session, chain).counts == (0, 0, 0)
    scene.tell(told.ReadReleased(read.batch, np.arange(3)))
    assert not scene.state.index.hung.any()
    assert scene.fetch(session, chain).counts == (1, 1, 1)


def test_prefetch_reads_and_holds_nothing() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 2)
    demote(scene)
    found = scene.ask(PrefetchWanted(scene.number(), session, 1, (LANE,), chain, 1))
    assert found == Found((2, 0, 0), 0)
    scene.answer(scene.take(asked.ReadStrips))
    assert scene.fetch(session, chain, class_count=1).ready == (255, 255, 255)


def test_a_durable_seal_is_answered_by_the_commit() -> None:
    scene = DiskScene()
    session, chain = scene.join(), chain_of(2)
    sizes = np.full((2, CLASS_COUNT), PAGE_BYTES, np.uint32)
    reserved = scene.ask(
        ReserveWanted(scene.number(), session, 1, LANE, b"", chain, sizes, durable=True)
    )
    roots = np.arange(6, dtype=np.uint64).reshape(2, 3)
    seal = SealWanted(
        scene.number(), session, reserved.reservation, 0, sizes, roots, 1, True, 10**12
    )
    assert not [e for e in scene.tell(seal) if isinstance(e, Answer)]
    scene.settle(asked.Commit)
    answers = [e.outcome for e in scene.answer(scene.take(asked.Commit)) if isinstance(e, Answer)]
    assert [(type(a), a.durable) for a in answers] == [(Sealed, True)]


def test_a_durable_wish_is_refused_while_the_tier_is_degraded() -> None:
    scene = DiskScene()
    session, chain = scene.join(), chain_of(1)
    scene.put(session, chain_of(1, 9))
    scene.wait()
    scene.settle(asked.WriteStrips)
    scene.answer(scene.take(asked.WriteStrips), fault_of(FaultKind.IO))
    assert scene.state.ssd.fault is not None
    sizes = np.full((1, CLASS_COUNT), PAGE_BYTES, np.uint32)
    wish = ReserveWanted(scene.number(), session, 1, LANE, b"", chain, sizes, durable=True)
    assert kind_of(scene.ask(wish)) == ErrorKind.UNAVAILABLE
    assert scene.put(session, chain) == 0  # To memory all the same.
    for _ in range(60):
        scene.wait()
        scene.settle()
    assert scene.state.ssd.fault is None and is_saved(scene.state)
    assert scene.state.index.segment[scene.state.index.present].all()


def test_what_leaves_dram_unsaved_leaves_the_queue() -> None:
    scene = DiskScene(slabs=4)
    session = scene.join()
    for text in range(100):
        scene.put(session, chain_of(2, text))  # The disk says nothing all the while.
    ssd, index = scene.state.ssd, scene.state.index
    assert 0 < len(ssd.queue) <= index.row_count < 200
    assert 0 < ssd.queued_bytes <= 4 * LIMITS.slab_bytes
    scene.save()
    assert is_saved(scene.state) and ssd.queued_bytes == 0
    assert index.segment[index.present].all()


def test_a_full_tier_clears_its_least_valuable_segment() -> None:
    scene = DiskScene(slabs=4, segments=8)
    session = scene.join()
    chains = [chain_of(4, text) for text in range(12)]
    for chain in chains:
        scene.put(session, chain)
        scene.save()
        demote(scene)
    assert scene.state.counts.ssd_segments_cleared.total() > 0
    assert len(scene.state.ssd.segments) <= 8
    assert scene.counts(session, chains[-1]) == (4, 4, 4)
    assert scene.counts(session, chains[0])[2] == 0


def test_a_segment_is_written_over_only_after_the_commit_that_drops_its_strips() -> None:
    scene = DiskScene(slabs=4, segments=7)
    session = scene.join()
    named: dict[int, set[bytes]] = {}
    done = 0
    for text in range(14):
        scene.put(session, chain_of(4, text))
        for _ in range(12):
            scene.wait()
            while scene.asked:
                effect = scene.asked.pop(0)
                if isinstance(effect, asked.RecycleSegment):
                    done += 1
                    assert not named.get(effect.segment), "a durable row points into it"
                scene.answer(effect)
                if isinstance(effect, asked.Commit):
                    _note(named, effect)
        demote(scene)
    assert done > 3


def _note(named: dict[int, set[bytes]], commit: asked.Commit) -> None:
    for digest in (*commit.dropped.chain, *commit.rows.keys.chain):
        for names in named.values():
            names.discard(digest)
    for digest, segments in zip(commit.rows.keys.chain, commit.rows.segments, strict=True):
        for segment in segments[segments != 0].tolist():
            named.setdefault(segment, set()).add(digest)


def test_clear_is_answered_when_the_catalog_has_forgotten() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 3)
    wish = ClearWanted(scene.number(), session, 1, 10**12)
    assert not [e for e in scene.tell(wish) if isinstance(e, Answer)]
    assert scene.counts(session, chain) == (0, 0, 0)
    commit = scene.take(asked.Commit)
    assert sorted(commit.dropped.chain) == sorted(
        chain[at : at + DIGEST_BYTES] for at in range(0, len(chain), DIGEST_BYTES)
    )
    answers = [e.outcome for e in scene.answer(commit) if isinstance(e, Answer)]
    assert answers == [Cleared(3, 0)]


def test_after_a_restart_everything_committed_is_there() -> None:
    scene = DiskScene()
    _, chain = stored(scene, 5)
    fresh = DiskScene(event=recovered(scene))
    session = fresh.join()
    assert fresh.counts(session, chain) == (5, 5, 5)
    promise = fresh.fetch(session, chain)
    assert promise.counts == (5, 5, 5)
    fresh.settle()
    old, new = scene.state, fresh.state
    assert new.generation > old.generation
    assert sum(s.live_bytes for s in new.ssd.segments.values()) == 15 * PAGE_BYTES


def test_a_restart_leaves_out_what_has_no_parent() -> None:
    scene = DiskScene()
    _, chain = stored(scene, 4)
    event = recovered(scene, without=chain[DIGEST_BYTES : 2 * DIGEST_BYTES])
    fresh = DiskScene(event=event)
    session = fresh.join()
    assert fresh.counts(session, chain) == (1, 1, 1)
    fresh.save()
    dropped = [digest for commit in fresh.commits for digest in commit.dropped.chain]
    assert sorted(dropped) == sorted((chain[64:96], chain[96:128]))


def test_a_restart_leaves_out_what_does_not_lie_in_its_segment() -> None:
    scene = DiskScene()
    _, chain = stored(scene, 3)
    event = recovered(scene)
    at = event.rows.keys.chain.index(chain[2 * DIGEST_BYTES :])
    event.rows.pages[at, 1] = scene.ssd_config.segment_bytes // PAGE_BYTES
    fresh = DiskScene(event=event)
    session = fresh.join()
    assert fresh.counts(session, chain) == (3, 2, 2)
    stored(fresh, 2, text=1)


def test_a_restart_leaves_out_strips_that_share_a_page() -> None:
    scene = DiskScene()
    _, chain = stored(scene, 3)
    event = recovered(scene)
    rows = event.rows
    first, last = (rows.keys.chain.index(chain[at:][:DIGEST_BYTES]) for at in (0, 2 * DIGEST_BYTES))
    assert rows.segments[first, 1] == rows.segments[last, 1]
    rows.pages[last, 1] = rows.pages[first, 1]
    fresh = DiskScene(event=event)
    assert fresh.counts(fresh.join(), chain) == (3, 0, 0)
    stored(fresh, 2, text=1)


def test_a_restart_leaves_out_what_lies_in_a_free_segment() -> None:
    scene = DiskScene()
    _, chain = stored(scene, 2)
    event = recovered(scene)
    segments = [
        replace(each, state=SegmentState.FREE) if each.plane_class == 2 else each
        for each in event.segments
    ]
    fresh = DiskScene(event=replace(event, segments=tuple(segments)))
    assert fresh.counts(fresh.join(), chain) == (2, 2, 0)
    stored(fresh, 2, text=1)


def test_a_generation_above_the_mark_is_not_given_out_again() -> None:
    scene = DiskScene()
    _, chain = stored(scene, 2)
    event = recovered(scene)
    event.rows.generations[0] = event.generation + 5
    fresh = DiskScene(event=event)
    fresh.save()
    stored(fresh, 1, text=1)
    assert fresh.state.index.generation.max() > event.generation + 5
    assert fresh.commits[-1].generation > event.generation + 5


def test_the_last_number_of_a_file_is_followed_by_one_that_is_free() -> None:
    scene = DiskScene()
    stored(scene, 1)
    event = recovered(scene)
    last = event.segments[-1]
    event.rows.segments[event.rows.segments == last.segment] = SEGMENT_NUMBER_MAX
    moved = replace(last, segment=SEGMENT_NUMBER_MAX)
    fresh = DiskScene(event=replace(event, segments=(*event.segments[:-1], moved)))
    for text in range(1, 4):
        stored(fresh, 3, text=text)
    numbers = {segment.number for segment in fresh.state.ssd.segments.values()}
    assert len(numbers) > len(event.segments) and max(numbers) == SEGMENT_NUMBER_MAX


def test_limits_of_the_scene_are_small_enough_to_matter() -> None:
    assert LIMITS.write_batch_bytes < 9 * PAGE_BYTES


def test_writes_and_commits_that_hang_degrade_the_tier_and_their_end_mends_it() -> None:
    for hanging in (asked.ProbeDirectory, asked.Commit):
        scene = DiskScene()
        session = scene.join()
        scene.settle()
        scene.wait()
        scene.settle()
        scene.put(session, chain_of(1))
        for _ in range(2 * LIMITS.write_ns // NS_PER_S + 2):
            scene.wait()
            scene.settle(hanging)
        assert scene.state.ssd.fault is not None, hanging
        assert scene.state.ssd.fault.kind == FaultKind.TIMEOUT
        assert scene.put(session, chain_of(1, 1)) == 0  # To memory all the same.
        for _ in range(2):
            scene.settle()
            scene.wait()
        assert scene.state.ssd.fault is None, hanging
        scene.save()
        assert is_saved(scene.state)


@pytest.mark.parametrize("kind", [asked.WriteStrips, asked.ReadStrips])
def test_a_failure_from_before_the_recovery_degrades_nothing(kind: type) -> None:
    scene = DiskScene()
    session = scene.join()
    for text in (1, 2):
        scene.put(session, chain_of(2, text))
        if kind is asked.ReadStrips:
            scene.save()
    demote(scene)
    for text in (1, 2) if kind is asked.ReadStrips else ():
        scene.fetch(session, chain_of(2, text))
    while len([effect for effect in scene.asked if isinstance(effect, kind)]) != 2:
        scene.wait()
        scene.settle(kind)
    first, second, late = scene.take(kind), scene.take(kind), fault_of(FaultKind.TIMEOUT)
    scene.answer(first, late)
    assert scene.state.ssd.fault == late
    while scene.state.ssd.fault is not None:
        scene.wait()
        scene.settle(kind)
    scene.answer(second, late)
    assert scene.state.ssd.fault is None and scene.state.counts.ssd_degradations[0] == 1
    assert not scene.has(asked.ProbeDirectory)
    scene.put(session, chain_of(2, 3))
    if kind is asked.ReadStrips:
        scene.fetch(session, chain_of(2, 1))
    while not scene.has(kind):
        scene.wait()
    scene.answer(scene.take(kind), late)
    assert scene.state.ssd.fault == late, "what was asked behind the recovery counts"


def test_what_cannot_be_read_while_the_canary_can_is_healed_by_a_put() -> None:
    for kind in (FaultKind.IO, FaultKind.GONE):
        scene = DiskScene()
        session, chain = stored(scene, 2)
        demote(scene)
        scene.fetch(session, chain)
        scene.answer(scene.take(asked.ReadStrips), fault_of(kind))
        assert scene.counts(session, chain) == (2, 2, 2)  # It may be the directory's fault.
        assert scene.state.ssd.fault is None
        scene.answer(scene.take(asked.ProbeDirectory))
        assert scene.counts(session, chain) == (0, 0, 0)
        scene.put(session, chain)
        scene.save()
        assert scene.counts(session, chain) == (2, 2, 2)


def test_what_cannot_be_read_from_a_directory_that_is_away_is_there_when_it_is_back() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 2)
    demote(scene)
    scene.fetch(session, chain)
    scene.answer(scene.take(asked.ReadStrips), fault_of(FaultKind.GONE))
    scene.answer(scene.take(asked.ProbeDirectory), fault_of(FaultKind.GONE))
    assert scene.state.ssd.fault.kind == FaultKind.GONE
    for _ in range(LIMITS.probe_ns // NS_PER_S + 1):
        scene.wait()
        scene.settle()
    assert scene.state.ssd.fault is None
    assert scene.counts(session, chain) == (2, 2, 2)
    assert scene.fetch(session, chain).counts == (2, 2, 2)


def test_a_catalog_with_little_room_is_told_a_few_rows_at_a_time() -> None:
    """A commit needs pages for all that it changes: a large one finds none where small ones do."""
    scene, room = DiskScene(slabs=12, segments=24), 2 * ROWS_LEAST
    session, refused = scene.join(), 0
    for text in range(40):
        scene.put(session, chain_of(2, text))
    for _ in range(400):
        scene.settle(asked.Commit)
        scene.wait()
        while scene.has(asked.Commit):
            commit = scene.take(asked.Commit)
            full = fault_of(FaultKind.NO_SPACE) if len(commit.rows.parents) > room else None
            refused += full is not None
            scene.answer(commit, full)
            assert scene.state.ssd.fault is None
        if is_saved(scene.state):
            break
    index = scene.state.index
    assert refused and is_saved(scene.state) and index.segment[index.present].all()


def test_a_disk_that_others_filled_refuses_durable_puts_at_once_until_there_is_room() -> None:
    scene = DiskScene()
    session, chain = stored(scene, 2)
    scene.tell(told.SpaceSeen((1,), (0,)))
    sizes = np.full((1, CLASS_COUNT), PAGE_BYTES, np.uint32)
    wish = ReserveWanted(scene.number(), session, 1, LANE, b"", chain_of(1, 5), sizes, durable=True)
    in_use = len(scene.state.ssd.segments)
    assert scene.state.ssd.segments_max == in_use < 4
    assert scene.state.ssd.fault.kind == FaultKind.NO_SPACE
    assert kind_of(scene.ask(wish)) == ErrorKind.UNAVAILABLE
    assert scene.put(session, chain_of(1, 6)) == 0  # To memory all the same.
    assert scene.counts(session, chain) == (2, 2, 2)
    scene.save()
    assert scene.state.ssd.fault is None and is_saved(scene.state)
    assert scene.state.index.segment[scene.state.index.present].all()


@pytest.mark.parametrize("dates", [(1000, 999, 1000), (1000, 700, 700), (700, 1000, 999, 1000)])
def test_a_clock_that_is_set_wins_no_day(dates: tuple[int, ...]) -> None:
    """What a day may write counts until a day that never was."""
    config = SsdConfig(1, 9 * PAGE_BYTES, 8, daily_write_bytes=3 * PAGE_BYTES)
    scene = DiskScene(ssd=config)
    for date in dates[: dates.index(1000) + 1]:
        scene.tell(told.DayBegan(date))
    stored(scene, 1)
    before = scene.state.counts.ssd_written_strips.total()
    assert before == CLASS_COUNT
    for text, date in enumerate(dates[dates.index(1000) + 1 :], 1):
        scene.tell(told.DayBegan(date))
        stored(scene, 1, text)
    assert scene.state.counts.ssd_written_strips.total() == before
    scene.tell(told.DayBegan(1001))
    scene.save()
    assert scene.state.counts.ssd_written_strips.total() == len(dates[dates.index(1000) :]) * 3

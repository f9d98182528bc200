"""Room on disk, where what it needs is not there: files that went, dram that is still made."""

import numpy as np
import pytest

from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core.effects import CreateSlab
from kvd.core.events import SlabTouched, Started, Ticked
from kvd.core.invariants import check
from kvd.core.quotas import Quota
from kvd.core.ssd import SsdConfig
from kvd.core.state import CoreConfig, State, new_state
from kvd.core.step import step
from kvd.errors import FaultKind
from kvd.identity import keyspace_digest
from kvd.limits import PAGE_BYTES
from kvd.testing.media import Place, Row, RowKey, columns_of
from kvd.testing.scene import KEYSPACE, LANE, chain_of
from kvd.types import CLASS_COUNT, PlaneClass, SegmentState
from tests.unit.disk_scene import EMPTY, LIMITS, DiskScene, fault_of

PAGES, GROUPS = 9, 5  # Of a segment, one of them its head; of segments, one of each class.


def with_free_segment() -> told.Recovered:
    record = asked.SegmentRecord(0, 1, PlaneClass.ANCHOR, SegmentState.FREE, 1)
    return told.Recovered(EMPTY.generation, EMPTY.written, EMPTY.keyspaces, EMPTY.rows, (record,))


@pytest.mark.parametrize("kind", [FaultKind.GONE, FaultKind.FORMAT], ids=lambda kind: kind.name)
def test_a_free_segment_that_cannot_be_used_again_is_replaced(kind: FaultKind) -> None:
    """Its file went, or bears a higher epoch: tried again and again it would stop all writing."""
    scene = DiskScene(event=with_free_segment())
    session, chain = scene.join(), chain_of(3)
    scene.put(session, chain)
    recycled = 0
    for _ in range(6):
        scene.settle(asked.RecycleSegment)
        while scene.has(asked.RecycleSegment):
            recycled += 1
            scene.answer(scene.take(asked.RecycleSegment), fault_of(kind))
        scene.wait()
    scene.settle()
    assert recycled == 1
    index = scene.state.index
    assert index.segment[list(index.trees[0].rows.values())].all(), "durable"
    assert not scene.state.counts.ssd_degradations, "nothing is wrong with the directory"
    assert 1 not in {segment.number for segment in scene.state.ssd.segments.values()}


def full_tier() -> told.Recovered:
    """Return what a start finds: all but a segment full, each of strips of both tenants."""
    spaces = {tenant: keyspace_digest(KEYSPACE, tenant) for tenant in ("red", "blue")}
    rows, records = [], []
    for group in range(GROUPS):
        numbers = [1 + group * CLASS_COUNT + plane_class for plane_class in PlaneClass]
        records += [
            asked.SegmentRecord(0, number, plane_class, SegmentState.FULL, 1)
            for number, plane_class in zip(numbers, PlaneClass, strict=True)
        ]
        for page in range(1, PAGES):
            at = group * PAGES + page
            digest = spaces["red" if page <= PAGES // 2 else "blue"]
            places = tuple(Place(0, number, 1, page, 1) for number in numbers)
            row = Row(PAGES - 1, b"", at, 1, at / 100, (at, at, at), places)
            rows.append((RowKey(digest, LANE, chain_of(1, at)), row))
    keyspaces = {digest: (KEYSPACE, tenant) for tenant, digest in spaces.items()}
    return told.Recovered(1000, (0, 0), keyspaces, columns_of(rows), tuple(records))


def on_disk(state: State, tenant: str) -> int:
    rows = [row for t in state.index.trees if t.tenant == tenant for row in t.rows.values()]
    return int(np.count_nonzero(state.index.segment[rows]))


def test_a_start_drops_nothing_for_want_of_dram_that_is_still_made() -> None:
    """What moves is read into dram first; of a tenant within its quota nothing goes."""
    tier = SsdConfig(1, PAGES * PAGE_BYTES, GROUPS * CLASS_COUNT + 1)
    kept = GROUPS * (PAGES // 2) * CLASS_COUNT
    quotas = {"red": Quota(ssd_bytes=kept * PAGE_BYTES)}
    state = new_state(CoreConfig(8 * LIMITS.slab_bytes, LIMITS, tier, quotas), epoch=1)
    effects, now_ns = [], 0
    for event in (full_tier(), told.DayBegan(1), Started()):
        effects += step(state, event, now_ns := now_ns + 1)
        check(state)
        assert on_disk(state, "red") == kept
    while making := [effect for effect in effects if isinstance(effect, CreateSlab)]:
        effects = step(state, SlabTouched(making[0].slab), now_ns := now_ns + 1)
        effects += step(state, Ticked(), now_ns := now_ns + 1)
        check(state)
        assert on_disk(state, "red") == kept
    assert state.ssd.clearing is not None, "it was begun as soon as there was dram"


def test_what_a_failed_commit_may_have_told_is_told_again_before_its_place_is_free() -> None:
    """Nobody knows how much of it was heard: a chunk that is not written after all is dropped."""
    scene = DiskScene()
    session, chain = scene.join(), chain_of(2)
    scene.put(session, chain)
    commits: list[asked.Commit] = []
    while not commits or not commits[-1].rows.parents:
        scene.wait()
        scene.settle(asked.Commit)
        if scene.has(asked.Commit):
            commits.append(scene.take(asked.Commit))
            failed = fault_of(FaultKind.IO) if commits[-1].rows.parents else None
            scene.answer(commits[-1], failed)
    assert sorted(commits[-1].rows.keys.chain) == sorted((chain[:32], chain[32:]))
    scene.release(session, scene.fetch(session, chain).lease, 0)  # The first one was corrupt.
    scene.wait(LIMITS.probe_ns)
    scene.save()
    dropped = [digest for commit in scene.commits for digest in commit.dropped.chain]
    assert sorted(dropped) == sorted((chain[:32], chain[32:]))
    assert not any(segment.held for segment in scene.state.ssd.segments.values())

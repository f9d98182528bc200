"""Dram from one core to the next, example by example: what is left, and what is taken over."""

from dataclasses import replace

import numpy as np

from kvd.core import disk_effects as asked
from kvd.core.dram import LeftDram
from kvd.core.effects import DestroySlab, Reserved, ReserveState, Revoke
from kvd.core.events import (
    Adopted,
    DrainEnded,
    DrainStarted,
    ProcessGone,
    SessionEnded,
    SlabDetached,
    Started,
)
from kvd.core.handover import is_detached, leave_dram
from kvd.core.quotas import Quota
from kvd.core.state import CoreConfig, new_state
from kvd.core.transitions import SlabState
from kvd.limits import PAGE_BYTES
from kvd.testing.scene import Scene, branch_of, chain_of
from tests.unit.disk_scene import DiskScene
from tests.unit.test_core_ssd import demote, stored

ALL = (3, 3, 3)


def end(scene: Scene, *, gone: bool = True) -> LeftDram:
    """Drain, end all sessions, and with them their processes if they are `gone`."""
    scene.tell(DrainStarted())
    for session in [number for number in scene.state.sessions if number > 0]:
        scene.tell(ProcessGone(session) if gone else SessionEnded(session))
    scene.tell(DrainEnded())
    return leave_dram(scene.state)


def succeed(left: LeftDram, slabs: int = 4, quotas=None) -> Scene:
    scene = Scene(slabs, left.slab_bytes // PAGE_BYTES)
    config = CoreConfig(slabs * scene.limits.slab_bytes, scene.limits, quotas=quotas or {})
    scene.state = new_state(config, epoch=2)
    scene.tell(Adopted(left))
    scene.adopted = scene.effects
    scene.tell(Started())
    return scene


def recovered_of(scene: DiskScene) -> DiskScene:
    """Return what the catalog gives back after all that was committed to it."""
    from kvd.core.disk_events import Recovered
    from kvd.identity import keyspace_digest
    from kvd.testing.media import Catalog, columns_of

    catalog = Catalog()
    for commit in scene.commits:
        catalog.apply(commit)
    keyspaces = {keyspace_digest(*named): named for named in catalog.keyspaces.values()}
    rows, records = columns_of(list(catalog.rows.items())), tuple(catalog.segments.values())
    return Recovered(catalog.generation, (0, 0), keyspaces, rows, records)


def succeed_on_disk(scene: DiskScene, left: LeftDram) -> DiskScene:
    made = DiskScene()
    made.asked.clear()
    config = CoreConfig(6 * made.limits.slab_bytes, made.limits, made.ssd_config)
    made.state = new_state(config, epoch=2)
    made.commits = []
    made.tell(recovered_of(scene))
    made.tell(Adopted(left))
    made.tell(Started())
    return made


def put_three(scene: Scene) -> tuple[int, bytes]:
    session, chain = scene.join(), chain_of(3)
    scene.put(session, chain)
    return session, chain


# ---- without a tier ----


def test_the_same_chunks_are_found_in_the_same_places():
    first = Scene()
    _, chain = put_three(first)
    left = end(first)
    second = succeed(left)
    session = second.join()
    promise = second.fetch(session, chain)
    assert promise.counts == ALL
    [lane] = promise.lanes
    rows = left.rows
    for plane_class in range(3):
        assert (lane.offsets[plane_class] == rows.offsets[:, plane_class]).all()
        assert (lane.roots[plane_class] == rows.roots[:, plane_class]).all()
    assert (lane.generations == rows.generations).all()


def test_generations_go_on():
    first = Scene()
    put_three(first)
    second = succeed(end(first))
    session = second.join()
    reserved = second.reserve(session, chain_of(1, 9))
    assert isinstance(reserved, Reserved) and reserved.generation > first.state.generation


def test_a_slab_whose_writer_is_gone_is_written_again():
    first = Scene(slabs=1)
    put_three(first)
    second = succeed(end(first), slabs=1)
    session = second.join()
    assert second.reserve(session, chain_of(2, 9)).states.tolist() == [ReserveState.RESERVED] * 2
    assert second.counts(session, chain_of(3)) == ALL


def test_a_slab_whose_writer_may_live_is_read_and_never_written():
    first = Scene(slabs=1)
    put_three(first)
    left = end(first, gone=False)
    assert [slab.orphan for slab in left.slabs] == [True]
    second = succeed(left, slabs=1)
    assert [slab.state for slab in second.state.slabs.values()] == [SlabState.ORPHAN]
    session = second.join()
    assert second.fetch(session, chain_of(3)).counts == ALL


def test_it_is_destroyed_once_nothing_in_it_can_be_read():
    first = Scene(slabs=1, slab_pages=9)
    put_three(first)
    second = succeed(end(first, gone=False), slabs=1)
    [old] = second.state.slabs
    session = second.join()
    given = []
    for _ in range(3):  # What it wants evicts all that is in the way, and then the slab goes.
        given.append(second.reserve(session, chain_of(3, 9)).reservation)
        second.wait()
    assert DestroySlab(old) in second.seen and old not in second.state.slabs and any(given)


def test_a_detached_slab_is_nobodys():
    first = Scene(slabs=1)
    session, _ = put_three(first)
    assert not is_detached(first.state)
    first.tell(SlabDetached(session, 1))
    assert is_detached(first.state)
    assert [slab.orphan for slab in end(first, gone=False).slabs] == [False]


def test_every_session_is_revoked_before_anything_is_left():
    first = Scene()
    session, chain = put_three(first)
    idle = first.join()
    first.fetch(session, chain)
    first.tell(DrainStarted())
    first.tell(SessionEnded(session))
    revoked = {e.session for e in first.tell(DrainEnded()) if isinstance(e, Revoke)}
    assert revoked == {session, idle}


def test_what_is_condemned_and_what_is_behind_it_is_not_taken_over():
    first = Scene()
    session, chain = put_three(first)
    promise = first.fetch(session, chain)
    first.release(session, promise.lease, 1)
    left = end(first)
    assert len(left.rows.parents) == 2
    second = succeed(left)
    assert second.counts(second.join(), chain) == (1, 1, 1)


def test_a_strip_that_does_not_fit_its_root_takes_with_it_what_stands_on_it():
    first = Scene()
    _, chain = put_three(first)
    left = end(first)
    slabs = left.rows.slabs.copy()
    slabs[1, 1] = 0
    bad = replace(left, rows=replace(left.rows, slabs=slabs))
    second = succeed(bad)
    assert second.counts(second.join(), chain) == (3, 1, 1)


def test_branches_keep_their_links():
    first = Scene(slab_pages=64)
    session, stem = put_three(first)
    branches = [branch_of(stem, 2, text) for text in (5, 6)]
    for branch in branches:
        first.put(session, branch)
    scene = succeed(end(first))
    assert scene.state.index.row_count == 7
    assert [scene.counts(scene.join(), branch) for branch in branches] == [(5, 5, 5)] * 2


def test_of_less_dram_the_slabs_stay_that_hold_most():
    first = Scene(slabs=3, slab_pages=9)
    session = first.join()
    first.put(session, chain_of(3))
    first.put(session, chain_of(1, 5))
    left = end(first)
    second = succeed(left, slabs=1)
    assert second.counts(second.join(), chain_of(3)) == ALL
    gone = {effect.slab for effect in second.adopted if isinstance(effect, DestroySlab)}
    assert len(gone) == len(left.slabs) - 1 and len(second.state.slabs) == 1


def test_a_quota_that_shrank_is_kept():
    first = Scene(slabs=3, slab_pages=9)
    session = first.join()
    for text in range(3):
        first.put(session, chain_of(3, text))
    slab_bytes = 9 * PAGE_BYTES
    second = succeed(end(first), slabs=3, quotas={"red": Quota(dram_bytes=slab_bytes)})
    held = [slab for slab in second.state.slabs.values() if slab.tenant == "red"]
    assert len(held) == 1 and len(second.state.slabs) == 3


def test_a_class_without_the_one_before_it_is_not_offered():
    first = Scene()
    put_three(first)
    left = end(first)
    slabs = left.rows.slabs.copy()
    slabs[:, 0] = 0
    second = succeed(replace(left, rows=replace(left.rows, slabs=slabs)))
    assert second.state.index.row_count == 0
    assert sum(slab.readable_bytes for slab in second.state.slabs.values()) == 0


# ---- with one ----


def test_what_the_catalog_knows_is_a_copy_and_needs_no_read():
    first = DiskScene()
    _, chain = stored(first, 3)
    second = succeed_on_disk(first, end(first))
    second.settle(asked.ReadStrips)
    assert not second.has(asked.WriteStrips) and len(second.state.index.copies) == 9
    promise = second.fetch(second.join(), chain)
    assert promise.counts == ALL and not second.has(asked.ReadStrips)


def test_what_the_catalog_does_not_know_is_written():
    first = DiskScene()
    session, _ = stored(first, 3)
    longer = branch_of(chain_of(3), 2, 7)
    first.put(session, longer)
    left = end(first)
    first.asked.clear()
    assert len(left.rows.parents) == 5
    second = succeed_on_disk(first, left)
    second.save()
    assert second.counts(second.join(), longer) == (5, 5, 5)
    assert (second.state.index.segment != 0).sum() == 15
    assert sum(len(commit.rows.parents) for commit in second.commits) == 2


def test_of_another_generation_the_catalog_is_believed():
    first = DiskScene()
    _, chain = stored(first, 3)
    left = end(first)
    other = replace(left.rows, generations=left.rows.generations + np.uint64(10))
    second = succeed_on_disk(first, replace(left, rows=other, generation=left.generation + 10))
    assert not second.state.index.slab.any() and second.counts(second.join(), chain) == ALL
    assert sorted(set(second.state.index.generation[:3].tolist())) == [1]


def test_of_another_root_the_catalog_is_believed():
    first = DiskScene()
    stored(first, 3)
    left = end(first)
    second = succeed_on_disk(
        first, replace(left, rows=replace(left.rows, roots=left.rows.roots + 1))
    )
    assert not second.state.index.slab.any()


def test_a_chunk_behind_one_that_is_on_disk_only_is_taken_over():
    first = DiskScene()
    session, chain = stored(first, 3)
    demote(first)
    longer = branch_of(chain, 1, 7)
    first.put(session, longer)
    left = end(first)
    assert len(left.rows.parents) == 1
    second = succeed_on_disk(first, left)
    assert second.counts(second.join(), longer) == (4, 4, 4)


def test_a_chunk_whose_parent_is_nowhere_is_not():
    first = DiskScene()
    session, chain = stored(first, 3)
    demote(first)
    first.put(session, branch_of(chain, 1, 7))
    left = end(first)
    first.commits.clear()
    second = Scene(6)
    second.state = new_state(CoreConfig(6 * left.slab_bytes, first.limits), epoch=2)
    second.tell(Adopted(left))
    assert second.state.index.row_count == 0


def test_what_is_being_read_is_left_out():
    first = DiskScene()
    session, chain = stored(first, 3)
    demote(first)
    first.fetch(session, chain)
    assert first.has(asked.ReadStrips)
    left = end(first)
    assert not left.rows.parents
    reading = {int(slab) for slab in first.state.index.slab[first.state.index.in_flight != 0]}
    assert not reading & {slab.slab for slab in left.slabs}

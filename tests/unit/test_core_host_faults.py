"""What a hand could not do for want of the host's means says nothing of a drive or of a chunk."""

from kvd.core import disk_effects as asked
from kvd.core.effects import Answer, FetchDone, Shortfall
from kvd.core.invariants import check
from kvd.errors import FaultKind
from kvd.testing.scene import chain_of
from tests.unit.disk_scene import LIMITS, DiskScene, demote, fault_of

LACK = fault_of(FaultKind.CANCELLED)


def test_a_read_cuts_its_promise_and_suspects_nobody() -> None:
    scene = DiskScene()
    session, chain = scene.join(), chain_of(2)
    scene.put(session, chain)
    scene.save()
    demote(scene)
    scene.fetch(session, chain)
    effects = scene.answer(scene.take(asked.ReadStrips), LACK)
    done = [e.outcome for e in effects if isinstance(e, Answer)]
    assert done == [FetchDone(0, (0, 0, 0), Shortfall.READ_FAILED)]
    assert not scene.has(asked.ProbeDirectory)
    assert scene.state.index.cataloged.sum() == 2 and not scene.state.index.condemned.any()
    assert scene.fetch(session, chain).counts == (2, 2, 2)
    check(scene.state)


def test_a_write_is_tried_again_after_a_while_and_degrades_nothing() -> None:
    scene = DiskScene()
    session, chain = scene.join(), chain_of(2)
    scene.put(session, chain)
    scene.settle(asked.WriteStrips)
    scene.wait(LIMITS.tick_ns)
    scene.settle(asked.WriteStrips)
    for _ in range(3):
        opened = dict(scene.state.ssd.open)
        scene.answer(scene.take(asked.WriteStrips), LACK)
        check(scene.state)
        assert not scene.has(asked.WriteStrips), "at once it would be refused again"
        assert scene.state.ssd.fault is None and scene.state.ssd.open == opened
        scene.wait(LIMITS.probe_ns)
        assert scene.has(asked.WriteStrips)
    scene.settle()
    scene.save()
    assert not scene.state.counts.ssd_degradations
    assert scene.state.index.cataloged.sum() == 2


def test_a_segment_is_made_again_after_a_while_and_its_directory_stays_well() -> None:
    scene = DiskScene()
    session, chain = scene.join(), chain_of(2)
    scene.put(session, chain)
    scene.settle(asked.MakeSegment)
    scene.wait(LIMITS.tick_ns)
    while scene.has(asked.MakeSegment):
        scene.answer(scene.take(asked.MakeSegment), LACK)
        check(scene.state)
    assert scene.state.ssd.fault is None
    scene.wait(LIMITS.probe_ns)
    assert scene.has(asked.MakeSegment)
    scene.settle()
    scene.save()
    assert not scene.state.counts.ssd_degradations
    assert scene.state.index.cataloged.sum() == 2

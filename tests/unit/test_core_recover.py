"""What a start finds wrong is put right by commits that are told until the catalog hears them."""

from dataclasses import replace

import pytest

from kvd.clock import NS_PER_S
from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core.invariants import check
from kvd.errors import FaultKind
from kvd.identity import keyspace_digest
from kvd.limits import PAGE_BYTES
from kvd.testing.media import Catalog, columns_of, rows_of
from kvd.testing.scene import KEYSPACE, chain_of
from kvd.types import CLASS_COUNT, PlaneClass, SegmentState
from tests.unit.disk_scene import DiskScene, fault_of, recovered

CHUNKS, DEAF = 3, 3
LATER_NS = 60 * NS_PER_S


class DeafScene(DiskScene):
    """One whose catalog does not hear the first commits, or hears and does not say so."""

    def __init__(self, event: told.Recovered, deaf: int, kind: FaultKind = FaultKind.IO) -> None:
        self.deaf, self.kind, self.lost, self.catalog = deaf, kind, event.lost, caught(event)
        super().__init__(event=event)

    def answer(self, effect: asked.DiskEffect, fault: object = None) -> list:
        if isinstance(effect, asked.RecycleSegment):
            gone = (effect.directory, effect.segment) in self.lost
            return super().answer(effect, fault_of(FaultKind.GONE) if gone else None)
        if isinstance(effect, asked.Commit):
            if self.deaf:
                self.deaf -= 1
                return super().answer(effect, fault_of(self.kind))
            self.catalog.apply(effect)
        return super().answer(effect, fault)


def caught(event: told.Recovered) -> Catalog:
    records = {(record.directory, record.segment): record for record in event.segments}
    return Catalog(rows_of(event.rows), records, dict(event.keyspaces), event.generation)


def again(catalog: Catalog) -> told.Recovered:
    """Return what the next start finds in the catalog."""
    rows, records = columns_of(list(catalog.rows.items())), tuple(catalog.segments.values())
    return told.Recovered(catalog.generation, (0, 0), dict(catalog.keyspaces), rows, records)


@pytest.fixture
def left() -> told.Recovered:
    """Return what is left of a tier with chunks in a segment of each class."""
    scene = DiskScene()
    scene.put(scene.join(), chain_of(CHUNKS))
    scene.save()
    return recovered(scene)


def losing(event: told.Recovered, plane_class: int) -> told.Recovered:
    """Return the same, found without the files of a class."""
    lost = [(s.directory, s.segment) for s in event.segments if s.plane_class == plane_class]
    return replace(event, lost=tuple(lost))


def classes_of(catalog: Catalog) -> list[int]:
    return [len(row.places) for row in catalog.rows.values()]


@pytest.mark.parametrize("kind", [FaultKind.IO, FaultKind.NO_SPACE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("plane_class", list(PlaneClass))
def test_a_lost_segment_is_told_until_it_is_heard(
    left: told.Recovered, plane_class: PlaneClass, kind: FaultKind
) -> None:
    event = losing(left, plane_class)
    scene = DeafScene(event, deaf=DEAF, kind=kind)
    session, chain = scene.join(), chain_of(CHUNKS)
    counts = [CHUNKS] * plane_class + [0] * (CLASS_COUNT - plane_class)
    assert list(scene.counts(session, chain)) == counts
    if plane_class or kind == FaultKind.IO:  # A full catalog takes drops.
        assert classes_of(scene.catalog) == [CLASS_COUNT] * CHUNKS, "nothing was heard yet"
    for _ in range(DEAF + 1):
        scene.wait(LATER_NS)
        scene.save()
        check(scene.state)
    assert classes_of(scene.catalog) == [int(plane_class)] * (CHUNKS if plane_class else 0)
    fresh = DiskScene(event=losing(again(scene.catalog), plane_class))
    assert list(fresh.counts(fresh.join(), chain)) == counts


def test_the_number_of_a_lost_segment_is_not_used_again(left: told.Recovered) -> None:
    """Its rows may be in the catalog yet: a file of that number would be taken for theirs."""
    newest = max(left.segments, key=lambda record: record.segment)
    scene = DeafScene(losing(left, newest.plane_class), deaf=1)
    session = scene.join()
    scene.wait(LATER_NS)
    for text in range(1, 4):
        scene.put(session, chain_of(CHUNKS, text))
        scene.save()
    known = {record.segment for record in left.segments}
    made = {s.number for s in scene.state.ssd.segments.values()} - known
    assert made and min(made) > newest.segment


def test_a_number_that_only_refused_rows_name_is_not_used_again(left: told.Recovered) -> None:
    scene = DiskScene(event=replace(left, number=70))
    session = scene.join()
    for text in range(1, 4):
        scene.put(session, chain_of(CHUNKS, text))
        scene.save()
    known = {record.segment for record in left.segments}
    made = {s.number for s in scene.state.ssd.segments.values()} - known
    assert made and min(made) > 70


def test_a_lost_segment_is_cleared_as_others_are_and_its_record_goes(left: told.Recovered) -> None:
    event = losing(left, PlaneClass.EXACT)
    [lost] = event.lost
    scene = DeafScene(event, deaf=0)
    session = scene.join()
    for text in range(1, 20):
        scene.put(session, chain_of(CHUNKS, text))
        scene.save()
        scene.wait()
        check(scene.state)
    assert lost not in scene.catalog.segments
    assert not scene.state.counts.ssd_degradations


def test_a_free_record_without_a_file_goes(left: told.Recovered) -> None:
    free = asked.SegmentRecord(0, 40, PlaneClass.ANCHOR, SegmentState.FREE, 3)
    event = replace(left, segments=(*left.segments, free), lost=((0, 40),))
    scene = DeafScene(event, deaf=0)
    scene.wait()
    scene.save()
    assert (0, 40) not in scene.catalog.segments
    assert not scene.has(asked.RecycleSegment)
    assert 40 not in {segment.number for segment in scene.state.ssd.segments.values()}


def test_strips_that_cannot_stand_are_told_too(left: told.Recovered) -> None:
    """Else a row goes on naming a place that is given out again."""
    left.rows.pages[0, 2] = 9 * PAGE_BYTES
    scene = DeafScene(left, deaf=1)
    scene.wait(LATER_NS)
    scene.save()
    assert 2 in classes_of(scene.catalog)
    assert keyspace_digest(KEYSPACE, "red") in scene.catalog.keyspaces

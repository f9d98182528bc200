"""Each kind of damage to the tables is found, in one round of what a daemon in service looks at.

And at once by who checks all of them again and again.
"""

import copy
from collections.abc import Callable

import numpy as np
import pytest

from kvd.core.index import ROWS_AT_START
from kvd.core.invariants import Checker
from kvd.core.sampling import ROWS, SHARE, check_some
from kvd.core.state import State
from kvd.core.transitions import StripState
from kvd.testing.scene import chain_of
from tests.unit.disk_scene import DiskScene

CHUNKS = 3 * ROWS  # Several windows.
TEXT = 64  # Chunks of each chain.
AT = CHUNKS // 2 + 3  # A row in the middle of them, and of its chain.


def _set(name: str, value: object, *at: int) -> Callable[[State], None]:
    def damage(state: State) -> None:
        getattr(state.index, name)[(AT, *at)] = value

    return damage


def _of(owners: str, name: str, value: object) -> Callable[[State], None]:
    def damage(state: State) -> None:
        table = getattr(state if owners != "segments" else state.ssd, owners)
        setattr(next(iter(table.values())), name, value)

    return damage


def _count_twice(state: State) -> None:
    next(iter(state.slabs.values())).bytes_by_state[StripState.READY] += 4096


def _free_under_a_strip(state: State) -> None:
    index = state.index
    slab = state.slabs[int(index.slab[AT, 0])]
    slab.extents.give(int(index.offset[AT, 0]), int(index.size[AT, 0]))
    slab.bytes_by_state[StripState.READY] -= int(index.size[AT, 0])


def _live_when_gone(state: State) -> None:
    state.index.slab[state.index.free_rows[0], 0] = 1


DAMAGES = {
    "no anchor": (_set("present", False, 0), "I6"),
    "a depth of another": (_set("depth", 7), "I6: depth"),
    "no generation": (_set("generation", 0), "I2"),
    "a generation to come": (_set("generation", 1 << 60), "I2"),
    "pins below none": (_set("pins", -1, 0), "I4"),
    "pieces that nobody reads": (_set("missing", 1, 0), "I1"),
    "a strip beyond its slab": (_set("offset", 1 << 40, 0), "I3"),
    "a slab that is gone": (_set("slab", 999, 0), "I3"),
    "children": (_set("children", 7, 0), "I6: children"),
    "a segment of another class": (_set("segment", 1, 2), "I7|copies|I6"),
    "bytes counted twice": (_count_twice, "I3: slab"),
    "a place given away": (_free_under_a_strip, "I3, I4"),
    "a row that is gone": (_live_when_gone, "I11"),
    "leased bytes": (_of("sessions", "lease_bytes", 5), "I9"),
    "a segment longer than its file": (_of("segments", "end", 1 << 40), "I8"),
    "a segment with less than nothing": (_of("segments", "live_bytes", -1), "I3"),
}


@pytest.fixture(scope="module")
def scene() -> DiskScene:
    """Many chunks, all of them in dram, most of them on disk."""
    scene = DiskScene(slabs=CHUNKS // 4, segments=12, segment_pages=CHUNKS // 2)
    session = scene.join()
    for text in range(CHUNKS // TEXT):
        scene.put(session, chain_of(TEXT, text))
        scene.save()
    return scene


def look_at_all(state: State) -> None:
    windows = -(-len(state.index.parent) // ROWS)
    for turn in range(windows * SHARE):
        check_some(state, turn)


def test_nothing_is_found_where_all_is_well(scene: DiskScene) -> None:
    assert scene.state.index.row_count > max(2 * ROWS, ROWS_AT_START)
    assert scene.state.index.segment.any() and scene.state.ssd.segments
    look_at_all(scene.state)


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_in_one_round(scene: DiskScene, name: str) -> None:
    damage, number = DAMAGES[name]
    state = copy.deepcopy(scene.state)
    assert np.flatnonzero(state.index.present[:, 0])[0] <= AT
    damage(state)
    with pytest.raises(AssertionError, match=number):
        look_at_all(state)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_checker_that_saw_all_well_finds_the_damage(scene: DiskScene, name: str) -> None:
    """Though it looks again at what has changed since only."""
    state, checker = copy.deepcopy(scene.state), Checker()
    checker.check(state)
    DAMAGES[name][0](state)
    with pytest.raises((AssertionError, LookupError)):
        checker.check(state)

"""A daemon ended at every boundary there is, and what the next one finds; `--points N` lives."""

import pytest

from tests.crash.lives import WORLDS, live, work_long

POINTS = 165
LONG_LIVES, LONG_STEPS = 4, 150


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
def test_nothing_is_lost_and_nothing_is_wrong(world, new_node, chance, request, tally):
    lives = round((request.config.getoption("points") or POINTS) * world.share)
    node, begin = new_node(max(world.segments), world.directories, disk=world.disk), tally.faults
    ends = len(tally.points) + tally.moments
    for _ in live(node, world, tally, chance, lives):
        pass
    assert tally.faults == begin
    # Some have no such boundary before their end; were it many, nothing was tried.
    assert len(tally.points) + tally.moments >= ends + 0.75 * lives, tally.missed


def test_catalog_and_disk_agree_exactly_after_much_work(new_node, chance, tally):
    node, begin = new_node(14), tally.faults
    for _ in work_long(node, tally, chance, LONG_LIVES, LONG_STEPS):
        assert tally.faults == begin

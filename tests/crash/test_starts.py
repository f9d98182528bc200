"""A start that is ended at any of its boundaries, or fails there. `--points N` tries more."""

import pytest

from kvd.limits import MIB
from tests.crash.model import Model
from tests.crash.node import Node
from tests.crash.places import new_setting
from tests.crash.seam import Failing
from tests.crash.sites import STARTING
from tests.crash.starts import copied, end_first_starts, end_recoveries, end_removals, make_mess
from tests.crash.work import Work

FIRST_POINTS, RECOVERY_POINTS, REMOVAL_POINTS, FAILURES = 36, 24, 12, 16


def test_a_first_start_may_end_anywhere(nursery, quick_directory, chance, request, tally):
    count, begin = request.config.getoption("points") or FIRST_POINTS, tally.faults
    for _ in end_first_starts(nursery, quick_directory, tally, chance, count):
        assert tally.faults == begin


@pytest.fixture
def messy(new_node, chance):
    """Return a node that ended with all that crashes leave, and what was done to it."""
    node = new_node(16)
    work = Work(Model(node.drops), chance.randrange(1 << 30), fresh=True)
    make_mess(node, work)
    return node, work


def test_a_recovery_may_end_anywhere(messy, quick_directory, chance, request, tally):
    count, begin = request.config.getoption("points") or RECOVERY_POINTS, tally.faults
    for _ in end_recoveries(*messy, quick_directory, tally, chance, count):
        assert tally.faults == begin


def test_a_catalog_may_be_removed_in_part(messy, quick_directory, chance, request, tally):
    count, begin = request.config.getoption("points") or REMOVAL_POINTS, tally.faults
    for _ in end_removals(*messy, quick_directory, tally, chance, count):
        assert tally.faults == begin


FAILING = [
    *((site, "EIO") for site, _ in STARTING),
    *((site, "EIO") for site in ("canary.write", "canary.sync", "segment.unlink", "commit")),
    *((site, "ENOSPC") for site in ("canary.allocate", "superblock.write", "catalog.space")),
]


def test_a_start_may_fail_at_anything_and_says_so_in_one_line(
    messy, nursery, quick_directory, chance, request
):
    left, work = messy
    count = min(request.config.getoption("points") or FAILURES, len(FAILING))
    for number, (site, how) in enumerate(chance.sample(FAILING, count)):
        node = Node(nursery, new_setting(quick_directory / f"new{number}", 12 * MIB, 2))
        assert_comes_up_later(node, Failing(site, how))
        node.close()
        node, its = copied(left, work, quick_directory / f"old{number}")
        assert_comes_up_later(node, Failing(site, how))
        its.look_at_all(node.client, site)
        assert not (its.model.wrong or its.model.lost), (site, how, its.model.lost)
        node.close()


def assert_comes_up_later(node: Node, failing: Failing) -> None:
    """Start on a disk that fails: it comes up or says why not; and again on one that works."""
    if not node.start(None, failing):
        assert node.end() == 2, node.daemon.lines
        line = node.daemon.lines[-1]
        assert str(node.setting.paths[0]) in line, line
    node.end()
    assert not node.said_badly("damaged"), node.daemon.lines
    assert node.start(), (failing, node.daemon.lines)

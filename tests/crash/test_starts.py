"""A start that is ended at any of its boundaries, on new directories and on what crashes left.

The next start comes up with all that was durable. `--points N` tries more.
"""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kvd.limits import MIB
from tests.crash.conftest import budget_of
from tests.crash.model import Model
from tests.crash.node import Node, Setting
from tests.crash.seam import Failing, Kill
from tests.crash.sites import SERVING, STARTING
from tests.crash.work import Work

POINTS = 16
STEPS_MAX = 300
KNOWN = {(site, when) for site, whens in (*SERVING, *STARTING) for when in whens}


@pytest.fixture
def points(request):
    return request.config.getoption("points") or POINTS


def boundaries(trace: Path, chance, count: int) -> list[Kill]:
    """Return boundaries that a start has met, of each kind at least one, then as they come."""
    met: dict[tuple[str, str], list[int]] = {}
    for line in trace.read_text().splitlines():
        site, when, number = line.split()
        if (site, when) in KNOWN:
            met.setdefault((site, when), []).append(int(number))
    rounds: list[Kill] = []
    while len(rounds) < count and any(met.values()):
        for (site, when), numbers in sorted(met.items()):
            if numbers:
                number = numbers.pop(chance.randrange(len(numbers)))
                seed = chance.randrange(1 << 30)
                rounds.append(Kill(site, when, number, seed, chance.random() < 0.5))
    chance.shuffle(rounds)
    return rounds[:count]


def new_setting(quick_directory: Path, name: str, budget_bytes: int, directories: int) -> Setting:
    root = quick_directory / name
    paths = tuple(root / f"data{number}" for number in range(directories))
    for path in paths:
        path.mkdir(parents=True)
    return Setting(root, root / "run", paths, budget_bytes)


def test_a_first_start_may_end_anywhere(nursery, quick_directory, chance, points, tally):
    budget = 12 * MIB
    node = Node(nursery, new_setting(quick_directory, "whole", budget, 2))
    trace = quick_directory / "trace"
    assert node.start(trace=trace)
    node.close()
    for kill in boundaries(trace, chance, points):
        node = Node(nursery, new_setting(quick_directory, "ended", budget, 2))
        if not node.start(kill):
            tally.met(kill, "first start")
        node.end()
        assert not node.said_badly("damaged"), node.daemon.lines
        code, found = node.check()
        assert code == 0 or code == 2 and "superblock" in found["refused"], (kill, code, found)
        model = Model(node.drops)
        work = Work(model, kill.seed, fresh=False)
        assert node.start(), (kill, node.daemon.lines)
        for _ in range(5):
            work.step(node.client, str(kill))
        node.end()
        model.restarted()
        assert node.start(), (kill, node.daemon.lines)
        work.look_at_all(node.client, str(kill))
        tally.add(model)
        assert not (model.wrong or model.lost), (model.wrong, model.lost)
        node.watch.assert_within()
        node.close()
        shutil.rmtree(node.setting.root)


@pytest.fixture
def messy(new_node, chance):
    """Return a node that ended with all that crashes leave, and what was done to it."""
    node = new_node(16)
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    # All that there may be; one more, that is in no record; and one too many, whose file is gone
    # and its record is not (the second, as the one before goes first).
    for segments, kill in (
        (12, Kill("commit", "after", 40)),
        (16, Kill("segments.sync", "before", 3)),
        (12, Kill("segment.unlink", "after", 2)),
    ):
        node.budget_bytes = budget_of(segments)
        model.restarted()
        node.start(kill)
        begin = work.done
        while node.lives():
            work.step(node.client, "making a mess")
            assert work.done < begin + STEPS_MAX, (kill, node.daemon.lines)
        node.end()
    data = node.setting.paths[0]
    segment = min((data / "segments").iterdir())
    shutil.copy(segment, segment.with_name("00000999"))
    (data / "segments" / "00001000").touch()
    shutil.copytree(data / "catalog", data / "catalog.new")
    (data / "superblock.new").write_bytes(b"not finished")
    assert not (model.wrong or model.lost)
    return node, work


def copied(left: Node, work: Work, root: Path) -> tuple[Node, Work]:
    """Return another node that ended in the same way, and what was done to it."""
    shutil.copytree(left.setting.root, root, ignore=lambda *_: ("run",))
    setting = replace(left.setting, root=root, run=root / "run", paths=(root / "data0",))
    node, its = Node(left.nursery, setting), copy.deepcopy(work)
    its.model.drops = node.drops
    its.model.restarted()
    return node, its


def test_a_recovery_may_end_anywhere(messy, quick_directory, chance, points, tally):
    left, work = messy
    left.watch.stop()
    trace = quick_directory / "trace"
    node, its = copied(left, work, quick_directory / "whole")
    assert node.start(trace=trace)
    its.look_at_all(node.client, "whole")
    assert not (its.model.wrong or its.model.lost), (its.model.wrong, its.model.lost)
    node.close()
    for kill in boundaries(trace, chance, points):
        node, its = copied(left, work, quick_directory / "ended")
        if node.start(kill):
            its.look_at_all(node.client, str(kill))
        if not node.lives():
            tally.met(kill, "recovery")
        node.end()
        its.model.restarted()
        assert node.start(), (kill, node.daemon.lines)
        its.look_at_all(node.client, str(kill))
        assert not node.said_badly("damaged"), node.daemon.lines
        tally.add(its.model)
        assert not (its.model.wrong or its.model.lost), (its.model.wrong, its.model.lost)
        node.end()
        assert node.check()[0] == 0, node.check()
        assert node.watch.look() <= node.watch.limit_bytes
        node.close()
        shutil.rmtree(node.setting.root)


FAILING = [
    *((site, "EIO") for site, _ in STARTING),
    *((site, "EIO") for site in ("canary.write", "canary.sync", "segment.unlink", "commit")),
    *((site, "ENOSPC") for site in ("canary.allocate", "superblock.write", "catalog.space")),
]


def test_a_start_may_fail_at_anything_and_says_so_in_one_line(
    messy, nursery, quick_directory, chance, points
):
    left, work = messy
    left.watch.stop()
    for number, (site, how) in enumerate(chance.sample(FAILING, min(points, len(FAILING)))):
        node = Node(nursery, new_setting(quick_directory, f"new{number}", 12 * MIB, 2))
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

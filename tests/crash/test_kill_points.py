"""A daemon ended at every boundary there is, and what the next one finds. `--points N` runs more.

Nothing acknowledged durable is lost but what the daemon itself dropped for room, nothing is found
that was never put or was cleared, `kvd check` finds nothing wrong in between, and what lies on disk
never takes more than the budget.
"""

import random
import signal
import threading
from dataclasses import dataclass

import pytest

from tests.crash.conftest import budget_of
from tests.crash.model import Model
from tests.crash.node import Node
from tests.crash.seam import Kill
from tests.crash.sites import SERVING
from tests.crash.tally import Tally
from tests.crash.work import Work

POINTS = 78
STEPS_MAX = 100  # Of a life that does not meet its end before.
# How often a site is met in a life, about; others seldom.
_COUNTS = {"commit": 15, "strips.write": 20, "strips.sync": 20}
_COUNT = 3
# Met at all only where there come to be more segments, or fewer.
_OF_GROWTH = ("segment.create", "segment.allocate", "segments.sync")
_OF_SHRINKING = ("segment.unlink",)
# Met mostly while everything is looked at after a start.
_AT_START = (*_OF_GROWTH, *_OF_SHRINKING, "strips.read", "segment.open")


@dataclass(frozen=True, slots=True)
class World:
    """`segments` of each life in turn; on a `disk`, not in memory."""

    segments: tuple[int, ...]
    directories: int = 1
    fresh: bool = False
    disk: bool = False


WORLDS = {
    "below the budget": World((40,)),
    "above the budget": World((12,), fresh=True),
    "of changing budgets": World((16, 12), directories=2, fresh=True, disk=True),
}


def next_kill(tally: Tally, change: int, chance: random.Random) -> Kill | None:
    """Return a boundary that was tried least in a life of more or fewer segments; or no boundary.

    Then it ends at any moment.
    """
    if chance.random() < 0.1:
        return None
    out = {*(_OF_GROWTH if change <= 0 else ()), *(_OF_SHRINKING if change >= 0 else ())}
    sites = [(site, when) for site, whens in SERVING if site not in out for when in whens]
    chance.shuffle(sites)
    site, when = min(sites, key=tally.tried.__getitem__)
    tally.tried[site, when] += 1
    choices = [(n, p) for n in range(1, _COUNTS.get(site, _COUNT) + 1) for p in (False, True)]
    fresh = [each for each in choices if (site, when, *each) not in tally.points]
    count, power = chance.choice(fresh or choices)
    return Kill(site, when, count, chance.randrange(1 << 30), power)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        metafunc.parametrize("world", WORLDS.values(), ids=list(WORLDS))


def test_nothing_is_lost_and_nothing_is_wrong(world, new_node, chance, request, tally):
    points = (request.config.getoption("points") or POINTS) // len(WORLDS)
    node = new_node(max(world.segments), world.directories, disk=world.disk)
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=world.fresh)
    unsound, before = [], 0
    for number in range(points):
        segments = world.segments[number % len(world.segments)]
        node.budget_bytes = budget_of(segments, world.directories)
        kill = next_kill(tally, segments - before, chance)
        unsound += _one_life(node, work, kill, f"life {number}", tally)
        before = segments
    work.model.restarted()
    assert node.start()
    work.look_at_all(node.client, "in the end")
    node.watch.assert_within()
    tally.add(model)
    for each in (*model.wrong, *model.lost, *unsound):
        print(each)
    assert not (model.wrong or model.lost or unsound)


def _one_life(node: Node, work: Work, kill: Kill | None, where: str, tally: Tally) -> list[str]:
    """Start, look at everything, work until the end; return what is wrong on disk then."""
    where = f"{where}, {kill or 'at any moment'}"
    at_start = kill is not None and (kill.site in _AT_START or kill.count == 1)
    work.model.restarted()
    if node.start(kill if at_start else None):
        work.look_at_all(node.client, where)
        begin = work.done
        if kill is None:
            threading.Timer(work.chance.random() / 2, node.process.kill).start()
        elif not at_start:
            node.tell(kill)
        while node.lives() and work.done < begin + STEPS_MAX:
            work.step(node.client, where)
    if node.lives():
        tally.missed[f"{kill.site} {kill.when}" if kill else "any moment"] += 1
    else:
        tally.met(kill, where)
    assert node.end() == -signal.SIGKILL, node.daemon.lines[2:]
    assert not node.said_badly("damaged", "left out"), (where, node.daemon.lines)
    node.watch.assert_within()
    code, found = node.check()
    wrong = [each for each in found.get("findings", [found]) if each.get("level") != "left"]
    return [f"{where}: {code} {wrong}"] if code or wrong else []

"""One life of a daemon after the other: each looks at everything, works, and ends at a boundary.

Nothing acknowledged durable is lost but what the daemon itself dropped for room, nothing is found
that was never put or was cleared, `kvd check` finds nothing wrong in between, and what lies on disk
never takes more than the budget.
"""

import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tests.crash.model import Model
from tests.crash.node import Node
from tests.crash.places import budget_of
from tests.crash.seam import Kill
from tests.crash.sites import SERVING
from tests.crash.tally import Tally
from tests.crash.work import Work

STEPS_MAX = 100  # Of a life that does not meet its end before.
# How often a site is met in a life, about; others seldom.
_COUNTS = {
    "commit": 32, "strips.write": 40, "strips.sync": 32, "strips.read": 24, "segment.open": 16,
    "head.read": 16,
}  # fmt: skip
_COUNT = 5
# Met at all only where there come to be more segments, or fewer.
_OF_GROWTH = ("segment.create", "segment.allocate", "segments.sync")
_OF_SHRINKING = ("segment.unlink",)


@dataclass(frozen=True, slots=True)
class World:
    """`segments` of each life in turn; on a `disk`, not in memory; `share` of all lives."""

    segments: tuple[int, ...]
    share: float
    directories: int = 1
    fresh: bool = False
    disk: bool = False


WORLDS = {
    "below the budget": World((40,), 0.4),
    "above the budget": World((12,), 0.4, fresh=True),
    "of changing budgets": World((16, 12), 0.2, directories=2, fresh=True, disk=True),
}


def next_kill(tally: Tally, change: int, chance: random.Random) -> Kill | None:
    """Return a boundary not met before, of the site tried least; or none: at any moment.

    `change`: how many segments more, or fewer, there are to be than in the life before.
    """
    if chance.random() < 0.1:
        return None
    out = {*(_OF_GROWTH if change <= 0 else ()), *(_OF_SHRINKING if change >= 0 else ())}
    kinds = [(site, when) for site, whens in SERVING if site not in out for when in whens]
    chance.shuffle(kinds)
    tried = {kind: _tried(tally, *kind) for kind in kinds}
    site, when = min(kinds, key=tried.__getitem__)
    tally.tried[site, when] += 1
    kills = [
        Kill(site, when, count, chance.randrange(1 << 30), chance.random() < 0.5)
        for count in range(1, _COUNTS.get(site, _COUNT) + 1)
    ]
    fresh = [kill for kill in kills if kill.point not in tally.points]
    return chance.choice(fresh or kills)


def _tried(tally: Tally, site: str, when: str) -> float:
    """Return how much of a kind's occurrences was tried."""
    return tally.tried[site, when] / _COUNTS.get(site, _COUNT)


def live(
    node: Node, world: World, tally: Tally, chance: random.Random, lives: int
) -> Iterator[str]:
    """Have so many lives, each on what the one before left; yield how each was to end."""
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=world.fresh)
    before = 0
    for number in range(lives):
        segments = world.segments[number % len(world.segments)]
        node.budget_bytes = budget_of(segments, world.directories)
        kill = next_kill(tally, segments - before, chance)
        where = f"life {number}, {kill or 'at any moment'}"
        one_life(node, work, kill, where)
        tally.met(kill, node.ended_at())
        node.watch.assert_within()
        tally.unsound += unsound(node, where)
        before = segments
        yield where
    look_once_more(node, work, "in the end")
    tally.add(model, work.done)


def one_life(node: Node, work: Work, kill: Kill | None, where: str) -> None:
    """Start, look at everything, and work until the end."""
    work.model.restarted()
    if node.start(kill):
        work.look_at_all(node.client, where)
        begin = work.done
        if kill is None:
            threading.Timer(work.chance.random() / 2, node.process.kill).start()
        while node.lives() and work.done < begin + STEPS_MAX:
            work.step(node.client, where)
    assert node.end() == -signal.SIGKILL, node.daemon.lines[2:]
    assert not node.said_badly("damaged", "left out", "degraded"), (where, node.daemon.lines)


def work_long(
    node: Node, tally: Tally, chance: random.Random, lives: int, steps: int
) -> Iterator[str]:
    """Have so many lives of so many steps, each ended in order: catalog and disk agree exactly."""
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    for number in range(lives):
        where = f"long life {number}"
        look_once_more(node, work, where)
        for _ in range(steps):
            work.step(node.client, where)
        node.daemon.send(signal.SIGTERM)
        assert node.daemon.wait() == 0, node.daemon.lines
        node.end()
        code, found = node.check()
        if code or found["findings"]:
            tally.unsound.append(f"{where}: {code} {found['findings']}")
        yield where
    tally.add(model, work.done)


def unsound(node: Node, where: str) -> list[str]:
    """Return what `kvd check` finds wrong, beyond what a crash leaves."""
    code, found = node.check()
    wrong = [each for each in found.get("findings", [found]) if each.get("level") != "left"]
    return [f"{where}: {code} {wrong}"] if code or wrong else []


def look_once_more(node: Node, work: Work, where: str) -> None:
    """Start once more and look at everything."""
    work.model.restarted()
    assert node.start(), node.daemon.lines
    work.look_at_all(node.client, where)
    node.watch.assert_within()

"""Starts that are ended at any of their boundaries, on new directories and on what crashes left.

The next start comes up with all that was durable.
"""

import copy
import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from kvd.catalog.contract import DATA_NAME
from kvd.limits import MIB
from tests.crash.lives import look_once_more, unsound
from tests.crash.model import Model
from tests.crash.node import Node
from tests.crash.nursery import Nursery
from tests.crash.places import budget_of, new_setting
from tests.crash.seam import Kill
from tests.crash.sites import ALL
from tests.crash.tally import Tally
from tests.crash.work import Work

STEPS_MAX, STEPS_AFTER = 300, 5
FIRST_BUDGET = 12 * MIB
# No record names these, and no start goes on with them.
LEFT_OVER = ("segments/00000999", "segments/00001000", "catalog.new", "superblock.new")
KNOWN = {(site, when) for site, whens in ALL for when in whens}


def boundaries(trace: Iterable[str], tally: Tally, chance: random.Random, count: int) -> list[Kill]:
    """Return boundaries of a trace that were not met before, of each kind one, then as they come.

    None more when all were.
    """
    met: dict[tuple[str, str], list[Kill]] = {}
    for line in trace:
        site, when, number = line.split()
        seed, power = chance.randrange(1 << 30), chance.random() < 0.5
        kill = Kill(site, when, int(number), seed, power)
        if (site, when) in KNOWN and kill.point not in tally.points:
            met.setdefault((site, when), []).append(kill)
    rounds: list[Kill] = []
    while len(rounds) < count and any(met.values()):
        some = [kills.pop(chance.randrange(len(kills))) for kills in met.values() if kills]
        chance.shuffle(some)
        rounds += some
    return rounds[:count]


def end_first_starts(
    nursery: Nursery, directory: Path, tally: Tally, chance: random.Random, count: int
) -> Iterator[str]:
    """End a first start at so many boundaries; yield how each was to end."""
    node = Node(nursery, new_setting(directory / "whole", FIRST_BUDGET, 2))
    trace = directory / "trace"
    assert node.start(trace=trace)
    node.close()
    for kill in boundaries(trace.read_text().splitlines(), tally, chance, count):
        where = f"first start, {kill}"
        node = Node(nursery, new_setting(directory / "ended", FIRST_BUDGET, 2))
        node.start(kill)
        node.end()
        tally.met(kill, node.ended_at())
        assert not node.said_badly("damaged"), node.daemon.lines
        code, found = node.check()
        refused = found.get("refused", "")
        assert code == 0 or code == 2 and ("superblock" in refused or "is empty" in refused), (
            kill, code, found,
        )  # fmt: skip
        model = Model(node.drops)
        work = Work(model, kill.seed, fresh=False)
        assert node.start(), (kill, node.daemon.lines)
        for _ in range(STEPS_AFTER):
            work.step(node.client, where)
        node.end()
        look_once_more(node, work, where)
        tally.add(model)
        node.close()
        shutil.rmtree(node.setting.root)
        yield where


def make_mess(node: Node, work: Work) -> None:
    """Have a node of 16 segments end with all that crashes leave."""
    # All that there may be; one more, that is in no record; and one too many, whose file is gone
    # and its record is not (the second, as the one before goes first).
    for segments, kill in (
        (12, Kill("commit", "after", 40)),
        (16, Kill("segments.sync", "before", 3)),
        (12, Kill("segment.unlink", "after", 2)),
    ):
        node.budget_bytes = budget_of(segments)
        work.model.restarted()
        node.start(kill)
        begin = work.done
        while node.lives():
            work.step(node.client, "making a mess")
            assert work.done < begin + STEPS_MAX, (kill, node.daemon.lines)
        node.end()
        assert node.ended_at() == kill.point
    data = node.setting.paths[0]
    orphan, empty, catalog, superblock = (data / name for name in LEFT_OVER)
    shutil.copy(min((data / "segments").iterdir()), orphan)
    empty.touch()
    shutil.copytree(data / "catalog", catalog)
    superblock.write_bytes(b"not finished")
    assert not (work.model.wrong or work.model.lost)
    node.watch.stop()


def copied(left: Node, work: Work, root: Path) -> tuple[Node, Work]:
    """Return another node that ended in the same way, and what was done to it."""
    # All that is in a copy counts as lasting.
    shutil.copytree(left.setting.root, root, ignore=lambda *_: ("run", "unsynced"))
    setting = replace(left.setting, root=root, run=root / "run", paths=(root / "data0",))
    node, its = Node(left.nursery, setting), copy.deepcopy(work)
    its.model.drops = node.drops
    its.model.restarted()
    return node, its


def end_recoveries(
    left: Node, work: Work, directory: Path, tally: Tally, chance: random.Random, count: int
) -> Iterator[str]:
    """End starts on copies of what a node left, at so many boundaries; yield how each was to."""
    trace = directory / "trace"
    node, its = copied(left, work, directory / "whole")
    assert node.start(trace=trace)
    its.look_at_all(node.client, "whole")
    tally.add(its.model)
    node.close()
    for kill in boundaries(trace.read_text().splitlines(), tally, chance, count):
        where = f"recovery, {kill}"
        node, its = copied(left, work, directory / "ended")
        if node.start(kill):
            its.look_at_all(node.client, where)
        node.end()
        tally.met(kill, node.ended_at())
        its.model.restarted()
        assert node.start(), (kill, node.daemon.lines)
        its.look_at_all(node.client, where)
        assert not node.said_badly("damaged"), node.daemon.lines
        tally.add(its.model)
        node.end()
        tally.unsound += unsound(node, where)
        assert node.watch.look() <= node.watch.limit_bytes
        there = [name for name in LEFT_OVER if (node.setting.paths[0] / name).exists()]
        assert not there, (where, there)
        node.close()
        shutil.rmtree(node.setting.root)
        yield where


def end_removals(
    left: Node, work: Work, directory: Path, tally: Tally, chance: random.Random, count: int
) -> Iterator[str]:
    """As `end_recoveries`, on a catalog that is damaged: it is given up with all that it named."""
    catalog = left.setting.paths[0] / "catalog" / DATA_NAME
    catalog.write_bytes(b"\xa5" * catalog.stat().st_size)
    work.model.damaged()
    trace = directory / "trace"
    node, _ = copied(left, work, directory / "whole")
    assert node.start(trace=trace) and node.said_badly("damaged"), node.daemon.lines
    node.close()
    for kill in boundaries(trace.read_text().splitlines(), tally, chance, count):
        where = f"removal, {kill}"
        node, its = copied(left, work, directory / "ended")
        node.start(kill)
        node.end()
        tally.met(kill, node.ended_at())
        assert node.start(), (kill, node.daemon.lines)
        for _ in range(STEPS_AFTER):
            its.step(node.client, where)
        node.end()
        tally.unsound += unsound(node, where)
        its.model.restarted()
        assert node.start(), (kill, node.daemon.lines)
        its.look_at_all(node.client, where)
        assert not node.said_badly("damaged"), node.daemon.lines
        assert node.watch.look() <= node.watch.limit_bytes
        tally.add(its.model)
        node.close()
        shutil.rmtree(node.setting.root)
        yield where

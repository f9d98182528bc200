"""Dram that goes from one daemon to the next, ended at any boundary of leaving or taking it."""

import random
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.crash.lives import look_once_more, unsound
from tests.crash.model import Model
from tests.crash.node import Node
from tests.crash.nursery import Nursery
from tests.crash.places import made_node
from tests.crash.seam import Kill
from tests.crash.sites import KEEPING
from tests.crash.tally import Tally
from tests.crash.work import Work
from tests.e2e.supervising import Supervisor

SEGMENTS, STEPS = 40, 8
TAKING = ("kept.claim", "slab.adopt", "kept.forget")
_COUNTS = {"kept.store": 2, "kept.forget": 2, "slab.adopt": 4}  # Of a life.
# A power cut leaves no dram: these are kills only.
KILLS = [
    Kill(site, when, count)
    for site, whens in KEEPING for when in whens for count in range(1, _COUNTS.get(site, 1) + 1)
]  # fmt: skip


def supervised_node(nursery: Nursery, root: Path) -> Node:
    """Return a node whose dram and sockets are kept over restarts."""
    node = made_node(nursery, root, SEGMENTS)
    node.manager = Supervisor(node.setting.run)
    return node


def end_handovers(
    node: Node, tally: Tally, chance: random.Random, kills: list[Kill]
) -> Iterator[str]:
    """End a daemon at each of these boundaries; yield which."""
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=False)
    for kill in kills:
        where = f"handover, {kill}"
        if kill.site in TAKING:  # There is something to take after an end in order only.
            assert _one_life(node, work, None, where) == 0, node.daemon.lines
        assert _one_life(node, work, kill, where) in (0, -signal.SIGKILL), node.daemon.lines
        tally.met(kill, node.ended_at())
        tally.unsound += unsound(node, where)
        yield where
    look_once_more(node, work, "in the end")
    tally.add(model, work.done)


def _one_life(node: Node, work: Work, kill: Kill | None, where: str) -> int:
    """Start, look at everything, work, and end in order unless a boundary comes before."""
    work.model.restarted()
    if node.start(kill):
        work.look_at_all(node.client, where)
        for _ in range(STEPS):
            work.step(node.client, where)
        node.daemon.send(signal.SIGTERM)
        node.daemon.wait()
    code = node.end()
    node.manager.settle()
    assert not node.said_badly("damaged", "left out"), (where, node.daemon.lines)
    return code

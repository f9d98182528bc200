"""Lives on a file system of its own, whose power is cut when they have ended.

Once they have: a daemon that lived on for a moment would answer that reads fail.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kvd.limits import MIB
from tests.crash.lives import look_once_more, next_kill, one_life, unsound
from tests.crash.model import Model
from tests.crash.mounted import Medium
from tests.crash.node import Node
from tests.crash.nursery import Nursery
from tests.crash.places import made_node
from tests.crash.tally import Tally
from tests.crash.work import Work

MEDIUM_BYTES = 48 * MIB
SEGMENTS = 14


def mounted_node(nursery: Nursery, medium: Medium, run: Path) -> Node:
    """Return a node with all but its sockets on this file system."""
    node = made_node(nursery, medium.directory / "kvd", SEGMENTS, run=run, cut_outside=True)
    node.watch.stop()  # Nothing may look at it while it is mounted anew.
    return node


def cut_power(
    node: Node, medium: Medium, tally: Tally, chance: random.Random, lives: int
) -> Iterator[str]:
    """Have so many lives, each on what the cut before left; yield how each was to end."""
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    for number in range(lives):
        kill = next_kill(tally, 0, chance)
        kill = kill and replace(kill, power=True)
        where = f"life {number} on a medium, {kill or 'at any moment'}"
        one_life(node, work, kill, where)
        tally.met(kill, node.ended_at())
        medium.cut()
        tally.unsound += unsound(node, where)
        yield where
    look_once_more(node, work, "in the end")
    tally.add(model, work.done)

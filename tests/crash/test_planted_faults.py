"""The layer sees what it is there to see: syncs, writes and commits that are only said to be done.

A power cut, or a start, tells. A daemon whose disk lies loses what it acknowledged, or says that
what it finds in its directories is not what it wrote.
"""

import contextlib
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvd.limits import MIB
from tests.crash.cuts import MEDIUM_BYTES, mounted_node
from tests.crash.model import Model
from tests.crash.mounted import medium_or_skip
from tests.crash.node import Node
from tests.crash.nursery import Nursery
from tests.crash.places import new_setting
from tests.crash.seam import Failing, Kill
from tests.crash.work import Work

LIVES_MAX, SOUND_LIVES = 40, 6
STEPS_MAX = 40


@dataclass(frozen=True, slots=True)
class Plant:
    """`site` is left out; a cut of `power` tells, or a kill. `is_new`: from a first start on."""

    site: str
    power: bool
    is_new: bool = False


PLANTED = {
    "strips are not synced": Plant("strips.sync", True),
    "names of segments are not synced": Plant("segments.sync", True),
    "heads are not synced": Plant("head.sync", True),
    "commits are not synced": Plant("commit.sync", True),
    "superblocks are not synced": Plant("superblock.sync", True, is_new=True),
    "names in a data directory are not synced": Plant("root.sync", True, is_new=True),
    "the name of a catalog is not synced": Plant("catalog.sync", True, is_new=True),
    "strips are not written": Plant("strips.write", False),
    "commits are not made": Plant("commit", False),
    "epochs are not raised": Plant("head.raise", False),
}
# Site, when, and how often it is met at least and at most before the end.
ENDS = (
    ("commit", "after", 5, 15),
    ("strips.write", "before", 5, 40),
    ("strips.sync", "before", 3, 30),
)
OF_A_MEDIUM = ("strips are not synced", "commits are not synced")


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_it_is_found(planted, nursery, new_node, quick_directory, chance):
    finder = Finder(nursery, quick_directory, new_node, chance)
    assert finder.finds(PLANTED[planted], LIVES_MAX), planted


@pytest.mark.parametrize("is_new", (False, True))
def test_nothing_is_found_where_nothing_is_planted(
    is_new, nursery, new_node, quick_directory, chance
):
    finder = Finder(nursery, quick_directory, new_node, chance)
    assert not finder.finds(Plant("nothing", True, is_new), SOUND_LIVES)


@pytest.mark.parametrize("planted", (*OF_A_MEDIUM, None))
def test_a_real_power_cut_finds_it(planted, nursery, short_directory, chance):
    plant = PLANTED[planted] if planted else Plant("nothing", True)
    with medium_or_skip(short_directory / "medium", MEDIUM_BYTES) as medium:
        node = mounted_node(nursery, medium, short_directory / "run")
        work = Work(Model(node.drops), chance.randrange(1 << 30), fresh=True)
        lives = LIVES_MAX if planted else SOUND_LIVES
        with contextlib.closing(node):
            found = any(
                is_found_in_a_life(node, work, some_end(plant, chance), plant)
                or medium.cut() or is_wrong_on_disk(node)
                for _ in range(lives)
            )  # fmt: skip
    assert found == bool(planted)


@dataclass(frozen=True, slots=True)
class Finder:
    """Has lives of daemons on disks that lie, each on what the one before left, or on new ones."""

    nursery: Nursery
    directory: Path
    new_node: Callable[..., Node]
    chance: random.Random

    def finds(self, plant: Plant, lives_max: int) -> bool:
        """Return whether something is lost, wrong, or complained of."""
        node = work = None
        for life in range(lives_max):
            if node is None or plant.is_new:
                node = self._node(life, plant)
                work = Work(Model(node.drops), self.chance.randrange(1 << 30), fresh=True)
            if is_found_in_a_life(node, work, some_end(plant, self.chance), plant):
                return True
            if plant.is_new and not comes_up_with_all(node, work):
                return True
        return False

    def _node(self, life: int, plant: Plant) -> Node:
        if not plant.is_new:
            # With two more is under way: a commit tells of heads whose strips are not synced.
            return self.new_node(16, 2)
        # The second has no catalog, whose making would sync its names.
        return Node(self.nursery, new_setting(self.directory / str(life), 12 * MIB, 2))


def some_end(plant: Plant, chance: random.Random) -> Kill:
    site, when, least, most = chance.choice(ENDS)
    return Kill(site, when, chance.randint(least, most), chance.randrange(1 << 30), plant.power)


def is_found_in_a_life(node: Node, work: Work, kill: Kill, plant: Plant) -> bool:
    """Work until the end; return whether something is lost or wrong then."""
    work.model.restarted()
    if node.start(kill, Failing(plant.site, "skip")):
        work.look_at_all(node.client, plant.site)
        begin = work.done
        while node.lives() and work.done < begin + STEPS_MAX:
            work.step(node.client, plant.site)
    if node.end() != -signal.SIGKILL:
        return True  # It did not start, and says why.
    said = node.said_badly("is damaged", "is stale")
    return bool(work.model.lost or work.model.wrong or said or is_wrong_on_disk(node))


def is_wrong_on_disk(node: Node) -> bool:
    _, found = node.check()
    return bool(set(found.get("wrong", ())) & {"segment", "strip", "cell", "row"})


def comes_up_with_all(node: Node, work: Work) -> bool:
    """Return whether the next start, on a disk that does as it says, finds what was durable."""
    work.model.restarted()
    found = node.start()
    if found:
        work.look_at_all(node.client, "afterwards")
    node.close()
    return found and not (work.model.lost or work.model.wrong)

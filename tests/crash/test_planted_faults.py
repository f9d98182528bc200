"""The layer sees what it is there to see: syncs, writes and commits that are only said to be done.

A power cut, or a start, tells. A daemon whose disk lies loses what it acknowledged.
"""

import pytest

from tests.crash.model import Model
from tests.crash.seam import Failing, Kill
from tests.crash.work import Work

LIVES_MAX = 12
STEPS_MAX = 40
PLANTED = {
    "strips are not synced": ("strips.sync", True),
    "names of segments are not synced": ("segments.sync", True),
    "strips are not written": ("strips.write", False),
    "commits are not made": ("commit", False),
}


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_it_is_found(planted, new_node, chance):
    site, power = PLANTED[planted]
    node = new_node(12)
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    for life in range(LIVES_MAX):
        kill = Kill("commit", "after", chance.randint(5, 15), life, power)
        model.restarted()
        assert node.start(kill, Failing(site, "skip"))
        work.look_at_all(node.client, planted)
        begin = work.done
        while node.lives() and work.done < begin + STEPS_MAX:
            work.step(node.client, planted)
        node.end()
        _, found = node.check()
        if model.lost or model.wrong or set(found["wrong"]) & {"segment", "strip", "cell", "row"}:
            return
    raise AssertionError(f"{planted}, and nothing was lost or wrong in {LIVES_MAX} lives")

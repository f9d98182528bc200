"""A hand that hangs: operators are told which, the door answers, and everybody else is served."""

import json
import threading

import pytest

from kvd.cli.admin import main as admin
from kvd.cli.main import main
from kvd.client import Delivery
from tests.crash.model import KEPT, Model
from tests.crash.node import Node
from tests.crash.seam import Failing
from tests.crash.work import Work
from tests.e2e.process import DEADLINE_S
from tests.e2e.ssd_node import until

SEGMENTS = 14


def problems(node: Node, capsys) -> list[str]:
    """Return what `kvd-admin status` finds wrong; its exit code says whether anything is."""
    capsys.readouterr()
    code = admin(["status", "--json", "--directory", str(node.setting.run)])
    found = json.loads(capsys.readouterr().out)["problems"]
    assert code == bool(found)
    return found


def health(node: Node) -> int:
    return main(["health", "--directory", str(node.setting.run)])


@pytest.mark.parametrize("site", ["canary.write", "commit"])
def test_what_hangs_is_a_problem_and_the_rest_goes_on(new_node, chance, capsys, site):
    node = new_node(SEGMENTS)
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    node.setting.limits["write_ns"] = 300_000_000
    assert node.start()
    space = node.client.keyspace(KEPT)
    assert model.put(space, work.invent(KEPT), "disk", DEADLINE_S).durable
    assert problems(node, capsys) == [] and health(node) == 0
    node.tell(None, Failing(site, "hang"))
    putting = threading.Thread(target=model.put, args=(space, work.invent(KEPT), "disk", 1.0))
    putting.start()
    until(lambda: problems(node, capsys), "it is told")
    told = problems(node, capsys)
    assert told[0].startswith("nothing is written to ssd: ")
    if site == "canary.write":
        assert told[1].startswith(f"{node.setting.paths[0]} is degraded")
    assert health(node) == 0, "memory serves"
    assert model.put(space, work.invent(KEPT), "memory", DEADLINE_S).refused == 0
    work.look_at_all(node.client, "while it hangs")
    assert not (model.wrong or model.lost), (model.wrong, model.lost)
    for delivery in Delivery:
        first = model.prompts_put[0]
        with space.fetch(first.chain, delivery=delivery) as fetch:
            list(fetch.arrivals())
            assert fetch.error is None
    putting.join(DEADLINE_S)
    node.tell()
    until(lambda: not problems(node, capsys), "it is well again")

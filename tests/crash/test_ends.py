"""A daemon that is told to end, whatever it is doing: it ends in its time, with 0 and no bug."""

import signal
import threading
import time
from dataclasses import replace

import pytest

from kvd.client import Delivery
from kvd.clock import NS_PER_S
from tests.crash.model import KEPT, Model
from tests.crash.node import LIMITS, Node
from tests.crash.seam import Failing
from tests.crash.work import Work
from tests.e2e.process import DEADLINE_S

SEGMENTS = 14
DRAIN_S, LATE_S = 1, 6.0  # The bound of the end, and what hands and a busy machine may add to it.


@pytest.fixture
def node(new_node) -> Node:
    made = new_node(SEGMENTS)
    made.setting = replace(made.setting, limits={**LIMITS, "drain_ns": DRAIN_S * NS_PER_S})
    assert made.start()
    return made


def assert_ends(node: Node, signals: int = 1) -> None:
    begin = time.monotonic()
    for _ in range(signals):
        node.daemon.send(signal.SIGTERM)
    assert node.daemon.wait() == 0, node.daemon.lines
    assert time.monotonic() - begin < DRAIN_S + LATE_S
    assert not node.said_badly(), node.daemon.lines


@pytest.mark.parametrize("signals", [1, 2])
def test_in_the_middle_of_stores(node, chance, signals):
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    ended, some, broken, done = threading.Event(), threading.Event(), [], []

    space = node.client.keyspace(KEPT)

    def store() -> None:
        while not ended.is_set():
            durability = chance.choice(("memory", "disk"))
            try:
                done.append(model.put(space, work.invent(KEPT), durability, 5.0))
                if len(done) == 5:
                    some.set()
            except Exception as error:  # noqa: BLE001 - whatever it is, the test shall say so.
                broken.append(error)
                return

    storing = threading.Thread(target=store)
    storing.start()
    assert some.wait(DEADLINE_S), broken
    assert_ends(node, signals)
    ended.set()
    storing.join(DEADLINE_S)
    assert not broken and not storing.is_alive()
    node.end()
    code, found = node.check()
    assert code == 0, found
    model.restarted()
    assert node.start()
    work.look_at_all(node.client, "after the end")
    assert not (model.wrong or model.lost), (model.wrong, model.lost)


@pytest.mark.parametrize("site", ["strips.read", "strips.sync"])
def test_while_a_disk_hangs(node, chance, site):
    """What is durable is there afterwards, though the end waited for nobody that hangs."""
    model = Model(node.drops)
    work = Work(model, chance.randrange(1 << 30), fresh=True)
    for _ in range(3):
        assert model.put(node.client.keyspace(KEPT), work.invent(KEPT), "disk", DEADLINE_S).durable
    node.end()
    assert node.start()  # So that all of it is on disk only.
    [first, *_] = model.prompts_put
    space = node.client.keyspace(first.keyspace)
    assert node.tell(None, Failing(site, "hang"))
    fetches = []

    def act() -> None:
        if site == "strips.read":
            fetches.append(space.fetch(first.chain, delivery=Delivery.BYTES, deadline_s=5.0))
            list(fetches[-1].arrivals())
        else:
            model.put(space, work.invent(KEPT), "disk", 2.0)

    acting = threading.Thread(target=act)
    acting.start()
    acting.join(0.3)
    assert acting.is_alive(), "it waits for what hangs"
    assert_ends(node)
    acting.join(DEADLINE_S)
    assert not acting.is_alive()
    node.end()
    model.restarted()
    assert node.start()
    work.look_at_all(node.client, "after the end")
    assert not (model.wrong or model.lost), (model.wrong, model.lost)

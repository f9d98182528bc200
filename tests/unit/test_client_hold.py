"""What a fetch holds goes back once, whatever its readers, its release and its lease do at once."""

import asyncio
import itertools
import threading
from types import SimpleNamespace

import pytest

from kvd.client import Delivery
from kvd.client.arrivals import Arrivals
from kvd.client.hold import Granted, Hold
from kvd.client.mapping import Pool
from kvd.client.opening import Opening
from kvd.client.outcomes import Arrival, Counters, Reason
from kvd.client.reading import Area
from kvd.errors import ErrorKind
from kvd.limits import MIB
from kvd.types import PlaneClass
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import LEASE
from tests.unit.test_client_session import until

DEADLINE_S = 20.0
AREA = Area(0, 1, 0, 1)


class Loop:
    """An I/O thread and a lease, of which is known what they were asked for."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.posted: list = []
        self.given_back = 0
        self.lost = self.moved = False
        self.session = SimpleNamespace(alive=False)

    def post(self, callback, *arguments) -> None:
        self.posted.append((callback, arguments))

    def release(self, corrupt: bytes = b"") -> None:
        self.given_back += 1

    def run(self) -> None:
        for callback, arguments in self.posted:
            callback(*arguments)


def landed(loop: Loop, pool: Pool) -> Hold:
    """Return the hold of a byte delivery that has all arrived."""
    arrivals = Arrivals()
    for plane_class in PlaneClass:
        arrivals.add(Arrival(plane_class, 0, 1))
    strips = SimpleNamespace(corrupt=set(), counts=(1, 1, 1))
    landing = SimpleNamespace(staging=pool.take(MIB), delivered_bytes=0)
    granted = Granted(1, loop, (1, 1, 1), (0, 1), strips, (), landing, None)
    return Hold(SimpleNamespace(link=loop, pool=pool), arrivals, granted, Reason.NONE)


class Turns:
    """A lock behind which other threads have their turn, where the one who had it says so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.after = iter(())

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
        next(self.after, _nothing)()


def _nothing() -> None:
    pass


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("turn", range(3))
def test_a_release_at_any_step_of_a_read_gives_its_memory_back_once(turn, is_lost):
    loop, pool = Loop(), Pool()
    hold = landed(loop, pool)
    hold._lock = turns = Turns()

    def release() -> None:
        turns.after = iter(())
        hold.release()

    def read() -> int:
        if is_lost:
            loop.lost = True
            hold.lose()
        turns.after = itertools.chain(steps[1:], itertools.repeat(_nothing))
        return 1

    steps = [release if at == turn else _nothing for at in range(3)]
    turns.after = iter(steps[:1])
    hold.read(AREA, 3, read)
    hold.release()
    loop.run()
    assert [callback for callback, _ in loop.posted].count(hold._let_go) == 1
    taken = [pool.take(MIB), pool.take(MIB)]
    assert taken[0] is not taken[1]


def test_a_fetch_that_was_given_up_takes_no_lease_when_its_slab_comes_after_all(stage, strips):
    """It would be watched, and the slab be mapped, for as long as the session lasts."""
    session, space = stage.client._link.session(), stage.space
    outcomes: list = []
    wish = space.wish(strips.chain, 3, Delivery.MAP, {})
    opening = Opening(space.scope, wish, outcomes.append)
    thread = space.scope.link.thread()
    thread.post(opening.begin)
    stage.peer.take_keyspace()
    number, _ = stage.peer.take(FrameKind.FETCH, pb.FetchRequest)
    stage.peer.promise(number, strips.promise())
    until(lambda: session.slabs._waiting, "the promise waits for its slab")
    thread.post(opening.orphan)
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == LEASE
    stage.peer.tell(*strips.given())
    until(lambda: not session.slabs._waiting, "the slab has come")
    until(lambda: len(outcomes) == 1 and thread.call(_others()) == 0, "nothing is under way")
    assert outcomes[0].kind == ErrorKind.LATE and session.on_lease_lost == {}


async def _others() -> int:
    """Return how many coroutines wait for slabs."""
    return sum("_await_slabs" in repr(task) for task in asyncio.all_tasks())

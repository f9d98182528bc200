"""Byte deliveries of a tenant share one link, and requests one bucket: on a clock of our own."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import pytest

from kvd.clock import NS_PER_S
from kvd.core.effects import Deliver
from kvd.daemon.delivery import Delivery as RealDelivery
from kvd.daemon.inbox import Place
from kvd.errors import ErrorKind, KvdError
from kvd.limits import KIB, Limits
from kvd.rpc.rate import RequestRate
from kvd.rpc.sharing import SharedPace
from kvd.wire import FrameKind

RATE = 1000  # Bytes in a second.
PIECE = memoryview(bytes(100))
PLACE = Place(0, 0, 0, 0)


@dataclass(eq=False)
class Timer:
    at_ns: int
    action: Callable[[], None]

    def cancel(self) -> None:
        self.action = lambda: None


class World:
    """Time that passes only when it is told to, and the timers that fall due by then."""

    def __init__(self) -> None:
        self.now = 0
        self._timers: list = []

    def now_ns(self) -> int:
        return self.now

    def call_later(self, delay_s: float, action) -> "Timer":
        assert delay_s >= 0
        timer = Timer(self.now + round(delay_s * NS_PER_S), action)
        self._timers.append(timer)
        return timer

    def run(self, seconds: float) -> None:
        end_ns = self.now + int(seconds * NS_PER_S)
        while due := [timer for timer in self._timers if timer.at_ns <= end_ns]:
            first = min(due, key=lambda timer: timer.at_ns)
            self._timers.remove(first)
            self.now = max(self.now, first.at_ns)
            first.action()
        self.now = end_ns


class Delivery:
    """Sends pieces as a delivery does: as many as there is room for, each time it is woken."""

    def __init__(self, pace: SharedPace, log: list, name: str, pieces: int) -> None:
        self.left, self.room = pieces, True
        self._log, self._name = log, name
        self.sink = pace.sink(self, self.pump)

    def has_room(self) -> bool:
        return self.room

    def has_turn(self) -> bool:
        return True

    def send(self, place: Place, data: memoryview) -> None:
        self._log.append(self._name)

    def pump(self) -> None:
        while self.left and self.sink.has_room() and self.sink.has_turn():
            self.sink.send(PLACE, PIECE)
            self.left -= 1


@pytest.fixture
def world():
    return World()


@pytest.fixture
def pace(world):
    return SharedPace(RATE, world.now_ns, world.call_later, 100)


def test_one_delivery_goes_at_the_rate(world, pace):
    log: list = []
    Delivery(pace, log, "a", 100).pump()
    for second in range(1, 8):
        world.run(1)
        # A piece may go once those before it have passed: so the first of all goes at once.
        assert len(log) - 10 * second in (0, 1)


def test_deliveries_take_turns_and_are_no_faster_together(world, pace):
    log: list = []
    for name, pieces in (("a", 50), ("b", 50), ("c", 2)):
        Delivery(pace, log, name, pieces).pump()
    world.run(3)
    assert len(log) in (30, 31)
    assert log.count("c") == 2 and abs(log.count("a") - log.count("b")) <= 1
    assert "aa" not in "".join(log[1:8]).replace("c", ""), log


def test_a_turn_that_is_not_used_goes_to_the_next(world, pace):
    log: list = []
    stuck, other = Delivery(pace, log, "a", 50), Delivery(pace, log, "b", 50)
    stuck.pump()
    other.pump()
    stuck.room = False
    world.run(2)
    assert log.count("b") >= 18
    stuck.room = True
    stuck.pump()
    world.run(2)
    assert log.count("a") >= 8


def test_one_that_has_ended_holds_up_nobody(world, pace):
    log: list = []
    gone, other = Delivery(pace, log, "a", 50), Delivery(pace, log, "b", 50)
    gone.pump()
    other.pump()
    gone.left = 0
    world.run(2)
    assert log.count("b") >= 18


def test_time_without_deliveries_is_not_saved_up(world, pace):
    world.run(1000)
    log: list = []
    Delivery(pace, log, "a", 100).pump()
    world.run(1)
    assert 10 <= len(log) <= 13, "one goes before its time, and one is made up for"


def test_wakes_from_elsewhere_win_nothing(world, pace):
    log: list = []
    one, other = Delivery(pace, log, "a", 50), Delivery(pace, log, "b", 50)
    one.pump()
    other.pump()
    for _ in range(200):
        world.run(0.01)
        one.pump()  # As credits do that come often.
    assert len(log) in (20, 21)
    assert abs(log.count("a") - log.count("b")) <= 1


# ---- deliveries with rates of their own ----

LINK = 10_000_000
LONG = memoryview(bytes(64 * KIB))


class Reader:
    """Takes all pieces; of time a part, where it `naps`: so much of every second."""

    def __init__(self, world, naps=0.0) -> None:
        self.taken, self._world, self._naps = 0, world, naps

    def has_room(self) -> bool:
        return self._world.now % NS_PER_S >= self._naps * NS_PER_S

    def has_turn(self) -> bool:
        return True

    def send(self, place: Place, data: memoryview) -> None:
        self.taken += len(data)


def deliveries(world, monkeypatch, rates, naps):
    """Begin real ones on one link, each with its share of it as `rate_bits` (0: as it comes)."""
    monkeypatch.setattr("kvd.daemon.delivery.asyncio.get_running_loop", lambda: world)
    pace = SharedPace(LINK, world.now_ns, world.call_later, Limits().piece_bytes_max)
    readers = [Reader(world, nap) for nap in naps]
    for number, (rate, reader) in enumerate(zip(rates, readers, strict=True)):
        bits = int(8 * LINK * rate)
        deliver = Deliver(number, number, (1, 0, 0), (), 0, 1, (1,), (1,), bits)
        delivery = RealDelivery(
            deliver, [repeat((PLACE, LONG))], lambda event: None, world, Limits()
        )
        delivery.start(pace.sink(reader, delivery.pump))
        for second in range(40):
            world.call_later(second + reader._naps, delivery.pump)
    return readers


@pytest.mark.parametrize(
    ("rates", "parts"),
    [
        ((0.25, 0), (0.25, 0.75)), ((0, 0.25), (0.75, 0.25)), ((0.2, 0.2, 0), (0.2, 0.2, 0.6)),
        ((0.25, 0.25), (0.25, 0.25)), ((0.8, 0.1), (0.8, 0.1)), ((0.8, 0), (0.5, 0.5)),
        ((0.9, 0.9, 0), (1 / 3, 1 / 3, 1 / 3)), ((0.02, 0, 0), (0.02, 0.49, 0.49)),
    ],
)  # fmt: skip
def test_a_delivery_with_a_rate_gets_it_beside_others(world, monkeypatch, rates, parts):
    readers = deliveries(world, monkeypatch, rates, [0.0] * len(rates))
    world.run(20)
    got = [reader.taken / LINK / 20 for reader in readers]
    assert got == pytest.approx(parts, rel=0.05), got


def test_a_reader_that_naps_wins_nothing_of_its_rate_back(world, monkeypatch):
    readers = deliveries(world, monkeypatch, (0.2, 0), (0.5, 0.0))
    world.run(20)
    got = [reader.taken / LINK / 20 for reader in readers]
    assert got == pytest.approx((0.1, 0.9), rel=0.1), got


# ---- requests ----


def counted(tenant: str) -> None:
    assert tenant == "a"


def admitted(rate: RequestRate, kind: FrameKind, now_ns: int) -> bool:
    try:
        rate.admit(kind, now_ns)
    except KvdError as error:
        assert error.kind == ErrorKind.OVERLOADED and error.retry_after_ms > 0
        assert "tenant a" in error.message and "requests_per_second" in error.message
        return False
    return True


def test_a_second_may_come_at_once_and_no_more():
    rate = RequestRate("a", 10, 0, counted)
    assert sum(admitted(rate, FrameKind.LOOKUP, 0) for _ in range(100)) == 10
    taken = sum(admitted(rate, FrameKind.LOOKUP, ms * 1_000_000) for ms in range(5001))
    assert taken == 50


def test_what_it_says_to_wait_is_enough():
    rate = RequestRate("a", 3, 0, counted)
    assert all(admitted(rate, FrameKind.LOOKUP, 0) for _ in range(3))
    with pytest.raises(KvdError) as refused:
        rate.admit(FrameKind.LOOKUP, 0)
    rate.admit(FrameKind.LOOKUP, refused.value.retry_after_ms * 1_000_000)


def test_who_is_stopped_can_still_let_go():
    rate = RequestRate("a", 5, 0, counted)
    assert sum(admitted(rate, FrameKind.LOOKUP, 0) for _ in range(9)) == 5
    ends = [FrameKind.RELEASE, FrameKind.ABORT] * 10
    assert sum(admitted(rate, kind, 0) for kind in ends) == 5
    assert not admitted(rate, FrameKind.LOOKUP, NS_PER_S), "what was overdrawn is paid first"
    assert admitted(rate, FrameKind.LOOKUP, 2 * NS_PER_S)


def test_a_rate_below_one_still_lets_one_in():
    rate = RequestRate("a", 0.5, 0, counted)
    assert admitted(rate, FrameKind.LOOKUP, 0) and not admitted(rate, FrameKind.LOOKUP, NS_PER_S)
    assert admitted(rate, FrameKind.LOOKUP, 2 * NS_PER_S)

"""Gates: a layer is passed with the chunks it has, never with fewer than assumed."""

import threading

import pytest

from kvd.clock import NS_PER_S, MonotonicClock
from kvd.speculate.gate import Gate, Unready

CLOCK = MonotonicClock()


def gate(layers: int = 2, seconds: float = 60) -> Gate:
    return Gate(layers, CLOCK, CLOCK.now_ns() + int(seconds * NS_PER_S))


def test_a_forward_waits_for_the_layer() -> None:
    opened = gate()
    passed = threading.Event()

    def forward() -> None:
        opened.waiter(3)(0)
        passed.set()

    thread = threading.Thread(target=forward)
    thread.start()
    assert not passed.is_set()
    opened.open(0, 3)
    thread.join(60)
    assert passed.is_set() and not opened.complete()


def test_fewer_good_chunks_than_assumed_are_told() -> None:
    opened = gate()
    opened.open(0, 2)
    opened.open(1, 5)
    assert opened.complete()
    with pytest.raises(Unready) as caught:
        opened.wait(0, 5)
    assert caught.value.chunks == 2
    opened.wait(1, 5)


def test_a_closed_gate_lets_nobody_wait() -> None:
    closed = gate()
    closed.open(0, 4)
    closed.close()
    closed.wait(0, 4)
    with pytest.raises(Unready) as caught:
        closed.wait(1, 1)
    assert caught.value.chunks == 0


def test_waiting_ends_with_the_deadline() -> None:
    late = gate(seconds=0)
    with pytest.raises(Unready):
        late.wait(0, 1)

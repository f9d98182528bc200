"""Coroutines cancelled while a thread works for them: the caller's memory is left alone first."""

import asyncio
import threading

import numpy as np
import pytest

from kvd.client import AsyncFetch, AsyncSpace, Stored
from kvd.client.outcomes import Reason

DEADLINE_S = 20.0
DONE = Stored(1, 0, 0, Reason.NONE, 1)


class Slow:
    """A fetch and a space whose work goes on until it is let go; both touch what they are given."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.memory = np.zeros(1, np.uint8)

    def decode(self, *how: object) -> int:
        self.work()
        self.memory[0] = 1
        return 5

    def put(self, *how: object) -> Stored:
        self.work()
        self.seen = int(self.memory[0])
        return DONE

    def work(self) -> None:
        self.begun.set()
        assert self.go_on.wait(DEADLINE_S)


@pytest.fixture
def slow():
    made = Slow()
    yield made
    made.go_on.set()


@pytest.mark.parametrize("verb", ["decode", "put"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_one_ends_when_the_memory_is_left_alone(slow, verb, times):
    fetch, space = AsyncFetch(slow), AsyncSpace(slow, None)

    async def story() -> None:
        acts = {
            "decode": lambda: fetch.decode((0, 1), 8, []),
            "put": lambda: space.put(b"", []),
        }
        task = asyncio.ensure_future(acts[verb]())
        await asyncio.to_thread(slow.begun.wait, DEADLINE_S)
        for _ in range(times):
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
        assert not task.done(), "its thread has the caller's memory"
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        slow.memory[0] = 2  # The engine's next request has it from here on.
        await asyncio.sleep(0)
        assert slow.memory[0] == 2
        assert verb == "decode" or slow.seen == 0

    asyncio.run(story())


def test_one_that_nobody_cancels_has_its_answer(slow):
    slow.go_on.set()

    async def story() -> None:
        assert await AsyncFetch(slow).decode((0, 1), 8, []) == 5
        assert await AsyncSpace(slow, None).put(b"", []) == DONE

    asyncio.run(story())


def test_what_a_thread_raises_is_raised(slow):
    def broken(*how: object) -> int:
        raise ValueError("no such layers")

    slow.decode = broken

    async def story() -> None:
        with pytest.raises(ValueError, match="no such layers"):
            await AsyncFetch(slow).decode((0, 1), 8, [])

    asyncio.run(story())

"""How late the loop is: a timer that says when it was called, and when it should have been."""

import asyncio

from kvd.clock import NS_PER_MS, NS_PER_S, Clock
from kvd.observe.histogram import Histogram

EVERY_NS = 50 * NS_PER_MS


class LoopLag:
    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self._timer: asyncio.TimerHandle | None = None

    def start(self, histogram: Histogram) -> None:
        """Tell the histogram, every 50 ms from now on."""
        due_ns = self._clock.now_ns() + EVERY_NS

        def look() -> None:
            histogram.observe(max(0, self._clock.now_ns() - due_ns))
            self.start(histogram)

        self._timer = self._loop.call_later(EVERY_NS / NS_PER_S, look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

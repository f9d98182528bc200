"""Time as an argument: the only room that reads the machine's clock."""

import time
from typing import Protocol

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class Clock(Protocol):
    def now_ns(self) -> int:
        """Return monotonic nanoseconds; the zero is arbitrary."""
        ...


class MonotonicClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()

"""Time as an argument: the only room that reads the machine's clock."""

import time
from typing import Protocol

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def days_since_1970() -> int:
    """Return the day of the clock on the wall, which may be set back or forth."""
    return time.time_ns() // (86_400 * NS_PER_S)


def seconds_since_1970() -> float:
    """Return what the clock on the wall says."""
    return time.time_ns() / NS_PER_S


class Clock(Protocol):
    def now_ns(self) -> int:
        """Return monotonic nanoseconds; the zero is arbitrary."""
        ...


class MonotonicClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()

"""A histogram of durations: a few numbers, used on the loop's thread only, so without a lock."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from kvd.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram held at one moment; `buckets` are cumulative, bounds in seconds."""

    buckets: tuple[tuple[float, int], ...]
    sum: float

    @property
    def count(self) -> int:
        return self.buckets[-1][1]


class Histogram:
    """Durations in nanoseconds, told in seconds."""

    __slots__ = ("_bounds_ns", "_counts", "_sum_ns")

    def __init__(self, bounds_ns: tuple[int, ...]) -> None:
        assert list(bounds_ns) == sorted(set(bounds_ns))
        self._bounds_ns = bounds_ns
        self._counts = [0] * (len(bounds_ns) + 1)
        self._sum_ns = 0

    def observe(self, duration_ns: int) -> None:
        self._counts[bisect_left(self._bounds_ns, duration_ns)] += 1
        self._sum_ns += duration_ns

    def read(self) -> Distribution:
        bounds = (*(bound / NS_PER_S for bound in self._bounds_ns), inf)
        buckets = tuple(zip(bounds, accumulate(self._counts), strict=True))
        return Distribution(buckets, self._sum_ns / NS_PER_S)

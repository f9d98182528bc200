"""A token bucket, in numbers: so many a second, and one second's worth at once."""

from kvd.clock import NS_PER_S


class Bucket:
    """Kept in billionths of one, so that nothing is lost however often it is asked."""

    def __init__(self, per_second: float, burst: float, now_ns: int) -> None:
        assert per_second > 0 and burst >= 1, (per_second, burst)
        self._per_second, self._full = per_second, int(burst * NS_PER_S)
        self._level, self._then_ns = self._full, now_ns

    def take(self, now_ns: int, *, overdraw: bool = False) -> int:
        """Take one and return 0, or return the nanoseconds until there is one.

        With `overdraw` there may be as many below nothing as fit: what was begun can be ended.
        """
        self._fill(now_ns)
        floor = -self._full if overdraw else 0
        missing = floor + NS_PER_S - self._level
        if missing > 0:
            return max(1, int(missing / self._per_second))
        self._level -= NS_PER_S
        return 0

    def _fill(self, now_ns: int) -> None:
        passed_ns, self._then_ns = now_ns - self._then_ns, now_ns
        self._level = min(self._full, self._level + int(passed_ns * self._per_second))

"""The schedule of a link of limited speed. Knows numbers only."""

from kvd.clock import NS_PER_S


class Pace:
    """When a piece may go: no earlier than a link of `rate_bits` would have carried its last byte.

    The schedule is absolute, so a late timer costs nothing in the long run. Time in which the
    reader could take nothing is not made up for, as a link could not either.
    """

    def __init__(self, rate_bits: int, now_ns: int, behind_bytes_max: int) -> None:
        assert rate_bits >= 0, rate_bits
        self._rate_bits = rate_bits
        self._origin_ns, self._sent_bits = now_ns, 0
        self._behind_ns_max = self._span_ns(behind_bytes_max * 8)

    def due_ns(self, size_bytes: int) -> int:
        """Return when the next `size_bytes` may be sent; any past time means now."""
        return self._origin_ns + self._span_ns(self._sent_bits + size_bytes * 8)

    def sent(self, size_bytes: int, now_ns: int) -> None:
        self._sent_bits += size_bytes * 8
        if now_ns - self.due_ns(0) > self._behind_ns_max:
            self._restart(now_ns - self._behind_ns_max)

    def resume(self, now_ns: int) -> None:
        """Begin anew after a stall that was the reader's."""
        if now_ns > self.due_ns(0):
            self._restart(now_ns)

    def _restart(self, origin_ns: int) -> None:
        self._origin_ns, self._sent_bits = origin_ns, 0

    def _span_ns(self, bits: int) -> int:
        return bits * NS_PER_S // self._rate_bits if self._rate_bits else 0

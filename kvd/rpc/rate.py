"""How many requests of a tenant are taken in a second, over all its sessions and doors."""

from collections.abc import Callable

from kvd.clock import NS_PER_MS
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.bucket import Bucket
from kvd.wire import FrameKind

_BEGINNINGS = (
    FrameKind.REGISTER_KEYSPACE, FrameKind.RESERVE, FrameKind.LOOKUP, FrameKind.FETCH,
    FrameKind.PREFETCH, FrameKind.CLEAR,
)  # fmt: skip


class RequestRate:
    """A second's worth may come at once. All are counted; what goes on with something, or gives it
    back, is taken for one more second's worth, so that who is stopped can still let go."""

    def __init__(
        self, tenant: str, per_second: float, now_ns: int, count: Callable[[str], None]
    ) -> None:
        """`count` is told the tenant of every request that is refused."""
        self._tenant, self._per_second, self._count = tenant, per_second, count
        self._bucket = Bucket(per_second, max(1.0, per_second), now_ns)

    def admit(self, kind: FrameKind, now_ns: int) -> None:
        """Raise OVERLOADED for one too many, saying when there is room for it."""
        wait_ns = self._bucket.take(now_ns, overdraw=kind not in _BEGINNINGS)
        if wait_ns:
            self._count(self._tenant)
            raise KvdError(
                ErrorKind.OVERLOADED,
                f"tenant {self._tenant} is at {self._per_second:g} requests_per_second",
                retry_after_ms=max(1, -(-wait_ns // NS_PER_MS)),
            )

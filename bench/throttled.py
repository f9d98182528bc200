"""`kvd serve` on a disk that is made slow: bytes a second are bounded, apart for each direction.

`python -m bench.throttled READ_BYTES WRITE_BYTES serve ...`; as control groups bound a device.
"""

import sys
import threading
import time

from kvd.disk.files import OsFiles, Spans

_AT_ONCE_SECONDS = 0.005  # What may be taken in advance, so that small steps do not add up.


class Bound:
    """Lets so many bytes a second pass, whoever brings them, in the order they come."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate, self._free_at, self._lock = bytes_per_second, 0.0, threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Wait until the bytes may pass."""
        with self._lock:
            now = time.monotonic()
            begin = max(now - _AT_ONCE_SECONDS, self._free_at)
            self._free_at = begin + size_bytes / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


def throttle(read_rate: float, write_rate: float) -> None:
    """Bound all transfers of this process's data directories, in bytes a second."""
    reads, writes = Bound(read_rate), Bound(write_rate)
    preadv, pwritev = OsFiles.preadv, OsFiles.pwritev

    def read(self: OsFiles, descriptor: int, spans: Spans, offset: int) -> int:
        reads.take(sum(size for _, size in spans))
        return preadv(self, descriptor, spans, offset)

    def write(self: OsFiles, descriptor: int, spans: Spans, offset: int) -> int:
        writes.take(sum(size for _, size in spans))
        return pwritev(self, descriptor, spans, offset)

    OsFiles.preadv, OsFiles.pwritev = read, write  # type: ignore[method-assign]


if __name__ == "__main__":
    from kvd.cli.main import main

    throttle(float(sys.argv[1]), float(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))

"""One line of log for each denied attempt; a flood of them costs a few lines and a number."""

import logging
from collections.abc import Callable

from kvd.rpc.bucket import Bucket

LINES_PER_SECOND = 0.2
LINES_AT_ONCE = 10

_log = logging.getLogger("kvd.audit")


class Audit:
    def __init__(self, now_ns: Callable[[], int], count: Callable[[str], None]) -> None:
        """`count` is told of every attempt, also of those that get no line."""
        self._now_ns, self._count = now_ns, count
        self._bucket = Bucket(LINES_PER_SECOND, LINES_AT_ONCE, now_ns())
        self._unsaid = 0

    def denied(self, what: str, peer: str, why: str) -> None:
        """Note that somebody was turned away; no credential itself is ever in `why`."""
        self._count(what)
        if self._bucket.take(self._now_ns()):
            self._unsaid += 1
            return
        more = f"; {self._unsaid} more since the last such line" if self._unsaid else ""
        self._unsaid = 0
        _log.warning("denied %s from %s: %s%s", what, peer, _plain(why), more)


def _plain(text: str) -> str:
    """Return text of one line: parts of it come from whoever asked."""
    return "".join(c if c.isprintable() else "?" for c in text)

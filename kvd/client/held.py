"""Leases that lookups were granted and that a fetch may take over. For any thread.

The caller holds numbers of this table, not the daemon's: those mean something else after a
reconnect.
"""

import itertools
import threading

from kvd.client.session import Session

_HELD_MAX = 4096  # Numbers that nobody came back for; their leases ended long ago.


class HeldLeases:
    def __init__(self) -> None:
        self._held: dict[int, tuple[Session, int]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """In the child: the leases are the parent's."""
        self._held, self._lock = {}, threading.Lock()

    def hold(self, session: Session, lease: int) -> int:
        """Keep a lease; return the caller's number of it, 0 for no lease."""
        if lease == 0:
            return 0
        number = next(self._numbers)
        with self._lock:
            self._held[number] = session, lease
            while len(self._held) > _HELD_MAX:
                del self._held[next(iter(self._held))]
        return number

    def take(self, number: int, session: Session) -> int:
        """Return the daemon's number of a lease, which is not held any more; 0 if it is gone."""
        with self._lock:
            its_session, lease = self._held.pop(number, (None, 0))
        return lease if its_session is session else 0

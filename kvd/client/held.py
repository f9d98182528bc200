"""Leases that lookups were granted and that a fetch may take over. On the I/O thread.

The caller holds numbers of this table, not the daemon's: those mean something else after a
reconnect.
"""

import itertools

from kvd.client.session import Session

_HELD_MAX = 4096  # Numbers that nobody came back for; their leases ended long ago.


class HeldLeases:
    def __init__(self) -> None:
        self._held: dict[int, tuple[Session, int]] = {}
        self._numbers = itertools.count(1)

    def hold(self, session: Session, lease: int) -> int:
        """Keep a lease; return the caller's number of it, 0 for no lease."""
        if lease == 0:
            return 0
        while len(self._held) >= _HELD_MAX:
            del self._held[next(iter(self._held))]
        number = next(self._numbers)
        self._held[number] = session, lease
        return number

    def take(self, number: int, session: Session) -> int:
        """Return the daemon's number of a lease, which is not held any more; 0 if it is gone."""
        its_session, lease = self._held.pop(number, (None, 0))
        return lease if its_session is session else 0

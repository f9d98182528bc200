"""Which slabs were lent to which session for writing, and whether anybody has them still.

A process may be gone, and a child that it forked be there, or one that it sent the descriptor: what
they have mapped is offered to no other writer (I4). The kernel knows; no client is asked.
"""

import contextlib
from collections import deque
from collections.abc import Iterator

from kvd.arena.contract import Lender
from kvd.core.events import ProcessGone


class Lending:
    """Used on the loop's thread."""

    def __init__(self, arena: Lender) -> None:
        self._arena = arena
        self._loans: dict[int, dict[int, deque[int]]] = {}  # Of each session, by slab.
        self._written: dict[int, frozenset[int]] = {}  # As told of processes that are gone.

    @contextlib.contextmanager
    def lend(self, session: int, slab: int) -> Iterator[int]:
        """Yield a descriptor for a session that is to write; raise OSError."""
        with self._arena.lend_slab(slab) as (descriptor, loan):
            loans = self._loans.setdefault(session, {}).setdefault(slab, deque())
            self._forget_ended(slab, loans)
            loans.append(loan)
            yield descriptor

    def forget(self, slab: int) -> None:
        """Forget a slab that is destroyed."""
        for loans in self._loans.values():
            loans.pop(slab, None)

    def end(self, session: int) -> ProcessGone:
        """Return what is to be told of a session whose process is gone."""
        written = self._still_written(session)
        if written:
            self._written[session] = written
        else:
            self._written.pop(session, None)
            self._loans.pop(session, None)
        return ProcessGone(session, written)

    def look(self) -> list[ProcessGone]:
        """Return what has changed of processes that are gone."""
        changed = [s for s, told in self._written.items() if self._still_written(s) != told]
        return [self.end(session) for session in changed]

    def _forget_ended(self, slab: int, loans: deque[int]) -> None:
        """Look at two loans for each that is added: about as many are known as last.

        A session may take a slab and give it up for as long as it lives; asking about all each time
        would be dear for one that keeps what it was lent.
        """
        for _ in range(min(2, len(loans))):
            loan = loans.popleft()
            if self._arena.is_lent(slab, loan):
                loans.append(loan)

    def _still_written(self, session: int) -> frozenset[int]:
        of_session = self._loans.get(session, {})
        is_lent = self._arena.is_lent
        return frozenset(s for s, loans in of_session.items() if any(is_lent(s, n) for n in loans))

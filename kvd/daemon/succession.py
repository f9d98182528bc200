"""Dram over a restart: taken over from the daemon before, left to the one behind."""

from collections.abc import Callable

from kvd.arena.slabs import MemfdArena
from kvd.core.events import Adopted, DrainEnded, Event
from kvd.core.handover import leave_dram
from kvd.core.state import State
from kvd.core.transitions import SlabState
from kvd.daemon.adopting import Kept, check_strips, take_over
from kvd.daemon.handover import INDEX_NAME, SLABS_NAME, Whose
from kvd.daemon.keeping import keep_dram
from kvd.daemon.notify import Notifier


class Succession:
    """Used on the loop's thread; reads the state, and changes it by events only."""

    def __init__(self, state: State, arena: MemfdArena, post: Callable[[Event], None]) -> None:
        self._state, self._arena, self._post = state, arena, post
        self.is_left = False  # From then on the state stays as it is.

    async def take_over(self, kept: Kept, whose: Whose, notifier: Notifier) -> int:
        """Adopt what was kept, after recovery and before the start; return the count of chunks.

        What the store holds is forgotten there: it is this daemon's now, or nobody's.
        """
        if not kept:
            return 0
        left = take_over(kept, whose, self._state.config.slab_bytes, self._arena)
        notifier.forget(INDEX_NAME)
        notifier.forget(SLABS_NAME)
        if left is None:
            return 0

        def tell(checked: int, count: int) -> None:
            notifier.status(f"checking what dram holds: {checked} of {count} strips")

        left = await check_strips(left, self._arena, tell)
        self._post(Adopted(left))
        return int(left.rows.slabs.any(axis=1).sum())

    def leave(self, whose: Whose, notifier: Notifier) -> bool:
        """Tell whoever still reads, and have the manager keep dram; the sessions have ended."""
        self._post(DrainEnded())
        self.is_left = True
        return keep_dram(leave_dram(self._state), whose, self._arena, notifier)

    def progress(self) -> tuple[int, int]:
        """Return how many slabs there are, and how many there will be."""
        slabs = self._state.slabs.values()
        made = sum(slab.state != SlabState.TOUCHING for slab in slabs)
        return made, self._state.config.slab_count

"""What every arena promises: slabs of memory by number, and one control page for each session.

An arena carries out; it never chooses which slab, nor who gets it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from kvd.errors import Fault

# Called once for each created slab, from any thread: with None when its bytes are capacity, with a
# fault when it could not be had and does not exist. Not called for a slab destroyed before; must
# not call the arena.
Report = Callable[[int, Fault | None], None]


class ControlPage(Protocol):
    """One page that the daemon writes and one session reads; it lives as long as it is held."""

    def revoke(self, counter: int) -> None:
        """Store the revoke counter; readers see the old or the new one, never a mixture."""
        ...


class Lender(Protocol):
    def lend_slab(self, slab: int) -> AbstractContextManager[tuple[int, int]]:
        """Yield a descriptor to be sent to who is to write, and the loan's number; raise OSError.

        The descriptor is closed behind it. There is one also when all others are in use.
        """
        ...

    def is_lent(self, slab: int, loan: int) -> bool:
        """Return whether any process, a child that was forked too, has it open or mapped still."""
        ...


class Arena(Lender, Protocol):
    def create_slab(self, slab: int, size_bytes: int) -> None:
        """Make and touch a slab in the background; the result is reported, never raised."""
        ...

    def destroy_slab(self, slab: int) -> None:
        """Forget a slab; views of it and mappings in other processes stay valid."""
        ...

    def let_go(self, mappings: list[np.ndarray]) -> None:
        """Empty the list in the background, which unmaps what nothing else refers to."""
        ...

    def slab_descriptor(self, slab: int, *, writable: bool) -> int:
        """Return a descriptor that stays the arena's own, open until the slab is destroyed.

        Raise KeyError without such a slab.

        Through a writable one the daemon itself writes; who else does is lent one. The one for
        reading cannot be made writable by a receiver under another uid.
        """
        ...

    def view_slab(self, slab: int) -> memoryview:
        """Return all bytes of a reported slab, read-only; the view outlives the slab."""
        ...

    def create_page(self, epoch: int) -> tuple[ControlPage, int]:
        """Return a control page, its revoke counter zero, and the caller's descriptor of it.

        Nobody can write through the descriptor. Raise OSError when there is none to be had.
        """
        ...

    def close(self) -> None:
        """Stop the background work within a second and let go of everything."""
        ...

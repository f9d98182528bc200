"""Bugs planted in what a restart keeps, each found by the world, by the message it names."""

import numpy as np

from kvd.core import handover, sessions
from kvd.core.dram import LeftSlab
from kvd.core.transitions import SlabState
from kvd.testing import lives, succession
from tests.simulation.planted import Patch, Plant


def readers_that_are_not_told(patch: Patch) -> None:
    patch.setattr(sessions, "on_drain_ended", lambda state, event: [])


def slabs_of_living_writers_thought_idle(patch: Patch) -> None:
    def left(slab):
        if slab.state == SlabState.TOUCHING:
            return None
        return LeftSlab(slab.id, slab.tenant, False)

    patch.setattr(handover, "_left", left)


def condemned_chunks_left(patch: Patch) -> None:
    real = handover._readable

    def readable(state, kept):
        condemned = state.index.condemned
        state.index.condemned = np.zeros_like(condemned)
        found = real(state, kept)
        state.index.condemned = condemned
        return found

    patch.setattr(handover, "_readable", readable)


def always_handed_over(patch: Patch) -> None:
    patch.setattr(lives, "RESTARTS_UNTIERED", (2,))
    patch.setattr(succession, "HANDED_OVER", 1.0)


PLANTS = tuple(
    Plant(plant, pattern, tiered=False, setting=always_handed_over)
    for plant, pattern in (
        (readers_that_are_not_told, "I2: session .* behind a restart"),
        (slabs_of_living_writers_thought_idle, "never written memory|there is another's"),
        (condemned_chunks_left, "was (reported corrupt|cleared) and is offered"),
    )
)

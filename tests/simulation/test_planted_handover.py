"""Bugs planted in what a restart keeps, each found by the world, by the message it names."""

from collections.abc import Callable

import numpy as np
import pytest

from kvd.core import handover, sessions
from kvd.core.dram import LeftSlab
from kvd.core.transitions import SlabState
from tests.simulation.planted import assert_found

SEEDS = 60
Patch = pytest.MonkeyPatch


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


def strips_left_while_they_are_read(patch: Patch) -> None:
    real = handover._readable

    def readable(state, kept):
        in_flight = state.index.in_flight
        state.index.in_flight = np.zeros_like(in_flight)
        everything = np.array([*state.slabs], np.uint32)
        found = real(state, everything)
        state.index.in_flight = in_flight
        return found

    patch.setattr(handover, "_readable", readable)
    patch.setattr(handover, "_left", lambda slab: LeftSlab(slab.id, slab.tenant, False))


PLANTS: dict[Callable[[Patch], None], tuple[str, bool]] = {
    readers_that_are_not_told: ("I2: session .* behind a restart", False),
    slabs_of_living_writers_thought_idle: ("never written memory", False),
    condemned_chunks_left: ("reported corrupt and is offered", False),
    strips_left_while_they_are_read: ("is left, and there is another's", True),
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    pattern, tiered = PLANTS[plant]
    assert_found(pattern, SEEDS, tiered=tiered)

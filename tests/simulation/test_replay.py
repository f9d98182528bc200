"""What worlds told their cores, told again to fresh ones: the same comes of every event (I12)."""

import pytest

from kvd.core.events import SessionOpened
from kvd.core.state import State, new_state
from kvd.testing import world
from kvd.testing.simulation import run
from kvd.testing.trace import Trace, digest_of, index_digest


@pytest.fixture
def lives(monkeypatch) -> list[tuple[Trace, State]]:
    """Return the traces of all cores that worlds begin from here on, with their states."""
    made: list[tuple[Trace, State]] = []

    def begin(config, epoch):
        made.append((Trace(config, epoch), new_state(config, epoch)))
        return made[-1][1]

    monkeypatch.setattr(world, "new_state", begin)
    monkeypatch.setattr(world, "step", lambda *told: made[-1][0].step(*told))
    return made


@pytest.mark.parametrize("seed", [3, 14, 30])
def test_every_life_of_a_world_can_be_lived_again(lives, seed):
    run(seed)
    assert sum(len(trace.events) for trace, _ in lives) > 500
    for trace, state in lives:
        again = trace.replay()
        assert index_digest(again.index) == index_digest(state.index)
        assert digest_of(again.counts) == digest_of(state.counts)
        assert (again.generation, again.lease_id) == (state.generation, state.lease_id)


def test_what_is_left_out_is_noticed(lives):
    run(3)
    trace = max((trace for trace, _ in lives), key=lambda trace: len(trace.events))
    at = next(n for n, (event, _) in enumerate(trace.events) if isinstance(event, SessionOpened))
    del trace.events[at], trace.effects[at]
    with pytest.raises(AssertionError, match="event"):
        trace.replay()

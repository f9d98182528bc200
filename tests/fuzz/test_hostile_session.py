"""Whatever a client's messages hold, the daemon answers: no message is a bug of the core."""

from functools import cache

import pytest

from kvd.core.invariants import check
from kvd.errors import ErrorKind
from kvd.rpc.wishes import WISHES
from kvd.wire import FrameKind
from tests.fuzz.hostile import Hostile

MESSAGES = 600
SEEDS = range(12)


@cache
def said(seed: int) -> Hostile:
    """Return a session that has said its messages."""
    hostile = Hostile(seed)
    kinds = list(WISHES)
    hostile.say(FrameKind.REGISTER_KEYSPACE, hostile.decent(FrameKind.REGISTER_KEYSPACE))
    for _ in range(MESSAGES):
        kind = hostile.rng.choice(kinds)
        hostile.say(kind, hostile.message(kind))
        hostile.disturb()
    return hostile


@pytest.mark.parametrize("seed", SEEDS)
def test_any_message_is_answered(seed):
    hostile = said(seed)
    check(hostile.state)
    assert {ErrorKind.INVALID, ErrorKind.LOST} <= set(hostile.answers)
    expected = {"Reserved", "Sealed", "Found", "FetchDone", "KeyspaceGranted", "Cleared"}
    assert expected <= set(hostile.granted), hostile.granted


def test_all_that_can_be_granted_was():
    granted = {name for seed in SEEDS for name in said(seed).granted}
    assert {"Released", "Renewed", "Aborted"} <= granted

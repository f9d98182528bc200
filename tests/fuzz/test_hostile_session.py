"""Whatever a client's messages hold, the daemon answers: no message is a bug of the core."""

import pytest

from kvd.core.invariants import check
from kvd.errors import ErrorKind
from kvd.rpc.wishes import WISHES
from kvd.wire import FrameKind
from tests.fuzz.hostile import Hostile

MESSAGES = 600


@pytest.mark.parametrize("seed", range(12))
def test_any_message_is_answered(seed):
    hostile = Hostile(seed)
    kinds = list(WISHES)
    hostile.say(FrameKind.REGISTER_KEYSPACE, hostile.decent(FrameKind.REGISTER_KEYSPACE))
    for _ in range(MESSAGES):
        kind = hostile.rng.choice(kinds)
        hostile.say(kind, hostile.message(kind))
        hostile.disturb()
    check(hostile.state)
    assert {ErrorKind.INVALID, ErrorKind.LOST} <= set(hostile.answers)
    expected = {"Reserved", "Sealed", "Found", "FetchDone", "Released", "KeyspaceGranted"}
    assert expected <= set(hostile.granted), hostile.granted

"""What would store or report wrong bytes by a caller's own mistake is INVALID, and nothing is."""

from dataclasses import replace

import pytest

from kvd.client import KvdError
from kvd.codec import PROFILE_DEFAULT, CodecProfile, Grouping, RoleCode
from kvd.errors import ErrorKind
from tests.unit.client_peer import (
    KEYSPACE,
    Stage,
    Strips,
)

COUNT = 3


@pytest.fixture
def stage():
    made = Stage()
    yield made
    made.close()


@pytest.fixture
def strips():
    made = Strips(COUNT)
    yield made
    made.close()


def refused(call, *arguments, **named) -> str:
    """Return the one line that a call is refused with as INVALID."""
    with pytest.raises(KvdError) as raised:
        call(*arguments, **named)
    assert raised.value.kind == ErrorKind.INVALID
    assert "\n" not in raised.value.message
    return raised.value.message


# ---- codec profiles ----


@pytest.mark.parametrize(
    "profile",
    [
        replace(PROFILE_DEFAULT, k=RoleCode(Grouping.PER_TOKEN)),
        replace(PROFILE_DEFAULT, sinks=0),
        CodecProfile(id=4711),
    ],
)
def test_a_profile_that_no_reader_decodes_by_is_refused(stage, profile):
    message = refused(stage.client.keyspace, KEYSPACE, profile=profile)
    assert f"codec profile {profile.id}" in message


def test_a_profile_that_says_the_same_is_the_same(stage):
    assert stage.client.keyspace(KEYSPACE, profile=CodecProfile(id=1)).grid == stage.space.grid

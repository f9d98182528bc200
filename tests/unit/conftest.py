"""Fixtures of the SDK's tests: a client before a scripted daemon, and strips to store."""

import pytest


@pytest.fixture
def stage():
    from tests.unit.client_peer import Stage

    made = Stage()
    yield made
    made.close()


@pytest.fixture
def strips():
    from tests.unit.client_peer import CHUNKS, Strips

    made = Strips(CHUNKS)
    yield made
    made.close()

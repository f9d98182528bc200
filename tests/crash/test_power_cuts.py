"""Power cuts for real, on an ext4 in a file; skipped where none can be mounted."""

import os

import pytest

from tests.crash.cuts import MEDIUM_BYTES, cut_power, mounted_node
from tests.crash.mounted import medium_or_skip

LIVES = 20


@pytest.fixture
def here(short_directory):
    with medium_or_skip(short_directory / "medium", MEDIUM_BYTES) as made:
        yield made


def test_what_was_not_synced_is_gone(here):
    for name in ("synced", "not synced"):
        with open(here.directory / name, "wb") as file:
            file.write(b"bytes")
            file.flush()
            if name == "synced":
                os.fsync(file.fileno())
    here.cut()
    assert (here.directory / "synced").read_bytes() == b"bytes"
    assert not (here.directory / "not synced").exists()


def test_what_is_durable_survives(here, nursery, short_directory, chance, request, tally):
    lives, begin = request.config.getoption("points") or LIVES, tally.faults
    node = mounted_node(nursery, here, short_directory / "run")
    try:
        for _ in cut_power(node, here, tally, chance, lives):
            pass
    finally:
        node.close()
    assert tally.faults == begin

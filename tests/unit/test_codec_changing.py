"""Memory that changes while it is coded: it ends, touches nothing else, makes a cell or refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvd.codec import available


def run_apart(what: str, backend: str) -> None:
    """What does not end, or touches what it may not, is a process of its own."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.unit.codec_changing"]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, what, backend], cwd=root, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("backend", [name for name in available() if name != "reference"])
def test_lengths_of_blocks_that_change_are_refused(backend: str) -> None:
    run_apart("decode", backend)


@pytest.mark.parametrize("backend", available())
def test_values_that_change_become_a_cell(backend: str) -> None:
    run_apart("encode", backend)

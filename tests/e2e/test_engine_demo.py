"""The demo leaves nothing behind when it is interrupted."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.e2e.process import DEADLINE_S, ROOT  # noqa: E402


@pytest.fixture
def model() -> None:
    """Fetch the model first, or skip where that is not possible."""
    from bench.model import model_directory

    try:
        model_directory()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"the small real model cannot be fetched: {error}")


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_an_interrupted_demo_takes_its_daemon_along(model, number: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="kvd-") as directory:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench", "demo"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"TMPDIR": directory},
            start_new_session=True,
            preexec_fn=_hear_the_keyboard,
        )
        for line in process.stdout:
            if line.startswith("daemon: ready"):
                break
        runtime = next(Path(directory).glob("kvd-*"))
        daemon = processes_naming(str(runtime))
        assert daemon
        if number == signal.SIGINT:  # As a terminal does it: to everyone in the foreground.
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(DEADLINE_S) == 130
        assert not runtime.exists()
        assert not processes_naming(str(runtime))
        process.stdout.close()


def _hear_the_keyboard() -> None:
    """Undo what a shell does to its background jobs, and they pass on: SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def processes_naming(text: str) -> list[int]:
    """Return the processes with the text in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if text.encode() in words:
            found.append(int(path.parent.name))
    return found

"""A daemon of one's own for a bench: a process on a temporary directory, gone when the bench is."""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 15.0
_PR_SET_PDEATHSIG = 1


class ServingFailed(Exception):
    """The daemon did not start; the message is one line with what it said."""


@contextlib.contextmanager
def served(dram: str) -> Iterator[Path]:
    """Run `kvd serve` with so much memory; yield the directory of its tenant.

    The daemon and its directory are gone afterwards, whatever ended the block.
    """
    with tempfile.TemporaryDirectory(prefix="kvd-") as directory:
        command = [sys.executable, "-m", "kvd.cli.main", "serve"]
        command += ["--directory", directory, "--dram", dram]
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # The keyboard's signals are for the bench, which stops it.
            preexec_fn=die_with_parent,
        )
        try:
            _await_ready(process)
            yield Path(directory) / "default"
        finally:
            _stop(process)


def die_with_parent() -> None:
    """Let the kernel end this process with its parent; for a child between fork and exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _await_ready(process: subprocess.Popen) -> None:
    assert process.stderr is not None
    deadline, said = time.monotonic() + START_SECONDS_MAX, b""
    while b"ready on" not in said:
        left = deadline - time.monotonic()
        readable, _, _ = select.select([process.stderr], [], [], max(left, 0))
        data = os.read(process.stderr.fileno(), 4096) if readable else b""
        said += data
        if not data:
            lines = said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise ServingFailed(f"kvd serve is not ready: {lines[-1]}")


def _stop(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=STOP_SECONDS_MAX)
        return
    process.kill()
    process.communicate()

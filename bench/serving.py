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

DRAM = "2GiB"  # Four caches of 4,096 tokens of the small model, and room.
START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 15.0
_PR_SET_PDEATHSIG = 1


class ServingFailed(Exception):
    """The daemon did not start; the message is one line with what it said."""


@contextlib.contextmanager
def served(dram: str = DRAM, *flags: str) -> Iterator[Path]:
    """Run `kvd serve` with so much memory, and `flags`; yield the directory of its tenant.

    The daemon and its directory are gone afterwards, whatever ended the block.
    """
    with tempfile.TemporaryDirectory(prefix="kvd-") as directory:
        command = [sys.executable, "-m", "kvd.cli.main", "serve"]
        command += ["--directory", directory, "--dram", dram, *flags]
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # The keyboard's signals are for the bench, which stops it.
            preexec_fn=as_child,
        )
        try:
            _await_ready(process)
            yield Path(directory) / "default"
        finally:
            _stop(process)


def as_child() -> None:
    """Prepare a child between fork and exec: it ends with its parent, it hears all signals."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


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

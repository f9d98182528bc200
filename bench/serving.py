"""A daemon of one's own for a bench: a process on temporary directories, gone when the bench is."""

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
from dataclasses import dataclass
from pathlib import Path

from bench.model import cache_directory
from kvd.limits import KIB

DRAM = "2GiB"  # Four caches of 4,096 tokens of the small model, and room.
PROGRAM = ("-m", "kvd.cli.main")
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0
_PR_SET_PDEATHSIG = 1


class ServingFailed(Exception):
    """The daemon did not start; the message is one line with what it said."""


@dataclass(frozen=True, slots=True)
class Served:
    """A daemon that runs: `tenant` is the directory of its tenant."""

    tenant: Path
    process: subprocess.Popen
    ready_seconds: float  # From its start to readiness.

    def kill(self) -> None:
        """End it as a crash would: nothing is drained, nothing is said."""
        self.process.kill()
        self.process.communicate()

    def peak_bytes(self) -> int:
        """Return the most memory that was ever resident for it, shared memory not counted."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return (int(fields["VmHWM"].split()[0]) - int(fields["RssShmem"].split()[0])) * KIB


@contextlib.contextmanager
def serving(*flags: str, program: tuple[str, ...] = PROGRAM) -> Iterator[Served]:
    """Run `kvd serve` with these flags; it and its runtime directory are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kvd-") as directory:
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *program, "serve", "--directory", directory, *flags],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # The keyboard's signals are for the bench, which stops it.
            preexec_fn=as_child,
        )
        try:
            _await_ready(process)
            yield Served(Path(directory) / "default", process, time.monotonic() - begin)
        finally:
            _stop(process)


@contextlib.contextmanager
def served(dram: str = DRAM, *flags: str) -> Iterator[Path]:
    """Run `kvd serve` in memory only, with so much; yield the directory of its tenant."""
    with serving("--dram", dram, *(flags or ("--metrics-listen", "off"))) as daemon:
        yield daemon.tenant


@contextlib.contextmanager
def data_directory() -> Iterator[Path]:
    """Yield an empty directory in $KVD_BENCH_DATA, or in the cache directory.

    On a real file system: a tmpfs has no O_DIRECT worth measuring.
    """
    place = Path(os.environ.get("KVD_BENCH_DATA") or cache_directory())
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as directory:
        yield Path(directory)


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
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=STOP_SECONDS_MAX)
        return
    process.kill()
    process.communicate()

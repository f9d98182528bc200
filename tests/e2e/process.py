"""`kvd serve` as a process: started, waited for, read, stopped."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 30.0
ROOT = Path(__file__).resolve().parents[2]


class Daemon:
    """A running daemon and the lines of its log."""

    def __init__(self, directory: Path, *flags: str, prepare=None, python: tuple = ()) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, *python, "-m", "kvd.cli.main", "serve", "--directory", str(directory)]
            + list(flags),
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            preexec_fn=prepare,
        )
        self.lines: list[str] = []
        self._fresh: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def tenant(self) -> Path:
        return self.directory / "default"

    def wait_line(self, words: str) -> str:
        """Return the next line that contains `words`, waiting for it."""
        while True:
            line = self._fresh.get(timeout=DEADLINE_S)
            assert line is not None, f"ended without {words!r}: {self.lines}"
            if words in line:
                return line

    def ready(self) -> "Daemon":
        self.wait_line("ready on")
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        """End the process whatever it does; for the end of a test."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)

    def descriptors(self, kind: str) -> int:
        """Return how many descriptors of a kind are open, as /proc names it: `socket:`, `pidfd`."""
        directory, count = f"/proc/{self.process.pid}/fd", 0
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                count += kind in os.readlink(f"{directory}/{name}")
        return count

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._fresh.put(line)
        self._fresh.put(None)


@contextlib.contextmanager
def running(directory: Path, *flags: str, prepare=None) -> Iterator[Daemon]:
    """Yield a daemon that is ready, with two slabs of memory; kill it at the end."""
    daemon = Daemon(directory, "--dram", "128MiB", *flags, prepare=prepare)
    try:
        yield daemon.ready()
    finally:
        daemon.stop()

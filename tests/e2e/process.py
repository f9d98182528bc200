"""`kvd serve` as a process: started, waited for, read, stopped."""

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvd.client import Client
from kvd.config import ServeConfig, SsdSettings, TenantSettings
from kvd.daemon.loop import Daemon as InProcess
from kvd.daemon.loop import run as run_loop
from kvd.daemon.quotas import quotas_of
from kvd.daemon.recovery import find_tier
from kvd.limits import Limits
from kvd.rpc.server import Server

DEADLINE_S = 30.0
ROOT = Path(__file__).resolve().parents[2]


class Daemon:
    """A running daemon and the lines of its log."""

    def __init__(self, directory: Path, *flags: str, prepare=None, python: tuple = ()) -> None:
        self.directory = directory
        words = ["--directory", str(directory), *flags]
        self.process = self._begin(words, prepare, python)
        self.lines: list[str] = []
        self._fresh: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def tenant(self) -> Path:
        return self.directory / "default"

    def wait_line(self, words: str) -> str:
        """Return the next line that contains `words`, waiting for it."""
        line = self.wait_line_or_end(words)
        assert line, f"ended without {words!r}: {self.lines}"
        return line

    def wait_line_or_end(self, words: str) -> str:
        """As `wait_line`; nothing when the process ended without it."""
        while True:
            line = self._fresh.get(timeout=DEADLINE_S)
            if line is None or words in line:
                return line or ""

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

    def _begin(self, words: list[str], prepare, python: tuple):
        """Return the process that serves with these flags; `stderr` is text."""
        return subprocess.Popen(
            [sys.executable, *python, "-m", "kvd.cli.main", "serve", *words],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            preexec_fn=prepare,
        )

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


@dataclass(frozen=True)
class Here:
    """A daemon in this process: what belongs to its loop is called on that only."""

    directory: Path
    tcp: str
    daemon: InProcess
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event

    def drain(self) -> None:
        """Have it drain, and wait until that is done."""
        asyncio.run_coroutine_threadsafe(self.daemon.drain(asyncio.Event()), self.loop).result(
            DEADLINE_S
        )


@contextlib.contextmanager
def in_process(
    directory: Path, limits: Limits, dram_bytes: int, ssd: SsdSettings | None = None
) -> Iterator[Path]:
    """Yield a tenant's directory, served by a thread of this process with bounds of its own."""
    uids = frozenset({os.geteuid()})
    config = ServeConfig(directory, (TenantSettings("default"),), dram_bytes, uids, limits, ssd)
    with served(config):
        yield directory / "default"


@contextlib.contextmanager
def connected(
    directory: Path, limits: Limits, dram_bytes: int, ssd: SsdSettings | None = None
) -> Iterator[Client]:
    """Yield a client of a tenant that is served as by `in_process`, once it is connected."""
    with (
        in_process(directory, limits, dram_bytes, ssd) as tenant,
        Client(tenant, "test", DEADLINE_S) as client,
    ):
        assert client.wait_connected(DEADLINE_S)
        yield client


@contextlib.contextmanager
def served(config: ServeConfig) -> Iterator[Here]:
    """Yield a daemon that a thread of this process runs."""
    ready: queue.SimpleQueue = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: run_loop(_serve_here(config, ready)), daemon=True)
    thread.start()
    here = ready.get(timeout=DEADLINE_S)
    try:
        yield here
    finally:
        here.loop.call_soon_threadsafe(here.stop.set)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


async def _serve_here(config: ServeConfig, ready: queue.SimpleQueue) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    found = find_tier(config.ssd) if config.ssd else None
    quotas = quotas_of(config, found)
    daemon = InProcess(config.dram_bytes, config.limits, loop, found=found, quotas=quotas)
    if found is not None:
        daemon.recover(found)
    async with Server(config, daemon, loop) as server:
        daemon.start()
        ready.put(Here(config.directory, server.tcp_address, daemon, loop, stop))
        await stop.wait()
        server.grace_s = 0
    daemon.close()


@contextlib.contextmanager
def playing(module: str, name: str, directory: Path) -> Iterator[subprocess.Popen]:
    """Yield a process that plays a story of a test module; its words come by standard output."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, name, str(directory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()

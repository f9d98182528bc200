"""Daemons with a seam, started by forking a process that has imported everything already."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from tests.crash.program import ORDER_BYTES_MAX
from tests.e2e.process import DEADLINE_S, ROOT


class Forked:
    """As a `subprocess.Popen`, of a process that another one forked. `stderr` is text."""

    def __init__(self, pid: int, pidfd: int, control: int, stderr: int) -> None:
        self.pid, self.returncode, self._pidfd = pid, None, pidfd
        self.stderr = os.fdopen(stderr, errors="backslashreplace")
        self._control = os.fdopen(control, "wb", buffering=0)
        self._ended = threading.Event()

    def tell(self, plan: dict[str, Any]) -> None:
        self._control.write(json.dumps(plan).encode() + b"\n")

    def end(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.program", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), cwd=ROOT,
            )  # fmt: skip
        self._begun: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._living: dict[int, Forked] = {}
        self._dead: dict[int, int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, order: dict[str, Any], passed: Sequence[int] = ()) -> Forked:
        """Have a daemon started; it gets `passed` as a service manager's descriptors."""
        control, ours = os.pipe()
        theirs, stderr = os.pipe()
        try:
            data = json.dumps(order).encode()
            assert len(data) <= ORDER_BYTES_MAX
            socket.send_fds(self._channel, [data], [control, stderr, *passed])
        finally:
            os.close(control)
            os.close(stderr)
        pid, pidfd = self._begun.get(timeout=DEADLINE_S)
        forked = Forked(pid, pidfd, ours, theirs)
        with self._lock:
            self._living[pid] = forked
            if pid in self._dead:
                forked.end(self._dead.pop(pid))
        return forked

    def close(self) -> None:
        self._channel.shutdown(socket.SHUT_RDWR)
        self._process.wait(DEADLINE_S)

    def _listen(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._channel, ORDER_BYTES_MAX, 1)
            if not data:
                return
            said = json.loads(data)
            if "begun" in said:
                self._begun.put((said["begun"], descriptors[0]))
                continue
            with self._lock:
                forked = self._living.pop(said["ended"], None)
                if forked is None:
                    self._dead[said["ended"]] = said["status"]
                else:
                    forked.end(said["status"])

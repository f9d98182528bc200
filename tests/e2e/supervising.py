"""A small service manager: sockets made once, a store of descriptors, starts, stops, watches.

Speaks sd_notify and LISTEN_FDS as systemd does; a daemon's process comes and goes, what is here
stays.
"""

import array
import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

from tests.e2e.process import DEADLINE_S, ROOT, Daemon

# Descriptors get the numbers from 3 on, and the environment the number of the process itself.
PASS = """
import os, sys
given, count = [int(word) for word in sys.argv[1].split(",") if word], 0
high = [os.dup(number) for number in given]
safe = [__import__("fcntl").fcntl(number, 0, 100) for number in high]
for count, number in enumerate(safe, 3):
    os.dup2(number, count)
for number in [*given, *high, *safe]:
    if not 3 <= number < 3 + len(given):
        os.close(number)
if given:
    os.environ["LISTEN_PID"] = str(os.getpid())
os.environ.setdefault("WATCHDOG_PID", str(os.getpid()))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def listening(path: Path, kind: socket.SocketKind) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    made.listen(128)
    return made


class Supervisor:
    """`store`: descriptors by name; `told`: every message but those about the store.

    `prepare` is called in each daemon's process before it runs.
    """

    def __init__(self, directory: Path, *flags: str, watchdog_s: float = 0.0, prepare=None) -> None:
        self.directory, self.flags, self.watchdog_s = directory, flags, watchdog_s
        self.prepare = prepare
        self.tenant = directory / "default"
        self.tenant.mkdir(parents=True)
        self.sockets = {
            "session.default": listening(self.tenant / "session.sock", socket.SOCK_STREAM),
            "slabs.default": listening(self.tenant / "slabs.sock", socket.SOCK_SEQPACKET),
        }
        self.store: dict[str, list[int]] = defaultdict(list)
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.statuses: list[str] = []
        self.beats = threading.Semaphore(0)
        self.daemon: Daemon | None = None
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(directory / "notify"))
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self) -> Daemon:
        """Start a daemon with everything that is kept, and wait until it says that it is ready."""
        self.begin()
        assert self.next_told() == "READY=1", self.daemon.lines
        return self.daemon

    def begin(self) -> Daemon:
        self.daemon = _Supervised(self)
        return self.daemon

    def given(self) -> tuple[dict[str, str], tuple[int, ...]]:
        """Return what a daemon finds in its environment, and the descriptors that it gets."""
        passed = [(name, made.fileno()) for name, made in self.sockets.items()]
        passed += [(name, number) for name, kept in self.store.items() for number in kept]
        names, numbers = zip(*passed, strict=True) if passed else ((), ())
        environment = {"NOTIFY_SOCKET": str(self.directory / "notify")}
        if numbers:
            environment |= {"LISTEN_FDS": str(len(numbers)), "LISTEN_FDNAMES": ":".join(names)}
        if self.watchdog_s:
            environment["WATCHDOG_USEC"] = str(int(self.watchdog_s * 1e6))
        return environment, numbers

    def next_told(self) -> str:
        return self.told.get(timeout=DEADLINE_S)

    def stop(self, number: int) -> int:
        """Send a signal and return the exit code, once nothing is left to be heard."""
        self.daemon.send(number)
        code = self.daemon.wait()
        self.settle()
        return code

    def settle(self) -> None:
        """Wait until all that the daemon sent has been taken in, as it sent it before its end."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"X_SETTLED=1", str(self.directory / "notify"))
        while self.next_told() != "X_SETTLED=1":
            pass

    def drop(self, name: str) -> None:
        for number in self.store.pop(name, ()):
            os.close(number)

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.stop()
        for made in self.sockets.values():
            made.close()
        for name in list(self.store):
            self.drop(name)

    def _listen(self) -> None:
        while True:
            data, ancillary, _, _ = self._notify.recvmsg(4096, socket.CMSG_SPACE(4 * 253))
            numbers = array.array("i")
            for _, _, part in ancillary:
                numbers.frombytes(part)
            self._take(data.decode().splitlines(), numbers.tolist())

    def _take(self, lines: list[str], numbers: list[int]) -> None:
        fields = dict(line.split("=", 1) for line in lines)
        name = fields.get("FDNAME", "")
        if "FDSTORE" in fields:
            assert fields["FDPOLL"] == "0"
            self.store[name] += numbers
            return
        for number in numbers:  # Of a barrier: closing it says that all before was heard.
            os.close(number)
        if "FDSTOREREMOVE" in fields:
            self.drop(name)
        elif "STATUS" in fields:
            self.statuses.append(fields["STATUS"])
        elif "WATCHDOG" in fields:
            self.beats.release()
        elif not {"BARRIER", "EXTEND_TIMEOUT_USEC"} & fields.keys():
            self.told.put(lines[0])


class _Supervised(Daemon):
    def __init__(self, manager: Supervisor) -> None:
        self._given = manager.given()
        super().__init__(manager.directory, *manager.flags, prepare=manager.prepare)

    def _begin(self, words, prepare, python):
        environment, numbers = self._given
        program = ["-m", "kvd.cli.main", "serve", *words]
        return subprocess.Popen(
            [sys.executable, "-c", PASS, ",".join(map(str, numbers)), *program],
            stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environment},
            pass_fds=numbers, preexec_fn=prepare,
        )  # fmt: skip


@contextlib.contextmanager
def managed(directory: Path, *flags: str, watchdog_s: float = 0.0, prepare=None):
    manager = Supervisor(directory, *flags, watchdog_s=watchdog_s, prepare=prepare)
    try:
        yield manager
    finally:
        manager.close()

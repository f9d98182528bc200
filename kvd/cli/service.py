"""What a service manager says to `kvd serve` in the environment, and what it is told.

Read once, and taken out of the environment, so that no child believes to be meant.
"""

import asyncio
import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from kvd.clock import NS_PER_S
from kvd.daemon.adopting import Kept
from kvd.daemon.handover import INDEX_NAME, SLABS_NAME, Whose
from kvd.daemon.loop import Daemon
from kvd.daemon.notify import Notifier, Watchdog
from kvd.daemon.recovery import FoundTier
from kvd.errors import ErrorKind, KvdError
from kvd.format.handover import NO_HOME

FIRST_DESCRIPTOR = 3
RECOVERY_NS = 120 * NS_PER_S  # Asked for before the catalog is read: a million strips take five.
STOP_NS = 30 * NS_PER_S  # Besides draining: disk and catalog close, dram is stored.
STATUS_SECONDS = 1.0
DIGITS_MAX = 19
_NS_PER_US = 1000


@dataclass(slots=True)
class Service:
    """`listeners`: sockets by the name that the manager gave them; `kept`: of the daemon before."""

    notifier: Notifier
    watchdog_ns: int = 0
    kept: Kept = Kept()
    listeners: dict[str, socket.socket] = field(default_factory=dict)
    _watchdog: Watchdog | None = None
    _timer: asyncio.TimerHandle | None = None

    def recovering(self) -> None:
        self.notifier.status("starting: looking for what is kept")
        self.notifier.extend(RECOVERY_NS)

    def ready(self, daemon: Daemon, loop: asyncio.AbstractEventLoop) -> None:
        """Say that clients are served, and go on saying what becomes of it."""
        self.notifier.tell("READY=1")
        if self.notifier.is_managed:
            self._watchdog = Watchdog(self.notifier, loop, self.watchdog_ns)
            self._watchdog.beat()
            self._report(daemon, loop)

    def stopping(self, drain_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.notifier.tell("STOPPING=1")
        self.notifier.status("draining")
        self.notifier.extend(drain_ns + STOP_NS)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watchdog is not None:
            self._watchdog.stop()

    def _report(self, daemon: Daemon, loop: asyncio.AbstractEventLoop) -> None:
        made, count = daemon.succession.progress()
        self.notifier.status(f"dram {made} of {count} slabs")
        self._timer = loop.call_later(STATUS_SECONDS, self._report, daemon, loop)


def take_service(environment: MutableMapping[str, str]) -> Service:
    """Take what a service manager said out of the environment; raise INVALID for what it cannot."""
    taken = {name: environment.pop(name, "") for name in (
        "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS",
        "LISTEN_FDNAMES",
    )}  # fmt: skip
    service = Service(Notifier(taken["NOTIFY_SOCKET"]))
    if taken["WATCHDOG_USEC"] and taken["WATCHDOG_PID"] in ("", str(os.getpid())):
        service.watchdog_ns = _number("WATCHDOG_USEC", taken["WATCHDOG_USEC"]) * _NS_PER_US
    if taken["LISTEN_FDS"] and taken["LISTEN_PID"] == str(os.getpid()):
        _take_descriptors(service, taken)
    return service


def whose(directory: os.PathLike, found: FoundTier | None) -> Whose:
    """Return what dram is known by: the runtime directory, and the data set where there is one."""
    home = NO_HOME if found is None else found.directories[0].superblock.home
    return Whose(os.fsencode(directory), home)


def _take_descriptors(service: Service, taken: dict[str, str]) -> None:
    count = _number("LISTEN_FDS", taken["LISTEN_FDS"])
    names = taken["LISTEN_FDNAMES"].split(":") if taken["LISTEN_FDNAMES"] else []
    if len(names) != count:
        raise KvdError(
            ErrorKind.INVALID,
            f"LISTEN_FDS is {count} and LISTEN_FDNAMES has {len(names)} names: each descriptor "
            "needs its own (FileDescriptorName=)",
        )
    found: dict[str, list[int]] = {INDEX_NAME: [], SLABS_NAME: []}
    for descriptor, name in enumerate(names, FIRST_DESCRIPTOR):
        os.set_inheritable(descriptor, False)
        if name in found:
            found[name].append(descriptor)
        elif name in service.listeners:
            raise KvdError(ErrorKind.INVALID, f"two sockets are passed with the name {name!r}")
        else:
            service.listeners[name] = _socket_of(name, descriptor)
    service.kept = Kept(tuple(found[INDEX_NAME]), tuple(found[SLABS_NAME]))


def _socket_of(name: str, descriptor: int) -> socket.socket:
    try:
        return socket.socket(fileno=descriptor)
    except OSError as error:
        what = f"descriptor {descriptor}, passed as {name!r}, is no socket: {error.strerror}"
        raise KvdError(ErrorKind.INVALID, what) from None


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise KvdError(ErrorKind.INVALID, f"{name} is {text[:80]!r}; it must be a number")
    return int(text)

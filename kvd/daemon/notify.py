"""What a service manager is told, and what it keeps: the datagrams of sd_notify.

Owns its socket. Never raises and never waits long: a manager that went away does not matter.
"""

import array
import asyncio
import logging
import os
import select
import socket
from collections.abc import Sequence

from kvd.clock import NS_PER_S
from kvd.limits import Limits

SEND_SECONDS_MAX = 2.0
BARRIER_SECONDS_MAX = 5.0
_FDS_MAX = Limits().fds_per_message_max
_NS_PER_US = 1000

_log = logging.getLogger("kvd.service")


class Notifier:
    """Speaks to the manager at `address`, a path or `@` and an abstract name; "" is nobody."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._status = ""
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.settimeout(SEND_SECONDS_MAX)

    @property
    def is_managed(self) -> bool:
        return self._socket is not None

    def tell(self, *lines: str) -> bool:
        """Send lines like `READY=1` as one message; return whether it was taken."""
        return self._send(lines, ())

    def status(self, text: str) -> None:
        """Say in one line what the daemon does, when it is something else than before."""
        if text != self._status:
            self._status = text
            self.tell(f"STATUS={text}")

    def extend(self, duration_ns: int) -> None:
        """Ask for so much more time to start or to stop in, counted from now."""
        self.tell(f"EXTEND_TIMEOUT_USEC={duration_ns // _NS_PER_US}")

    def keep(self, name: str, descriptors: Sequence[int]) -> bool:
        """Have descriptors kept for the next start; they stay the caller's as well."""
        lines = ("FDSTORE=1", f"FDNAME={name}", "FDPOLL=0")
        parts = range(0, len(descriptors), _FDS_MAX)
        return all(self._send(lines, descriptors[at : at + _FDS_MAX]) for at in parts)

    def forget(self, name: str) -> None:
        """Have everything that is kept under a name closed."""
        self.tell("FDSTOREREMOVE=1", f"FDNAME={name}")

    def wait_heard(self) -> bool:
        """Wait until the manager has taken in all that was sent; return whether it has."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            sent = self._send(("BARRIER=1",), (writer,))
        finally:
            os.close(writer)
        poll = select.poll()
        poll.register(reader, select.POLLHUP)
        # Its end of the pipe is closed once it has dealt with every message before.
        heard = sent and bool(poll.poll(BARRIER_SECONDS_MAX * 1000))
        os.close(reader)
        return heard

    def _send(self, lines: Sequence[str], descriptors: Sequence[int]) -> bool:
        if self._socket is None:
            return False
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        try:
            self._socket.sendmsg(["\n".join(lines).encode()], ancillary, 0, self._address)
        except OSError as error:
            _log.debug("the service manager was not told %s: %s", lines[0], error)
            return False
        return True


class Watchdog:
    """Tells the manager twice in its time that the loop still turns: who hangs is started again."""

    def __init__(self, notifier: Notifier, loop: asyncio.AbstractEventLoop, period_ns: int) -> None:
        """`period_ns` 0: nobody watches."""
        self._notifier, self._loop = notifier, loop
        self._period_s = period_ns / NS_PER_S / 2
        self._timer: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        if self._period_s:
            self._notifier.tell("WATCHDOG=1")
            self._timer = self._loop.call_later(self._period_s, self.beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

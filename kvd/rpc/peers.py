"""Who is at the other end of a Unix socket, and when that process is gone. Never a bare pid."""

import asyncio
import errno
import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket module.
TOLD_AT_ONCE = 16  # Sessions of processes that are gone, before others have their turn of the loop.
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return who connected, as the kernel noted it then."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return Peer(pid, uid)


def open_pidfd(connection: socket.socket, peer: Peer) -> int:
    """Return a pidfd of the process that connected; raise OSError when it is gone already."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            raise
    pidfd = os.pidfd_open(peer.pid)
    # The pid may have passed to another process before it was opened; but then the socket of the
    # first one had been closed by then.
    if _is_closed(connection):
        os.close(pidfd)
        raise ProcessLookupError(f"process {peer.pid} left during its handshake")
    return pidfd


def _is_closed(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLHUP | select.POLLRDHUP)
    return bool(poll.poll(0))


@dataclass(slots=True)
class _Watched:
    pidfd: int
    sessions: list[int] = field(default_factory=list)


class ProcessWatch:
    """Calls back for every session of a process when it is gone; one pidfd for each process.

    One that lived for long may have had a hundred thousand: they are told in turns, and first the
    newest, which may be open still.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_gone: Callable[[int], None]) -> None:
        self._loop, self._on_gone = loop, on_gone
        self._watched: dict[int, _Watched] = {}
        self._gone: list[int] = []  # Sessions of processes that are gone, to be told from the end.

    def add(self, peer: Peer, pidfd: int, session: int) -> None:
        """Watch for a session's process; owns the pidfd from here on. Raise OSError."""
        # A pid seen from another namespace is 0 for everybody.
        key = peer.pid if peer.pid else -session
        known = self._watched.get(key)
        if known is not None and _has_exited(known.pidfd):
            self._fire(key)
            known = None
        if known is not None:
            os.close(pidfd)  # Both are of a process that lives, so of the same one.
            known.sessions.append(session)
            return
        try:
            self._loop.add_reader(pidfd, self._fire, key)
        except OSError:
            os.close(pidfd)
            raise
        self._watched[key] = _Watched(pidfd, [session])

    def close(self) -> None:
        for watched in self._watched.values():
            self._loop.remove_reader(watched.pidfd)
            os.close(watched.pidfd)
        self._watched.clear()
        self._gone.clear()

    def _fire(self, key: int) -> None:
        watched = self._watched.pop(key, None)
        if watched is None:
            return
        self._loop.remove_reader(watched.pidfd)
        os.close(watched.pidfd)
        waiting = bool(self._gone)
        self._gone += watched.sessions
        if not waiting:
            self._tell()

    def _tell(self) -> None:
        for _ in range(min(TOLD_AT_ONCE, len(self._gone))):
            self._on_gone(self._gone.pop())
        if self._gone:
            self._loop.call_soon(self._tell)


def _has_exited(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))

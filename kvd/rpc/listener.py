"""Listening Unix sockets: made in a directory that is ours, accepting while descriptors last."""

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from kvd.errors import ErrorKind, KvdError

BACKLOG = 128
RETRY_SECONDS = 0.5  # Between tries to accept when descriptors ran out.
_LEFT = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR)  # The peer did, before our accept.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger("kvd.listener")


def remove_socket(path: Path) -> None:
    """Remove what a dead daemon left; raise INVALID for anything that is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise KvdError(
            ErrorKind.INVALID, f"{path} is in the way and not a socket; move it elsewhere"
        )
    path.unlink()


def listen(path: Path, kind: socket.SocketKind, mode: int) -> socket.socket:
    """Return a socket that listens at path; raise OSError."""
    remove_socket(path)
    listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listening.bind(str(path))
        os.chmod(path, mode)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def adopt_listening(passed: socket.socket, kind: socket.SocketKind, name: str) -> None:
    """Prepare a socket that a service manager passed; raise INVALID when it is another one."""
    listens = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    found = passed.family, passed.type
    if not listens or found != (socket.AF_UNIX, kind):
        state = "that listens" if listens else "that does not listen"
        raise KvdError(
            ErrorKind.INVALID,
            f"the socket passed as {name} is {found[0].name} {found[1].name} {state}; it must be "
            f"AF_UNIX {kind.name} that listens",
        )
    passed.setblocking(False)


def unknown_sockets(passed: Iterable[str], tenants: Iterable[str]) -> KvdError:
    """Return why sockets with these names are refused."""
    allowed = ", ".join(f"session.{tenant} and slabs.{tenant}" for tenant in tenants)
    what = f"sockets are passed as {', '.join(sorted(passed))}; allowed are {allowed}"
    return KvdError(ErrorKind.INVALID, f"{what} (FileDescriptorName=)")


async def accept_forever(
    listening: socket.socket, path: Path, take: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Hand every connection to `take`. Without descriptors, wait: those who connected wait too.

    Nor is one that fails for any other reason asked again at once: it would leave nobody a turn.
    """
    loop = asyncio.get_running_loop()
    waiting = False
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError as error:
            if error.errno in _LEFT:
                continue
            if not waiting:
                remedy = "raise LimitNOFILE" if error.errno in _EXHAUSTED else "restart kvd"
                _log.error("accepting at %s waits: %s; %s", path, error.strerror, remedy)
            waiting = True
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if waiting:
            waiting = False
            _log.warning("accepting at %s again", path)
        try:
            await take(connection)
        except OSError:
            connection.close()  # It left before it could be asked who it is.

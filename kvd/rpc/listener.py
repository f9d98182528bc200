"""Listening Unix sockets: made in a directory that is ours, accepting while descriptors last."""

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from kvd.errors import ErrorKind, KvdError

BACKLOG = 128
RETRY_SECONDS = 0.5  # Between tries to accept when descriptors ran out.
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


async def accept_forever(
    listening: socket.socket, path: Path, take: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Hand every connection to `take`. Without descriptors, wait: those who connected wait too."""
    loop = asyncio.get_running_loop()
    exhausted = False
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                continue  # The peer left between its connect and our accept.
            if not exhausted:
                why = error.strerror
                _log.error("accepting at %s waits: %s; raise LimitNOFILE", path, why)
            exhausted = True
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if exhausted:
            exhausted = False
            _log.warning("accepting at %s again", path)
        try:
            await take(connection)
        except OSError:
            connection.close()  # It left before it could be asked who it is.

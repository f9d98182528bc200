"""One daemon for each runtime directory, held by a file lock that dies with its process.

Taken before any socket: grpcio binds a path that another server holds without an error.
"""

import fcntl
import os
from pathlib import Path

from kvd.errors import ErrorKind, KvdError

LOCK_NAME = "kvd.lock"


class DirectoryLock:
    def __init__(self, directory: Path) -> None:
        """Take the lock; raise UNAVAILABLE naming path and process when another daemon has it."""
        path = directory / LOCK_NAME
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise KvdError(
                ErrorKind.UNAVAILABLE,
                f"another daemon (pid {holder or 'unknown'}) holds {path}; "
                "stop it, or choose another --directory",
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go. The file stays: removing it would let two daemons lock two files of one name."""
        os.close(self._descriptor)

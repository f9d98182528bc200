"""Looks at the free space of data directories, by a thread: a file system that hangs costs that."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kvd.core.disk_events import DiskEvent, Probed, SpaceSeen
from kvd.disk.files import fault_of


def free_space(path: Path) -> tuple[int, int]:
    """Return a file system's number and the bytes in it that may be taken; raise OSError."""
    stat = os.statvfs(path)
    return os.stat(path).st_dev, stat.f_bavail * stat.f_frsize


class SpaceLook:
    def __init__(self, paths: Sequence[Path], post: Callable[[DiskEvent], None]) -> None:
        self._paths, self._post = paths, post
        self._wanted = threading.Event()
        self._stopping = False
        threading.Thread(target=self._work, name="space", daemon=True).start()

    def ask(self) -> None:
        """Look once more; what is asked for before a look begins is answered by one."""
        self._wanted.set()

    def close(self) -> None:
        """Have the thread end, once it does not hang."""
        self._stopping = True
        self._wanted.set()

    def _work(self) -> None:
        while self._wanted.wait() and not self._stopping:
            self._wanted.clear()
            self._look()

    def _look(self) -> None:
        seen, failed = [], False
        for directory, path in enumerate(self._paths):
            try:
                seen.append(free_space(path))
            except OSError as error:
                failed = True
                self._post(Probed(directory, fault_of(error, str(path))))
        if not failed:
            devices, free = zip(*seen, strict=True)
            self._post(SpaceSeen(devices, free))

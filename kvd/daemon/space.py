"""Looks at the free space of data directories, by a thread for each: one may hang."""

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
    """Of a directory that fails or hangs the last number is told, as others share the budget."""

    def __init__(self, paths: Sequence[Path], post: Callable[[DiskEvent], None]) -> None:
        self._paths, self._post = paths, post
        self._lock = threading.Lock()
        self._devices: dict[int, int] = {}  # By directory that was seen.
        self._free: dict[int, int] = {}  # By device, whichever directory showed it last.
        self._looking: set[int] = set()
        self._awaited: set[int] = set()  # Of these: those that the last look was asked of.
        self._asked = [threading.Event() for _ in paths]
        self._stopping = False
        for directory in range(len(paths)):
            name, target = f"space {directory}", self._work
            threading.Thread(target=target, args=(directory,), name=name, daemon=True).start()

    def ask(self) -> None:
        """Look once more, at all directories whose look before is over."""
        with self._lock:
            self._awaited = set(range(len(self._paths))) - self._looking
            self._looking |= self._awaited
            for directory in self._awaited:
                self._asked[directory].set()

    def close(self) -> None:
        """Have the threads end, each once it does not hang."""
        self._stopping = True
        for asked in self._asked:
            asked.set()

    def _work(self, directory: int) -> None:
        asked = self._asked[directory]
        while asked.wait() and not self._stopping:
            asked.clear()
            try:
                seen = free_space(self._paths[directory])
            except OSError as error:
                self._post(Probed(directory, fault_of(error, str(self._paths[directory]))))
                seen = None
            self._take(directory, seen)

    def _take(self, directory: int, seen: tuple[int, int] | None) -> None:
        """Tell of all when this was the last one that is waited for, or had hung before."""
        with self._lock:
            self._looking.discard(directory)
            self._awaited.discard(directory)
            if seen is not None:
                self._devices[directory], self._free[seen[0]] = seen
            if self._awaited or not self._devices:
                return
            # One that was never seen passes for a part of another: so it adds nothing.
            other = next(iter(self._devices.values()))
            devices = [self._devices.get(each, other) for each in range(len(self._paths))]
            free = [self._free[device] for device in devices]
            self._post(SpaceSeen(tuple(devices), tuple(free)))  # In the order of what was seen.

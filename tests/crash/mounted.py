"""A file system of its own, on a file, whose power is cut: what had not reached the file is gone.

ext4 is asked to shut down without writing its log: no write, no name, no size that was not synced
comes through, and the next mount replays what its journal has. What reached the file counts as
lasting; a drive that loses what it said was flushed is not tried.
"""

import array
import contextlib
import fcntl
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.process import DEADLINE_S

_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_PAUSE_S = 0.02
NEEDED = ("losetup", "mkfs.ext4", "mount", "umount")


class NotHere(Exception):
    """Why no file system can be mounted, in one line."""


class Medium:
    """An ext4 in a file beside `directory`, on which it is mounted."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """Make and mount it; raise NotHere."""
        self.directory, self._image = directory, directory.with_suffix(".img")
        directory.mkdir(parents=True, exist_ok=True)
        with open(self._image, "wb") as file:
            file.truncate(size_bytes)
        _called("mkfs.ext4", "-q", "-F", "-E", "nodiscard", str(self._image))
        self.mount()

    def mount(self) -> None:
        _called("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.directory))

    def cut(self) -> None:
        """Cut the power, and mount it anew; nothing that stays may have a file of it open."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, array.array("I", [_NO_LOG_FLUSH]))
        finally:
            os.close(descriptor)
        deadline = time.monotonic() + DEADLINE_S
        while True:  # A process that a killed daemon had reading its catalog ends soon, too.
            try:
                _called("umount", str(self.directory))
            except NotHere:
                assert time.monotonic() < deadline
                threading.Event().wait(_PAUSE_S)
            else:
                break
        self.mount()

    def close(self) -> None:
        # Lazily: the end of a test that failed may have left a process in it.
        _called("umount", "--lazy", str(self.directory))
        self._image.unlink()


@contextlib.contextmanager
def medium(directory: Path, size_bytes: int) -> Iterator[Medium]:
    """Yield a file system whose power can be cut; raise NotHere where there can be none."""
    if os.geteuid() != 0:
        raise NotHere("only root can mount a file system")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise NotHere(f"there is no {' and no '.join(missing)}")
    made = Medium(directory, size_bytes)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def medium_or_skip(directory: Path, size_bytes: int) -> Iterator[Medium]:
    """As `medium`; skip the test where there can be none."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(medium(directory, size_bytes))
        except NotHere as why:
            pytest.skip(str(why))
        yield made


def _called(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotHere(f"{command[0]} fails: {said[-1] if said else done.returncode}")

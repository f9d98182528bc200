"""Directories as they are: the nearest one that exists, who may write there."""

import os
import stat
from pathlib import Path


def nearest(path: Path) -> Path:
    """Return a path without symbolic links, or the nearest one above it that exists."""
    there = Path(os.path.realpath(path))
    while not there.exists():
        there = there.parent
    return there


def may_write(path: Path, uid: int) -> bool:
    """Return whether a user could make files there, by owner and mode; groups are not looked at."""
    if uid == 0:
        return True
    if uid == os.geteuid():
        return os.access(path, os.W_OK | os.X_OK)
    status = path.stat()
    wanted = stat.S_IWUSR | stat.S_IXUSR if status.st_uid == uid else stat.S_IWOTH | stat.S_IXOTH
    return status.st_mode & wanted == wanted


def owned(path: Path) -> str:
    """Return who owns a path and its mode, in words."""
    status = path.stat()
    return f"uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}"

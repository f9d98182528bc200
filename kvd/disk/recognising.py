"""Whether a path can be a data directory: ours or empty, alone in use, whole, of this version.

Every refusal is a KvdError of one line with the path, what is wrong, and what would help.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from kvd.disk.canary import CANARY_NAME
from kvd.disk.files import Files, sync_directory
from kvd.errors import ErrorKind, KvdError
from kvd.format.page import Reason, Refused
from kvd.format.superblock import Superblock, parse_superblock
from kvd.limits import PAGE_BYTES

LOCK_NAME = "lock"
SUPERBLOCK_NAME = "superblock"
FRESH_NAME = "superblock.new"
SEGMENTS_NAME = "segments"
# What a directory may hold before its superblock is there: a crash can leave them, and mkfs.
_BEFORE_SUPERBLOCK = {LOCK_NAME, FRESH_NAME, CANARY_NAME, SEGMENTS_NAME, "lost+found"}


def check_apart(paths: Sequence[Path]) -> None:
    if not paths:
        raise KvdError(ErrorKind.INVALID, "no data directory is given; allowed is 1 to 255")
    for path in paths:
        if not _is_text(path):
            raise KvdError(
                ErrorKind.INVALID,
                f"the path of data directory {path} is not UTF-8, as the catalog in it needs; give "
                "it another name",
            )
    real = [Path(os.path.realpath(path)) for path in paths]
    for index, path in enumerate(real):
        for other in real[:index]:
            if path == other or path.is_relative_to(other) or other.is_relative_to(path):
                raise KvdError(
                    ErrorKind.INVALID,
                    f"data directories {other} and {path} are not apart; give each one once",
                )


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_usable(files: Files, path: Path) -> None:
    """Make it if need be; refuse what is no directory, not ours to write, or somebody else's."""
    try:
        _make(files, path)
        names = set(os.listdir(path))
        writable = os.access(path, os.W_OK | os.X_OK)
    except (FileExistsError, NotADirectoryError):
        raise KvdError(
            ErrorKind.INVALID, f"data directory {path} is a file; give a directory"
        ) from None
    except PermissionError:
        names, writable = set(), False
    except OSError as error:
        raise unusable(path, error) from None
    if not writable:
        raise _denied(path)
    foreign = names - _BEFORE_SUPERBLOCK
    if SUPERBLOCK_NAME not in names and (foreign or _has_segments(path)):
        example = min(foreign or {SEGMENTS_NAME})
        raise KvdError(
            ErrorKind.INCOMPATIBLE,
            f"data directory {path} holds {example!r} and no superblock of kvd; give an empty one",
        )


def _make(files: Files, path: Path) -> None:
    """Make a directory and those above it, where they are not there, for good; raise OSError."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    for each in missing:
        sync_directory(files, str(each.parent))


def _has_segments(path: Path) -> bool:
    try:
        return bool(os.listdir(path / SEGMENTS_NAME))
    except OSError:
        return False


def _denied(path: Path) -> KvdError:
    there = path
    while not there.exists():
        there = there.parent
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return unusable(path, OSError(errno.EROFS, os.strerror(errno.EROFS)))
    return KvdError(
        ErrorKind.DENIED,
        f"data directory {path}: {there} belongs to uid {there.stat().st_uid}, and uid "
        f"{os.geteuid()} may not write it; change its owner, or give another directory",
    )


def unusable(path: Path, error: OSError) -> KvdError:
    return KvdError(
        ErrorKind.UNAVAILABLE, f"data directory {path} cannot be used: {error.strerror}"
    )


def lock_directory(path: Path) -> int:
    try:
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        raise _denied(path) from None
    except OSError as error:
        raise unusable(path, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise KvdError(
            ErrorKind.UNAVAILABLE,
            f"data directory {path} is in use by another kvd (pid {holder or 'unknown'}); "
            "stop it, or give another directory",
        ) from None
    _write_holder(lock)
    return lock


def _write_holder(lock: int) -> None:
    """Name this process for the message of the next one; a full disk is no reason to refuse."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def read_superblock(path: Path) -> Superblock | None:
    try:
        with open(path / SUPERBLOCK_NAME, "rb") as file:
            data = file.read(PAGE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(path, error) from None
    match parse_superblock(data):
        case Refused(Reason.DAMAGED, message):
            kind, remedy = ErrorKind.CORRUPT, "its content cannot be used; empty it to begin anew"
        case Refused(Reason.OLDER | Reason.FOREIGN, message):
            kind, remedy = ErrorKind.INCOMPATIBLE, "it stays untouched; give an empty directory"
        case Refused(_, message):
            kind, remedy = ErrorKind.INCOMPATIBLE, "it stays untouched; upgrade kvd"
        case superblock:
            return superblock
    raise KvdError(kind, f"{path / SUPERBLOCK_NAME} {message}; {remedy}")


def set_of(
    paths: Sequence[Path], blocks: Sequence[Superblock | None], segment_bytes: int
) -> tuple[bytes, int]:
    """Return home (empty for a new set) and segment size of the set that all belong to.

    Raise INCOMPATIBLE when they are not of one set, or one of them is there twice, as a copy.
    """
    old = [(path, block) for path, block in zip(paths, blocks, strict=True) if block]
    if not old:
        return b"", segment_bytes
    first_path, first = old[0]
    seen = {first.directory: first_path}
    for path, block in old[1:]:
        if (block.home, block.segment_bytes) != (first.home, first.segment_bytes):
            raise KvdError(
                ErrorKind.INCOMPATIBLE,
                f"data directories {first_path} and {path} were not made together; give "
                "directories of one set, and new ones empty",
            )
        if block.directory in seen:
            raise KvdError(
                ErrorKind.INCOMPATIBLE,
                f"data directories {seen[block.directory]} and {path} are the same one "
                f"({block.directory.hex()}), copied; give only the one that is in use",
            )
        seen[block.directory] = path
    if first.home not in (block.directory for _, block in old):
        raise KvdError(
            ErrorKind.INCOMPATIBLE,
            f"data directory {first_path} belongs to a set whose catalog lies in another directory "
            f"({first.home.hex()}); give that one too, or empty all to begin anew",
        )
    return first.home, first.segment_bytes

"""Data directories: made, locked, recognised or refused, and tried out, before anything is stored.

Every refusal is one message with the path, what is wrong, and what would help.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvd.disk.canary import CANARY_NAME, make_canary, try_canary
from kvd.disk.files import Files, sync_directory, write_page
from kvd.errors import ErrorKind, FaultKind, KvdError
from kvd.format.page import Reason, Refused
from kvd.format.segment import parse_segment_name
from kvd.format.superblock import UUID_BYTES, Superblock, pack_superblock, parse_superblock
from kvd.limits import PAGE_BYTES

LOCK_NAME = "lock"
SUPERBLOCK_NAME = "superblock"
_FRESH_NAME = "superblock.new"
CATALOG_NAME = "catalog"
SEGMENTS_NAME = "segments"
# What a directory may hold before its superblock is there: a crash can leave them, and mkfs.
_BEFORE_SUPERBLOCK = {LOCK_NAME, _FRESH_NAME, CANARY_NAME, SEGMENTS_NAME, "lost+found"}


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """One that is ours and locked. `direct`: O_DIRECT works; `preallocates`: fallocate does.

    `notes` say what does not work and what that costs.
    """

    path: Path
    superblock: Superblock
    lock: int
    direct: bool
    preallocates: bool
    notes: tuple[str, ...]

    @property
    def segments(self) -> Path:
        return self.path / SEGMENTS_NAME

    def found_segments(self) -> np.ndarray:
        """Return u32: the numbers of all segment files, ascending; raise OSError."""
        numbers = (parse_segment_name(name) for name in os.listdir(self.segments))
        return np.array(sorted(n for n in numbers if n is not None), np.uint32)

    def release(self) -> None:
        """Let another process have it."""
        os.close(self.lock)


def open_directories(
    paths: Sequence[Path], segment_bytes: int, files: Files
) -> list[DataDirectory]:
    """Return all directories in the order given, made where they are not there; or raise KvdError.

    `segment_bytes` holds for a new set of directories; an old one keeps its own.
    """
    _check_apart(paths)
    with ExitStack() as undo:
        locks, blocks = [], []
        for path in paths:
            _check_usable(path)
            locks.append(_lock(path))
            undo.callback(os.close, locks[-1])
            blocks.append(_read_superblock(path))
        whole = _completed(files, paths, blocks, segment_bytes)
        found = [_tried(files, *each) for each in zip(paths, whole, locks, strict=True)]
        undo.pop_all()
    return found


def home_of(directories: Sequence[DataDirectory]) -> Path:
    """Return where the catalog of these directories lies."""
    [home] = [d.path for d in directories if d.superblock.directory == d.superblock.home]
    return home / CATALOG_NAME


def arrange(directories: Sequence[DataDirectory], known: Sequence[bytes]) -> list[DataDirectory]:
    """Return the directories in the order of `known` (a catalog's uuids), new ones behind.

    Raise INCOMPATIBLE when the catalog knows one that is not here.
    """
    by_uuid = {directory.superblock.directory: directory for directory in directories}
    missing = [uuid for uuid in known if uuid not in by_uuid]
    if missing:
        raise KvdError(
            ErrorKind.INCOMPATIBLE,
            f"the catalog in {home_of(directories)} knows {len(known)} data directories, and "
            f"{len(missing)} of them ({', '.join(uuid.hex() for uuid in missing)}) are not among "
            f"the {len(directories)} given; give all of them, or empty all to begin anew",
        )
    return [by_uuid.pop(uuid) for uuid in known] + list(by_uuid.values())


# ---- recognising ----


def _check_apart(paths: Sequence[Path]) -> None:
    if not paths:
        raise KvdError(ErrorKind.INVALID, "no data directory is given; allowed is 1 to 255")
    real = [Path(os.path.realpath(path)) for path in paths]
    for index, path in enumerate(real):
        for other in real[:index]:
            if path == other or path.is_relative_to(other) or other.is_relative_to(path):
                raise KvdError(
                    ErrorKind.INVALID,
                    f"data directories {other} and {path} are not apart; give each one once",
                )


def _check_usable(path: Path) -> None:
    """Refuse what is no directory, not ours to write, or somebody else's."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        names = set(os.listdir(path))
        writable = os.access(path, os.W_OK | os.X_OK)
    except (FileExistsError, NotADirectoryError):
        raise KvdError(
            ErrorKind.INVALID, f"data directory {path} is a file; give a directory"
        ) from None
    except PermissionError:
        names, writable = set(), False
    except OSError as error:
        raise _unusable(path, error) from None
    if not writable:
        raise _denied(path)
    foreign = names - _BEFORE_SUPERBLOCK
    if SUPERBLOCK_NAME not in names and (foreign or _has_segments(path)):
        example = min(foreign or {SEGMENTS_NAME})
        raise KvdError(
            ErrorKind.INCOMPATIBLE,
            f"data directory {path} holds {example!r} and no superblock of kvd; give an empty one",
        )


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
        return _unusable(path, OSError(errno.EROFS, os.strerror(errno.EROFS)))
    return KvdError(
        ErrorKind.DENIED,
        f"data directory {path}: {there} belongs to uid {there.stat().st_uid}, and uid "
        f"{os.geteuid()} may not write it; change its owner, or give another directory",
    )


def _unusable(path: Path, error: OSError) -> KvdError:
    return KvdError(
        ErrorKind.UNAVAILABLE, f"data directory {path} cannot be used: {error.strerror}"
    )


def _lock(path: Path) -> int:
    try:
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        raise _denied(path) from None
    except OSError as error:
        raise _unusable(path, error) from None
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


def _read_superblock(path: Path) -> Superblock | None:
    try:
        with open(path / SUPERBLOCK_NAME, "rb") as file:
            data = file.read(PAGE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from None
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


def _set_of(
    paths: Sequence[Path], blocks: Sequence[Superblock | None], segment_bytes: int
) -> tuple[bytes, int]:
    """Return home (empty for a new set) and segment size of the set that all belong to."""
    old = [(path, block) for path, block in zip(paths, blocks, strict=True) if block]
    if not old:
        return b"", segment_bytes
    first_path, first = old[0]
    for path, block in old[1:]:
        if (block.home, block.segment_bytes) != (first.home, first.segment_bytes):
            raise KvdError(
                ErrorKind.INCOMPATIBLE,
                f"data directories {first_path} and {path} were not made together; give "
                "directories of one set, and new ones empty",
            )
    if first.home not in (block.directory for _, block in old):
        raise KvdError(
            ErrorKind.INCOMPATIBLE,
            f"data directory {first_path} belongs to a set whose catalog lies in another directory "
            f"({first.home.hex()}); give that one too, or empty all to begin anew",
        )
    return first.home, first.segment_bytes


# ---- making and trying ----


def _completed(
    files: Files, paths: Sequence[Path], blocks: Sequence[Superblock | None], segment_bytes: int
) -> list[Superblock]:
    """Return the superblocks of all, writing those that are not there; the home's comes first."""
    home, size = _set_of(paths, blocks, segment_bytes)
    whole = []
    for path, block in zip(paths, blocks, strict=True):
        if block is None:
            uuid = os.urandom(UUID_BYTES)
            home = home or uuid
            block = Superblock(uuid, home, size)
            _create(files, path, block)
        whole.append(block)
    return whole


def _create(files: Files, path: Path, superblock: Superblock) -> None:
    """Write the superblock last and at once: until it is there, the directory counts as empty."""
    fresh, final = str(path / _FRESH_NAME), str(path / SUPERBLOCK_NAME)
    try:
        (path / SEGMENTS_NAME).mkdir(exist_ok=True, mode=0o700)
        make_canary(files, path)
        descriptor = files.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_page(files, descriptor, pack_superblock(superblock))
        finally:
            os.close(descriptor)
        files.rename(fresh, final)
        sync_directory(files, str(path))
    except OSError as error:
        raise _unusable(path, error) from None


def _tried(files: Files, path: Path, superblock: Superblock, lock: int) -> DataDirectory:
    """Return the directory with what its file system can do, found out by doing it."""
    try:
        (path / SEGMENTS_NAME).mkdir(exist_ok=True, mode=0o700)
        make_canary(files, path)
        preallocates = _preallocates(files, path)
    except OSError as error:
        raise _unusable(path, error) from None
    notes = []
    fault = try_canary(files, path, os.O_DIRECT)
    direct = fault is None or fault.kind == FaultKind.NO_SPACE  # That is not O_DIRECT's fault.
    if not direct:
        buffered = try_canary(files, path, 0)
        if buffered is not None:
            raise KvdError(ErrorKind.UNAVAILABLE, f"data directory {path}: {buffered.message}")
        notes.append(
            f"data directory {path}: no O_DIRECT ({fault.message}); reads and writes go through "
            "the page cache, which costs more processor time and memory"
        )
    if not preallocates:
        notes.append(
            f"data directory {path}: no fallocate; space is not reserved, so other programs can "
            "take it from segments that exist"
        )
    return DataDirectory(path, superblock, lock, direct, preallocates, tuple(notes))


def _preallocates(files: Files, path: Path) -> bool:
    descriptor = files.open(str(path / CANARY_NAME), os.O_RDWR)
    try:
        files.allocate(descriptor, PAGE_BYTES)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise
    finally:
        os.close(descriptor)
    return True

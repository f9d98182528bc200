"""Segment files and their heads: made with all their space, given another epoch, removed, read.

Every change is durable when it is answered, or a fault, and then the file is as after a crash.
"""

import os
from contextlib import suppress

from kvd.disk.contract import SegmentPlace
from kvd.disk.directories import DataDirectory
from kvd.disk.files import Files, fault_of, read_page, sync_directory, write_page
from kvd.errors import Fault, FaultKind
from kvd.format.page import Refused
from kvd.format.segment import SegmentHead, pack_segment_head, parse_segment_head, segment_name


def segment_path(directory: DataDirectory, segment: int) -> str:
    return str(directory.segments / segment_name(segment))


def segment_flags(directory: DataDirectory) -> int:
    return os.O_RDWR | (os.O_DIRECT if directory.direct else 0)


def read_head(
    files: Files, descriptor: int, directory: DataDirectory, segment: int
) -> SegmentHead | Fault:
    """Return the head of an open segment file, FORMAT when it is not that one's; raise OSError."""
    path = segment_path(directory, segment)
    parsed = parse_segment_head(read_page(files, descriptor))
    match parsed:
        case Refused(_, message):
            return Fault(FaultKind.FORMAT, f"{path} {message}")
    block = directory.superblock
    ours = (block.directory, segment, block.segment_bytes)
    if (parsed.directory, parsed.segment, parsed.segment_bytes) != ours:
        return Fault(FaultKind.FORMAT, f"{path}: its head is another segment's")
    return parsed


def make_segment(files: Files, directory: DataDirectory, place: SegmentPlace) -> Fault | None:
    """Make a file with all its space and a head; leave none behind when that fails."""
    path = segment_path(directory, place.segment)
    try:
        descriptor = files.open(path, segment_flags(directory) | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return Fault(FaultKind.FORMAT, f"{path}: there is one already")
    except OSError as error:
        return fault_of(error, path)
    try:
        _take_space(files, descriptor, directory)
        _write_head(files, descriptor, directory, place)
        sync_directory(files, str(directory.segments))
    except OSError as error:
        with suppress(OSError):  # Else it is an orphan, found when the directory is opened again.
            files.unlink(path)
        return fault_of(error, path)
    finally:
        os.close(descriptor)
    return None


def recycle_segment(files: Files, directory: DataDirectory, place: SegmentPlace) -> Fault | None:
    """Write a head with a higher epoch, or the same as after a crash; FORMAT for a lower one.

    A head that cannot be read has no epoch to compare with, and is written over.
    """
    path = segment_path(directory, place.segment)
    try:
        descriptor = files.open(path, segment_flags(directory))
        try:
            head = read_head(files, descriptor, directory, place.segment)
            if isinstance(head, SegmentHead) and head.epoch > place.epoch:
                message = f"{path}: epoch {place.epoch} is not higher than {head.epoch}"
                return Fault(FaultKind.FORMAT, message)
            if os.fstat(descriptor).st_size != directory.superblock.segment_bytes:
                _take_space(files, descriptor, directory)  # It was cut, by whatever.
            _write_head(files, descriptor, directory, place)
        finally:
            os.close(descriptor)
    except OSError as error:
        return fault_of(error, path)
    return None


def drop_segment(files: Files, directory: DataDirectory, segment: int) -> Fault | None:
    """Remove a file; one that is not there is no fault."""
    path = segment_path(directory, segment)
    try:
        files.unlink(path)
        sync_directory(files, str(directory.segments))
    except FileNotFoundError:
        return None
    except OSError as error:
        return fault_of(error, path)
    return None


def _take_space(files: Files, descriptor: int, directory: DataDirectory) -> None:
    if directory.preallocates:
        files.allocate(descriptor, directory.superblock.segment_bytes)
    else:
        os.ftruncate(descriptor, directory.superblock.segment_bytes)


def _write_head(
    files: Files, descriptor: int, directory: DataDirectory, place: SegmentPlace
) -> None:
    block = directory.superblock
    head = SegmentHead(
        block.directory, place.segment, place.epoch, place.plane_class, block.segment_bytes
    )
    write_page(files, descriptor, pack_segment_head(head))

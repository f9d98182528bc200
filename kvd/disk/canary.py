"""A page of each data directory that is written, synced and read back to see whether that works."""

import os
from pathlib import Path

from kvd.disk.files import Files, fault_of, read_page, sync_directory, write_page
from kvd.errors import Fault, FaultKind
from kvd.format.page import seal_page
from kvd.limits import PAGE_BYTES

CANARY_NAME = "canary"
MAGIC = b"kvdcanry"
_FRESH_BYTES = 16  # Of chance, so that no page written earlier passes for this one.


def make_canary(files: Files, directory: Path) -> None:
    """Make the file with its blocks, so that a full disk can still be tried; raise OSError."""
    path = str(directory / CANARY_NAME)
    descriptor = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_size != PAGE_BYTES:
            os.ftruncate(descriptor, PAGE_BYTES)
            write_page(files, descriptor, seal_page(MAGIC, bytes(8)))
    finally:
        os.close(descriptor)
    sync_directory(files, str(directory))


def try_canary(files: Files, directory: Path, flags: int) -> Fault | None:
    """Write the canary, and read it back by another descriptor; `flags` may hold O_DIRECT."""
    path = str(directory / CANARY_NAME)
    expected = seal_page(MAGIC, os.urandom(_FRESH_BYTES))
    try:
        _write(files, path, flags, expected)
        descriptor = files.open(path, os.O_RDONLY | flags)
        try:
            found = read_page(files, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return fault_of(error, path)
    if len(found) != PAGE_BYTES:
        return Fault(FaultKind.IO, f"{path}: {len(found)} of {PAGE_BYTES} bytes were read back")
    if found != expected:
        return Fault(FaultKind.CHECKSUM, f"{path}: other bytes were read back than written")
    return None


def _write(files: Files, path: str, flags: int, data: bytes) -> None:
    descriptor = files.open(path, os.O_RDWR | flags)
    try:
        write_page(files, descriptor, data)
    finally:
        os.close(descriptor)

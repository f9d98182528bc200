"""The superblock of a data directory: whose it is, and how large its segments are."""

import struct
from dataclasses import dataclass

from kvd.format.page import Refused, damaged, seal_page, unseal_page
from kvd.limits import PAGE_BYTES

MAGIC = b"kvdsuper"
UUID_BYTES = 16
SEGMENT_BYTES_MIN = 2 * PAGE_BYTES  # A head and one page.
SEGMENT_BYTES_MAX = 1 << 40
_FIELDS = struct.Struct("<16s16sQ")


@dataclass(frozen=True, slots=True)
class Superblock:
    """One page (docs/format.md, 14.2): uuids of this directory and of the catalog's."""

    directory: bytes
    home: bytes
    segment_bytes: int

    def __post_init__(self) -> None:
        assert len(self.directory) == len(self.home) == UUID_BYTES, self
        assert _problem(self.directory, self.home, self.segment_bytes) == "", self


def pack_superblock(superblock: Superblock) -> bytes:
    fields = _FIELDS.pack(superblock.directory, superblock.home, superblock.segment_bytes)
    return seal_page(MAGIC, fields)


def parse_superblock(data: bytes) -> Superblock | Refused:
    fields = unseal_page(data, MAGIC, _FIELDS.size)
    match fields:
        case Refused():
            return fields
    directory, home, segment_bytes = _FIELDS.unpack(fields)
    problem = _problem(directory, home, segment_bytes)
    return damaged(problem) if problem else Superblock(directory, home, segment_bytes)


def _problem(directory: bytes, home: bytes, segment_bytes: int) -> str:
    if not (any(directory) and any(home)):
        return "it names no directory"
    if segment_bytes % PAGE_BYTES or not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
        return f"segments of {segment_bytes} bytes cannot be"
    return ""

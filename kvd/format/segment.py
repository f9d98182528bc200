"""The first page of a segment: which one it is, of which class, and how often it was reused.

Strips follow from the second page on, back to back, with no bytes of their own between them.
"""

import struct
from dataclasses import dataclass

from kvd.format.page import Refused, damaged, seal_page, unseal_page
from kvd.format.superblock import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, UUID_BYTES
from kvd.limits import PAGE_BYTES, SEGMENT_NUMBER_MAX
from kvd.types import PlaneClass

MAGIC = b"kvdsegmt"
NAME_DIGITS = 8
SEGMENT_MAX = SEGMENT_NUMBER_MAX
assert SEGMENT_MAX == 10**NAME_DIGITS - 1
EPOCH_MAX = (1 << 32) - 1
_FIELDS = struct.Struct("<16sIIB7sQ")


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """One page (docs/format.md, 14.3); `directory` is the uuid of the superblock beside it."""

    directory: bytes
    segment: int
    epoch: int
    plane_class: PlaneClass
    segment_bytes: int

    def __post_init__(self) -> None:
        assert len(self.directory) == UUID_BYTES and 0 <= self.segment <= SEGMENT_MAX, self
        assert 1 <= self.epoch <= EPOCH_MAX, self
        assert self.segment_bytes % PAGE_BYTES == 0, self
        assert SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX, self


def segment_name(segment: int) -> str:
    """Return the file name of a segment."""
    assert 0 <= segment <= SEGMENT_MAX, segment
    return f"{segment:0{NAME_DIGITS}d}"


def parse_segment_name(name: str) -> int | None:
    """Return the number of a segment's file name, or None for any other name."""
    if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
        return None
    return int(name)


def pack_segment_head(head: SegmentHead) -> bytes:
    fields = _FIELDS.pack(
        head.directory, head.segment, head.epoch, head.plane_class, bytes(7), head.segment_bytes
    )
    return seal_page(MAGIC, fields)


def parse_segment_head(data: bytes) -> SegmentHead | Refused:
    fields = unseal_page(data, MAGIC, _FIELDS.size)
    match fields:
        case Refused():
            return fields
    directory, segment, epoch, plane_class, zero, segment_bytes = _FIELDS.unpack(fields)
    if any(zero):
        return damaged("its pad is not zero")
    if not any(directory) or segment > SEGMENT_MAX or epoch < 1:
        return damaged(f"it says segment {segment} of epoch {epoch}")
    if plane_class not in iter(PlaneClass):
        return damaged(f"it says class {plane_class}")
    if segment_bytes % PAGE_BYTES or not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
        return damaged(f"it says {segment_bytes} bytes")
    return SegmentHead(directory, segment, epoch, PlaneClass(plane_class), segment_bytes)

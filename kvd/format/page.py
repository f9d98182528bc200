"""What everything on disk begins with: magic, version, checksum; and why something is refused.

Packs and checks bytes, touches no file. The first 24 bytes keep their meaning in every version, so
that damage is told from another version.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from kvd.checksum import checksum
from kvd.limits import PAGE_BYTES

DISK_FORMAT = 1  # Of superblock, segments and catalog together.
MAGIC_BYTES = 8
_HEAD = struct.Struct("<8sIIQ")
_SUM_BEGIN = 16  # The checksum's own place, which it does not cover.
HEAD_BYTES = _HEAD.size


class Reason(IntEnum):
    FOREIGN = 1
    OLDER = 2
    NEWER = 3
    DAMAGED = 4


@dataclass(frozen=True, slots=True)
class Refused:
    """Why bytes are not taken for what they should be; `message` goes behind a file's name."""

    reason: Reason
    message: str


def damaged(what: str) -> Refused:
    return Refused(Reason.DAMAGED, f"is damaged: {what}")


def seal(magic: bytes, body: bytes, version: int = DISK_FORMAT) -> bytes:
    """Return `body` behind a head (docs/format.md, 14.1)."""
    assert len(magic) == MAGIC_BYTES and body
    whole = _HEAD.pack(magic, version, 0, 0) + body
    return whole[:_SUM_BEGIN] + struct.pack("<Q", _sum(whole)) + body


def unseal(data: bytes, magic: bytes, known: int = DISK_FORMAT) -> bytes | Refused:
    """Return the body behind a head that `seal` made, or why there is none."""
    if len(data) <= HEAD_BYTES or data[:MAGIC_BYTES] != magic:
        return Refused(Reason.FOREIGN, f"does not begin with {magic.decode()}: kvd did not make it")
    _, version, zero, expected = _HEAD.unpack_from(data)
    if _sum(data) != expected:
        return damaged("its checksum does not fit")
    if version != known:
        reason = Reason.OLDER if version < known else Reason.NEWER
        word = reason.name.lower()
        return Refused(reason, f"has format {version}, {word} than the {known} of this kvd")
    return damaged("its pad is not zero") if zero else data[HEAD_BYTES:]


def seal_page(magic: bytes, fields: bytes) -> bytes:
    """Return a whole page: head, fields, zeros."""
    assert len(fields) <= PAGE_BYTES - HEAD_BYTES, len(fields)
    return seal(magic, fields.ljust(PAGE_BYTES - HEAD_BYTES, b"\0"))


def unseal_page(data: bytes, magic: bytes, fields_size: int) -> bytes | Refused:
    """Return the fields of a page, or why there are none."""
    if len(data) != PAGE_BYTES:
        return damaged(f"it has {len(data)} bytes and should have {PAGE_BYTES}")
    body = unseal(data, magic)
    match body:
        case bytes() if body[fields_size:].strip(b"\0"):
            return damaged("its rest is not zero")
        case bytes():
            return body[:fields_size]
    return body


def _sum(whole: bytes) -> int:
    return checksum(whole[:_SUM_BEGIN] + whole[HEAD_BYTES:])

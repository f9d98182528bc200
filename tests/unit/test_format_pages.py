"""Superblocks and segment heads: what is written is read, everything else says why it is not."""

import struct

import pytest

from kvd.checksum import checksum
from kvd.format import page
from kvd.format.page import Reason, Refused
from kvd.format.segment import (
    SegmentHead,
    pack_segment_head,
    parse_segment_head,
    parse_segment_name,
    segment_name,
)
from kvd.format.superblock import Superblock, pack_superblock, parse_superblock
from kvd.limits import MIB, PAGE_BYTES
from kvd.types import PlaneClass

SUPERBLOCK = Superblock(b"d" * 16, b"h" * 16, 64 * MIB)
HEAD = SegmentHead(b"d" * 16, 7, 3, PlaneClass.RESIDUAL, 64 * MIB)
PAGES = [
    (pack_superblock(SUPERBLOCK), parse_superblock, SUPERBLOCK),
    (pack_segment_head(HEAD), parse_segment_head, HEAD),
]
both = pytest.mark.parametrize(("data", "parse", "value"), PAGES, ids=("superblock", "head"))


def changed(data: bytes, offset: int, with_bytes: bytes) -> bytes:
    """Return the page with some bytes changed and a checksum that fits them."""
    out = bytearray(data)
    out[offset : offset + len(with_bytes)] = with_bytes
    out[16:24] = struct.pack("<Q", checksum(bytes(out[:16] + out[24:])))
    return bytes(out)


def reason_of(answer: object) -> Reason:
    assert isinstance(answer, Refused), answer
    assert answer.message
    return answer.reason


@both
def test_a_page_is_read_back(data, parse, value):
    assert len(data) == PAGE_BYTES
    assert parse(data) == value


@both
def test_every_byte_counts(data, parse, value):
    for at in range(PAGE_BYTES):
        wrong = bytearray(data)
        wrong[at] ^= 0x10
        answer = reason_of(parse(bytes(wrong)))
        assert answer == (Reason.FOREIGN if at < 8 else Reason.DAMAGED), at


@both
def test_other_lengths_are_refused(data, parse, value):
    for wrong in (b"", data[:8], data[:24], data[:-1], data + b"\0", data + data):
        assert reason_of(parse(wrong)) == Reason.DAMAGED


@both
def test_versions_are_told_apart(data, parse, value):
    newer = parse(changed(data, 8, struct.pack("<I", page.DISK_FORMAT + 1)))
    older = parse(changed(data, 8, struct.pack("<I", page.DISK_FORMAT - 1)))
    assert reason_of(newer) == Reason.NEWER and "newer" in newer.message
    assert reason_of(older) == Reason.OLDER and "older" in older.message
    assert str(page.DISK_FORMAT + 1) in newer.message and str(page.DISK_FORMAT) in older.message


@both
def test_pads_that_are_not_zero_are_refused(data, parse, value):
    for at in (12, 15, 64, 2000, PAGE_BYTES - 1):
        assert reason_of(parse(changed(data, at, b"\1"))) == Reason.DAMAGED


def test_another_kind_of_page_is_foreign():
    assert reason_of(parse_superblock(pack_segment_head(HEAD))) == Reason.FOREIGN
    assert reason_of(parse_segment_head(bytes(PAGE_BYTES))) == Reason.FOREIGN


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (24, bytes(16)),
        (40, bytes(16)),
        (56, struct.pack("<Q", 0)),
        (56, struct.pack("<Q", PAGE_BYTES)),
        (56, struct.pack("<Q", 64 * MIB + 1)),
        (56, struct.pack("<Q", 1 << 63)),
    ],
)
def test_a_superblock_that_cannot_be_is_refused(offset, value):
    answer = parse_superblock(changed(pack_superblock(SUPERBLOCK), offset, value))
    assert reason_of(answer) == Reason.DAMAGED


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (24, bytes(16)),
        (40, struct.pack("<I", 10**8)),
        (44, struct.pack("<I", 0)),
        (48, b"\3"),
        (49, b"\1"),
        (55, b"\1"),
        (56, struct.pack("<Q", PAGE_BYTES)),
    ],
)
def test_a_head_that_cannot_be_is_refused(offset, value):
    answer = parse_segment_head(changed(pack_segment_head(HEAD), offset, value))
    assert reason_of(answer) == Reason.DAMAGED


def test_only_segments_have_names_of_segments():
    assert segment_name(0) == "00000000" and segment_name(12_345_678) == "12345678"
    assert parse_segment_name("00000042") == 42
    for other in (
        "",
        "42",
        "0000004",
        "000000042",
        "0000004x",
        "-0000042",
        "０0000042",
        "+0000042",
    ):
        assert parse_segment_name(other) is None

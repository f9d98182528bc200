"""The catalog's other tables: its meta record, and one row for each segment."""

import struct
from dataclasses import dataclass

import numpy as np

from kvd.checksum import checksum
from kvd.format.page import Refused, damaged, seal, unseal
from kvd.format.segment import SEGMENT_MAX
from kvd.format.superblock import UUID_BYTES
from kvd.types import PlaneClass, SegmentState

MAGIC = b"kvdctlog"
META_KEY = b"meta"
DIRECTORIES_MAX = 255
_META = struct.Struct("<QQII")

SEGMENT = np.dtype(
    [
        ("directory", "u1"),
        ("key_zero", "u1", (3,)),
        ("segment", "<u4"),
        ("plane_class", "u1"),
        ("state", "u1"),
        ("value_zero", "u1", (2,)),
        ("epoch", "<u4"),
        ("checksum", "<u8"),
    ]
)
SEGMENT_KEY_BYTES = 8
SEGMENT_VALUE_BYTES = SEGMENT.itemsize - SEGMENT_KEY_BYTES
_SUMMED_BYTES = SEGMENT.itemsize - 8
assert (SEGMENT_KEY_BYTES, SEGMENT_VALUE_BYTES) == (8, 16)


@dataclass(frozen=True, slots=True)
class Meta:
    """One record, under the key `meta`; behind the head of `kvd.format.page`, magic `kvdctlog`:

    | offset | size | type | name | meaning | other values |
    |---|---|---|---|---|---|
    | 24 | 8 | u64 | `generation` | every generation below it may have been given out | |
    | 32 | 8 | u64 | `written_bytes` | written to segments on `written_day` | |
    | 40 | 4 | u32 | `written_day` | days since 1970 | |
    | 44 | 4 | u32 | n | number of data directories, at most 255 | refuse |
    | 48 | 16 n | bytes | `directories` | rows name them by their place here | 0, a twin: refuse |
    """

    generation: int = 0
    directories: tuple[bytes, ...] = ()
    written_day: int = 0
    written_bytes: int = 0


def pack_meta(meta: Meta) -> bytes:
    assert _directories_problem(meta.directories) == "", meta
    count = len(meta.directories)
    body = _META.pack(meta.generation, meta.written_bytes, meta.written_day, count)
    return seal(MAGIC, body + b"".join(meta.directories))


def parse_meta(data: bytes) -> Meta | Refused:
    body = unseal(data, MAGIC)
    match body:
        case Refused():
            return body
    if len(body) < _META.size:
        return damaged("its meta record is short")
    generation, written_bytes, written_day, count = _META.unpack_from(body)
    rest = body[_META.size :]
    if len(rest) != count * UUID_BYTES:
        return damaged(f"its meta record has {len(rest)} bytes for {count} directories")
    starts = range(0, len(rest), UUID_BYTES)
    directories = tuple(rest[at : at + UUID_BYTES] for at in starts)
    problem = _directories_problem(directories)
    return damaged(problem) if problem else Meta(
        generation, directories, written_day, written_bytes
    )  # fmt: skip


def empty_segments(count: int) -> np.ndarray:
    """Return `count` segment rows of zeros, to be filled by column and sealed.

    | offset | size | type | name | meaning | other values |
    |---|---|---|---|---|---|
    | key 0 | 1 | u8 | `directory` | by the list in the meta record | |
    | key 1 | 3 | bytes | `key_zero` | pad | refuse |
    | key 4 | 4 | u32 | `segment` | number of its file | 10^8 and more: refuse |
    | value 0 | 1 | u8 | `plane_class` | of its strips | 3 to 255: refuse |
    | value 1 | 1 | u8 | `state` | free 1, open 2, full 3 | refuse |
    | value 2 | 2 | bytes | `value_zero` | pad | refuse |
    | value 4 | 4 | u32 | `epoch` | of its strips, or of its last ones when free | 0: refuse |
    | value 8 | 8 | u64 | `checksum` | XXH3-64 of the key and of 0 to 7 | refuse |
    """
    return np.zeros(count, SEGMENT)


def seal_segments(rows: np.ndarray) -> None:
    """Write the checksums; the rows must be what a reader takes."""
    assert rows.dtype == SEGMENT and rows.flags.c_contiguous
    rows["checksum"] = _checksums(rows)
    assert _plausible(rows).all(), rows


def sound_segments(rows: np.ndarray) -> np.ndarray:
    """Return bool[n]: which rows are whole and say what rows can say."""
    assert rows.dtype == SEGMENT
    return (_checksums(rows) == rows["checksum"]) & _plausible(rows)


def parse_segments(data: bytes | memoryview | np.ndarray) -> np.ndarray | None:
    """Return joined rows as SEGMENT, still unchecked, or None when they are not whole rows."""
    flat = np.frombuffer(data, np.uint8)
    return None if flat.size % SEGMENT.itemsize else flat.view(SEGMENT)


def _checksums(rows: np.ndarray) -> np.ndarray:
    data = memoryview(np.ascontiguousarray(rows).view(np.uint8))
    starts = range(0, len(data), SEGMENT.itemsize)
    sums = [checksum(data[at : at + _SUMMED_BYTES]) for at in starts]
    return np.array(sums, np.uint64)


def _plausible(rows: np.ndarray) -> np.ndarray:
    state = rows["state"]
    good = ~(rows["key_zero"].any(axis=1) | rows["value_zero"].any(axis=1))
    good &= (rows["segment"] <= SEGMENT_MAX) & (rows["plane_class"] <= max(PlaneClass))
    good &= (state >= min(SegmentState)) & (state <= max(SegmentState))
    return good & (rows["epoch"] != 0)


def _directories_problem(directories: tuple[bytes, ...]) -> str:
    if len(directories) > DIRECTORIES_MAX:
        return f"{len(directories)} data directories cannot be"
    if not all(len(uuid) == UUID_BYTES and any(uuid) for uuid in directories):
        return "it names no directory"
    return "it names a directory twice" if len(set(directories)) != len(directories) else ""

"""The catalog's other tables: its meta record, and one row for each segment."""

import struct
from dataclasses import dataclass

import numpy as np

from kvd.checksum import checksum
from kvd.format.page import Refused, damaged, seal, unseal
from kvd.format.segment import EPOCH_MAX, SEGMENT_MAX
from kvd.format.superblock import UUID_BYTES
from kvd.limits import GENERATION_MAX
from kvd.types import PlaneClass, SegmentState

MAGIC = b"kvdctlog"
META_KEY = b"meta"
DIRECTORIES_MAX = 255
EPOCH_BELIEVED_MAX = EPOCH_MAX >> 1  # Those behind it have their place.
WRITTEN_BYTES_MAX = (1 << 63) - 1
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
    """One record, under the key `meta` (docs/format.md, 15.1).

    `directories` are uuids, which records name by their place; each generation below `generation`
    may have been given out.
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
    if generation > GENERATION_MAX or written_bytes > WRITTEN_BYTES_MAX:
        return damaged(f"its meta record says generation {generation}, {written_bytes} bytes")
    starts = range(0, len(rest), UUID_BYTES)
    directories = tuple(rest[at : at + UUID_BYTES] for at in starts)
    problem = _directories_problem(directories)
    return damaged(problem) if problem else Meta(
        generation, directories, written_day, written_bytes
    )  # fmt: skip


def empty_segments(count: int) -> np.ndarray:
    """Return `count` records of zeros, to be filled by column and sealed (docs/format.md, 15.2)."""
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
    return good & (rows["epoch"] != 0) & (rows["epoch"] <= EPOCH_BELIEVED_MAX)


def _directories_problem(directories: tuple[bytes, ...]) -> str:
    if len(directories) > DIRECTORIES_MAX:
        return f"{len(directories)} data directories cannot be"
    if not all(len(uuid) == UUID_BYTES and any(uuid) for uuid in directories):
        return "it names no directory"
    return "it names a directory twice" if len(set(directories)) != len(directories) else ""

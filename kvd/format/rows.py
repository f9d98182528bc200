"""Rows of the catalog: one for each chunk of a lane, key and value of fixed size, as numpy columns.

Packs and checks whole columns. What a row says of strips is checked by their roots when they are
read; its checksum keeps a wrong parent or generation from being believed meanwhile.
"""

import numpy as np

from kvd.checksum import checksum
from kvd.format.segment import SEGMENT_MAX
from kvd.limits import DIGEST_BYTES, GENERATION_MAX
from kvd.types import CLASS_COUNT, Lane, Part, Shard, ShardScheme

_KEY_FIELDS = [
    ("keyspace", "u1", (DIGEST_BYTES,)),
    ("kv_group", "<u4"),
    ("shard_scheme", "u1"),
    ("key_zero", "u1"),
    ("shard_index", "<u2"),
    ("shard_count", "<u2"),
    ("part_index", "<u2"),
    ("part_profile", "u1", (8,)),
    ("chain", "u1", (DIGEST_BYTES,)),
]
_VALUE_FIELDS = [
    ("parent", "u1", (DIGEST_BYTES,)),
    ("generation", "<u8"),
    ("profile", "<u8"),
    ("heat", "<f8"),
    ("root", "<u8", (CLASS_COUNT,)),
    ("segment", "<u4", (CLASS_COUNT,)),
    ("epoch", "<u4", (CLASS_COUNT,)),
    ("page", "<u4", (CLASS_COUNT,)),
    ("pages", "<u4", (CLASS_COUNT,)),
    ("directory", "u1", (CLASS_COUNT,)),
    ("value_zero", "u1", (5,)),
    ("checksum", "<u8"),
]
LANE = np.dtype(_KEY_FIELDS[:-1])
ROW_KEY = np.dtype(_KEY_FIELDS)
ROW = np.dtype(_KEY_FIELDS + _VALUE_FIELDS)
KEY_BYTES = ROW_KEY.itemsize
VALUE_BYTES = ROW.itemsize - KEY_BYTES
_SUMMED_BYTES = ROW.itemsize - 8
assert (KEY_BYTES, VALUE_BYTES) == (84, 144)
_ROWS_AT_ONCE = 4096  # They stay in the cache while one column after the other is looked at.
_PLACE = ("segment", "epoch", "page", "directory", "root")


def empty_rows(count: int) -> np.ndarray:
    """Return `count` rows of zeros, to be filled by column and sealed (docs/format.md, 15.3).

    A class that is not on disk has 0 `pages`, and 0 in all fields of its place.
    """
    return np.zeros(count, ROW)


def put_lane(keys: np.ndarray, keyspace: bytes, lane: Lane) -> None:
    """Write keyspace digest and lane into `keys`, of ROW, ROW_KEY or LANE."""
    assert len(keyspace) == DIGEST_BYTES
    keys["keyspace"] = np.frombuffer(keyspace, np.uint8)
    keys["kv_group"], keys["key_zero"] = lane.kv_group, 0
    keys["shard_scheme"], keys["shard_index"] = lane.shard.scheme, lane.shard.index
    keys["shard_count"], keys["part_index"] = lane.shard.count, lane.part.index
    keys["part_profile"] = np.frombuffer(lane.part.profile, np.uint8)


def sound_lanes(keys: np.ndarray) -> np.ndarray:
    """Return bool[n]: which rows or keys name a lane that can be."""
    scheme, count = keys["shard_scheme"], keys["shard_count"]
    good = (keys["key_zero"] == 0) & (scheme <= max(ShardScheme)) & (keys["shard_index"] < count)
    return good & ((scheme != ShardScheme.REPLICATED) | (count == 1))


def lane_of(key: np.void) -> Lane:
    """Return the lane of one sound row or key."""
    scheme = ShardScheme(int(key["shard_scheme"]))
    shard = Shard(scheme, int(key["shard_index"]), int(key["shard_count"]))
    part = Part(key["part_profile"].tobytes(), int(key["part_index"]))
    return Lane(int(key["kv_group"]), shard, part)


def keys_of(rows: np.ndarray) -> np.ndarray:
    """Return the ROW_KEY part of rows, as a copy."""
    whole = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), ROW.itemsize)
    return np.ascontiguousarray(whole[:, :KEY_BYTES]).reshape(-1).view(ROW_KEY)


def lane_starts(rows: np.ndarray) -> np.ndarray:
    """Return i64: where another keyspace or lane begins, in rows as the catalog orders them."""
    bytes_of = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), ROW.itemsize)
    named = bytes_of[:, : KEY_BYTES - DIGEST_BYTES]
    other = (named[1:] != named[:-1]).any(axis=1)
    return np.concatenate(([0], np.flatnonzero(other) + 1))[: len(rows)].astype(np.int64)


def seal_rows(rows: np.ndarray) -> None:
    """Write the checksums; the rows must be what a reader takes."""
    assert rows.dtype == ROW and rows.flags.c_contiguous
    rows["checksum"] = _checksums(rows)
    assert _plausible(rows).all(), "a row that no reader would take"


def sound_rows(rows: np.ndarray) -> np.ndarray:
    """Return bool[n]: which rows are whole and say what rows can say."""
    assert rows.dtype == ROW
    sound = np.empty(len(rows), bool)
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[at : at + _ROWS_AT_ONCE]
        sound[at : at + _ROWS_AT_ONCE] = (_checksums(some) == some["checksum"]) & _plausible(some)
    return sound


def parse_rows(data: bytes | memoryview | np.ndarray) -> np.ndarray | None:
    """Return joined rows as ROW, still unchecked, or None when they are not whole rows."""
    flat = np.frombuffer(data, np.uint8)
    return None if flat.size % ROW.itemsize else flat.view(ROW)


def _checksums(rows: np.ndarray) -> np.ndarray:
    data = memoryview(np.ascontiguousarray(rows).view(np.uint8))
    starts = range(0, len(data), ROW.itemsize)
    sums = (checksum(data[at : at + _SUMMED_BYTES]) for at in starts)
    return np.fromiter(sums, np.uint64, len(rows))


def _plausible(rows: np.ndarray) -> np.ndarray:
    good = sound_lanes(rows) & ~rows["value_zero"].any(axis=1)
    good &= (rows["segment"] <= SEGMENT_MAX).all(axis=1)
    good &= (rows["generation"] != 0) & (rows["generation"] < GENERATION_MAX)
    good &= ~np.isnan(rows["heat"])
    there = rows["pages"] != 0
    good &= there[:, 0] & (there[:, :-1] | ~there[:, 1:]).all(axis=1)
    for name in _PLACE:
        good &= (there | (rows[name] == 0)).all(axis=1)
    good &= (~there | ((rows["epoch"] != 0) & (rows["page"] != 0))).all(axis=1)
    ends = rows["page"].astype(np.uint64) + rows["pages"]
    return good & (ends <= np.uint64(1 << 32)).all(axis=1)

"""Keys and values of the catalog: rows, segments, the meta record, keyspaces."""

import struct

import numpy as np
import pytest

from kvd.format.keyspaces import pack_keyspace, parse_keyspace
from kvd.format.page import Reason, Refused
from kvd.format.records import (
    Meta,
    empty_segments,
    pack_meta,
    parse_meta,
    parse_segments,
    seal_segments,
    sound_segments,
)
from kvd.format.rows import (
    KEY_BYTES,
    ROW,
    ROW_KEY,
    empty_rows,
    keys_of,
    lane_of,
    lane_starts,
    parse_rows,
    put_lane,
    seal_rows,
    sound_rows,
)
from kvd.identity import Keyspace, digest_of_keyspace_bytes, keyspace_digest
from kvd.limits import GENERATION_MAX
from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.types import Dtype, Lane, Part, Role, Shard, ShardScheme

LANE = Lane(2, Shard(ShardScheme.HEADS, 3, 8), Part(b"profile!", 5))
META = Meta(4096, (b"a" * 16, b"b" * 16), 20_000, 1 << 40)
SHAPE = BlockShape(
    (
        KvGroup(
            30, (TensorShape(Role.K, 3, 64, Dtype.BF16), TensorShape(Role.V, 3, 64, Dtype.BF16))
        ),
        KvGroup(2, (TensorShape(Role.LATENT, 1, 576, Dtype.FP16),)),
    )
)
KEYSPACE = Keyspace("model", "revision", SHAPE, tokenizer="größer", adapter="a/b")


def some_rows(count: int = 4) -> np.ndarray:
    rows = empty_rows(count)
    put_lane(rows, b"k" * 32, LANE)
    rows["chain"] = np.arange(count)[:, None]
    rows["generation"], rows["profile"], rows["heat"] = 9, 1, -1.5
    rows["root"], rows["segment"], rows["epoch"] = (1, 2, 3), (10, 11, 12), (1, 1, 4)
    rows["page"] = 1 + np.arange(count)[:, None]
    rows["pages"], rows["directory"] = (5, 6, 7), (0, 1, 0)
    return rows


def sealed_rows(count: int = 4) -> np.ndarray:
    rows = some_rows(count)
    seal_rows(rows)
    return rows


def some_segments() -> np.ndarray:
    rows = empty_segments(3)
    rows["directory"], rows["segment"] = (0, 0, 1), (0, 1, 0)
    rows["plane_class"], rows["state"], rows["epoch"] = (0, 1, 2), (1, 2, 3), (1, 2, 3)
    seal_segments(rows)
    return rows


def test_sizes_are_those_of_the_format():
    assert (KEY_BYTES, ROW.itemsize - KEY_BYTES) == (84, 144)
    offsets = {name: ROW.fields[name][1] - KEY_BYTES for name in ROW.names}
    assert offsets["chain"] + KEY_BYTES == 52 and offsets["root"] == 56
    assert offsets["pages"] == 116 and offsets["checksum"] == 136


def test_rows_are_read_back():
    rows = sealed_rows()
    back = parse_rows(rows.tobytes())
    assert (back == rows).all() and sound_rows(back).all()
    assert lane_of(back[1]) == LANE
    keys = keys_of(rows)
    assert keys.dtype == ROW_KEY and keys[2].tobytes() == rows[2].tobytes()[:KEY_BYTES]


def test_lanes_begin_where_keyspace_or_lane_change():
    rows = some_rows(6)
    assert lane_starts(rows).tolist() == [0]
    put_lane(rows[2:5], b"k" * 32, Lane())
    put_lane(rows[5:], b"l" * 32, Lane())
    assert lane_starts(rows).tolist() == [0, 2, 5]
    assert lane_starts(rows[:0]).tolist() == []


def test_every_bit_of_a_row_counts():
    whole = sealed_rows(1).tobytes()
    bits = np.unpackbits(np.frombuffer(whole, np.uint8))
    flipped = np.packbits(bits ^ np.eye(len(bits), dtype=np.uint8), axis=1)
    assert not sound_rows(parse_rows(flipped.tobytes())).any()


def test_what_is_no_whole_rows_is_refused():
    whole = sealed_rows(2).tobytes()
    assert parse_rows(whole[:-1]) is None and parse_segments(b"x" * 25) is None
    assert len(parse_rows(b"")) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key_zero", 1), ("value_zero", 1), ("shard_scheme", 3), ("shard_index", 8),
        ("shard_count", 0), ("generation", 0), ("generation", GENERATION_MAX),
        ("heat", np.nan), ("pages", (0, 0, 0)),
        ("pages", (0, 1, 1)), ("pages", (1, 0, 1)), ("epoch", (1, 0, 1)), ("page", (1, 1, 0)),
        ("pages", (1, 1, 0)), ("segment", (1, 1, 10**8)), ("page", (2**32 - 1, 1, 1)),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_refused_whatever_their_checksum(name, value):
    rows = some_rows(1)
    rows[name] = value
    with pytest.raises(AssertionError):
        seal_rows(rows)
    assert not sound_rows(rows).any()


def test_a_replicated_lane_has_one_shard():
    rows = some_rows(1)
    put_lane(rows, b"k" * 32, Lane())
    rows["shard_count"] = 2
    with pytest.raises(AssertionError):
        seal_rows(rows)


def test_rows_may_lack_their_last_classes():
    rows = some_rows(1)
    for name in ("root", "segment", "epoch", "page", "pages", "directory"):
        rows[name][:, 1:] = 0
    seal_rows(rows)
    assert sound_rows(rows).all()


def test_segments_are_read_back_and_every_bit_of_them_counts():
    rows = some_segments()
    assert sound_segments(parse_segments(rows.tobytes())).all()
    bits = np.unpackbits(np.frombuffer(rows[:1].tobytes(), np.uint8))
    flipped = np.packbits(bits ^ np.eye(len(bits), dtype=np.uint8), axis=1)
    assert not sound_segments(parse_segments(flipped.tobytes())).any()


@pytest.mark.parametrize(
    ("name", "value"),
    [("state", 0), ("state", 4), ("epoch", 0), ("plane_class", 3), ("segment", 10**8)],
)
def test_segments_that_cannot_be_are_refused(name, value):
    rows = some_segments()
    rows[name] = value
    with pytest.raises(AssertionError):
        seal_segments(rows)


def test_the_meta_record_is_read_back():
    for meta in (META, Meta()):
        assert parse_meta(pack_meta(meta)) == meta


def test_a_meta_record_that_cannot_be_is_refused():
    data = pack_meta(META)
    for wrong in (b"", data[:24], data[:-1], data + b"\0", data[:40]):
        assert isinstance(parse_meta(wrong), Refused)
    for at in range(len(data)):
        answer = parse_meta(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert answer.reason == (Reason.FOREIGN if at < 8 else Reason.DAMAGED)


def test_a_mark_behind_which_no_generation_is_left_is_refused():
    assert parse_meta(pack_meta(Meta(GENERATION_MAX))) == Meta(GENERATION_MAX)
    assert isinstance(parse_meta(pack_meta(Meta(GENERATION_MAX + 1))), Refused)


def test_meta_names_each_directory_once():
    with pytest.raises(AssertionError):
        pack_meta(Meta(directories=(b"a" * 16, b"a" * 16)))


def test_a_keyspace_is_read_back_by_its_digest():
    for tenant in ("", "tenant", "größer"):
        digest, data = pack_keyspace(KEYSPACE, tenant)
        assert digest == keyspace_digest(KEYSPACE, tenant)
        assert parse_keyspace(digest, data) == (KEYSPACE, tenant)


def test_every_bit_of_a_keyspace_counts():
    digest, data = pack_keyspace(KEYSPACE, "tenant")
    for at in range(len(data)):
        wrong = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        assert parse_keyspace(digest, wrong).reason == Reason.DAMAGED
    assert parse_keyspace(digest[:-1] + b"x", data).reason == Reason.DAMAGED


U32 = struct.Struct("<I")


def fields_of(*texts: bytes) -> bytes:
    return b"".join(U32.pack(len(text)) + text for text in texts)


def good_fields() -> list[bytes]:
    shape = struct.pack("<8I", 1, 4, 0, 0, 1, Role.K, 2, 8) + U32.pack(Dtype.BF16)
    return [b"t", b"m", b"r", shape, b"", b"c", b"kvd", b"", b"", U32.pack(64)]


@pytest.mark.parametrize(
    ("index", "field"),
    [
        (0, b"\xff"), (3, b""), (3, b"abc"), (3, U32.pack(0)), (3, U32.pack(2**32 - 1)),
        (3, struct.pack("<9I", 1, 4, 0, 0, 1, 9, 2, 8, 1)),  # No such role.
        (3, struct.pack("<9I", 1, 4, 7, 0, 1, 1, 2, 8, 1)),  # No such hit rule.
        (3, struct.pack("<9I", 1, 4, 0, 0, 2**31, 1, 2, 8, 1)),
        (3, struct.pack("<10I", 1, 4, 0, 0, 1, 1, 2, 8, 1, 1)),
        (3, struct.pack("<9I", 1, 4096, 0, 0, 1, 1, 2, 8, 1)),
        (9, b""), (9, b"\0\0\0\0\0"),
    ],
)  # fmt: skip
def test_a_keyspace_that_cannot_be_is_refused_whatever_its_digest(index, field):
    texts = good_fields()
    data = fields_of(*texts)
    assert not isinstance(parse_keyspace(digest_of_keyspace_bytes(data), data), Refused)
    texts[index] = field
    data = fields_of(*texts)
    assert parse_keyspace(digest_of_keyspace_bytes(data), data).reason == Reason.DAMAGED


def test_lengths_that_lie_are_refused_without_being_believed():
    data = fields_of(*good_fields())
    for wrong in (
        data[:-1],
        data + b"\0",
        data + U32.pack(0),
        U32.pack(2**32 - 1) + data,
        b"",
        b"\1",
    ):
        assert parse_keyspace(digest_of_keyspace_bytes(wrong), wrong).reason == Reason.DAMAGED

"""Random values are read back; whatever is flipped, cut or made up is refused or harmless."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.errors import KvdError
from kvd.format.keyspaces import pack_keyspace, parse_keyspace
from kvd.format.page import Refused
from kvd.format.records import Meta, pack_meta, parse_meta
from kvd.format.rows import empty_rows, lane_of, parse_rows, put_lane, seal_rows, sound_rows
from kvd.format.segment import SegmentHead, pack_segment_head, parse_segment_head
from kvd.format.superblock import Superblock, pack_superblock, parse_superblock
from kvd.identity import Keyspace, digest_of_keyspace_bytes, validate_keyspace
from kvd.limits import PAGE_BYTES
from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.types import Dtype, Lane, Part, PlaneClass, Role, Shard, ShardScheme

uuids = st.binary(min_size=16, max_size=16).filter(any)
sizes = st.integers(2, 1 << 28).map(lambda pages: pages * PAGE_BYTES)
superblocks = st.builds(Superblock, uuids, uuids, sizes)
heads = st.builds(
    SegmentHead, uuids, st.integers(0, 10**8 - 1), st.integers(1, 2**32 - 1),
    st.sampled_from(PlaneClass), sizes,
)  # fmt: skip
metas = st.builds(
    Meta, st.integers(0, 2**63 - 1), st.lists(uuids, max_size=255, unique=True).map(tuple),
    st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1),
)  # fmt: skip
tensors = st.builds(
    TensorShape, st.sampled_from([Role.K, Role.V, Role.LATENT]), st.integers(1, 1024),
    st.integers(1, 65_536), st.sampled_from(Dtype),
)  # fmt: skip
groups = st.builds(
    KvGroup, st.integers(1, 1024), st.lists(tensors, min_size=1, max_size=8).map(tuple)
)
texts, names = st.text(), st.text(min_size=1)
keyspaces = st.builds(
    Keyspace, names, names, st.lists(groups, min_size=1, max_size=4).map(
        lambda found: BlockShape(tuple(found))
    ),
    texts, names, names, texts, texts, st.integers(1, 2**16) | st.integers(0, 2**32 - 1),
)  # fmt: skip


def is_valid(keyspace: Keyspace) -> bool:
    try:
        validate_keyspace(keyspace)
    except KvdError:
        return False
    return True


shards = st.integers(1, 0xFFFF).flatmap(
    lambda count: st.builds(
        Shard, st.sampled_from((ShardScheme.HEADS, ShardScheme.LAYERS)),
        st.integers(0, count - 1), st.just(count),
    )
)  # fmt: skip
parts = st.builds(Part, st.binary(min_size=8, max_size=8), st.integers(0, 0xFFFF))
lanes = st.builds(Lane, st.integers(0, 2**32 - 1), shards | st.just(Shard()), parts)
PAGES = (
    (superblocks, pack_superblock, parse_superblock),
    (heads, pack_segment_head, parse_segment_head),
    (metas, pack_meta, parse_meta),
)


def damage(data: bytes, draw: st.DrawFn) -> bytes:
    """Return other bytes: bits flipped, an end cut off, bytes put in, a part from elsewhere."""
    out = bytearray(data)
    kind = draw(st.sampled_from(("flip", "flip", "cut", "grow", "move")))
    at = draw(st.integers(0, len(data) - 1))
    if kind == "flip":
        for _ in range(draw(st.integers(1, 3))):
            out[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    elif kind == "cut":
        del out[at:]
    elif kind == "grow":
        out[at:at] = draw(st.binary(min_size=1, max_size=40))
    else:
        other = draw(st.integers(0, len(data) - 1))
        span = draw(st.integers(1, 64))
        out[at : at + span] = data[other : other + span]
    return bytes(out)


@given(st.data())
@settings(max_examples=300)
def test_pages_and_meta_survive_and_damage_is_refused(data):
    strategy, pack, parse = data.draw(st.sampled_from(PAGES))
    value = data.draw(strategy)
    packed = pack(value)
    assert parse(packed) == value
    wrong = damage(packed, data.draw)
    if wrong != packed:
        assert isinstance(parse(wrong), Refused)


@given(keyspaces, st.text(), st.data())
@settings(max_examples=200)
def test_keyspaces_survive_and_damage_is_refused(keyspace, tenant, data):
    digest, packed = pack_keyspace(keyspace, tenant)
    if is_valid(keyspace):
        assert parse_keyspace(digest, packed) == (keyspace, tenant)
    else:
        assert isinstance(parse_keyspace(digest, packed), Refused)
    wrong = damage(packed, data.draw)
    if wrong != packed:
        assert isinstance(parse_keyspace(digest, wrong), Refused)
    answer = parse_keyspace(digest_of_keyspace_bytes(wrong), wrong)
    if not isinstance(answer, Refused):
        assert pack_keyspace(*answer)[1] == wrong


@given(st.lists(lanes, min_size=1, max_size=6), st.integers(0, 2**32), st.data())
@settings(max_examples=150)
def test_rows_survive_and_damage_is_refused(found, seed, data):
    rng = np.random.default_rng(seed)
    rows = empty_rows(len(found))
    for row, lane in zip(np.split(rows, len(found)), found, strict=True):
        put_lane(row, rng.bytes(32), lane)
    count = rng.integers(1, 4, len(found))[:, None]
    there = np.arange(3) < count
    for name, top in (("root", 2**64), ("segment", 10**8), ("directory", 256)):
        rows[name] = np.where(there, rng.integers(0, top, there.shape, np.uint64), 0)
    for name, top in (("epoch", 2**32), ("page", 2**31), ("pages", 2**31)):
        rows[name] = np.where(there, rng.integers(1, top, there.shape), 0)
    rows["generation"] = rng.integers(1, 2**63 - 1, len(found), np.uint64)
    rows["heat"] = rng.choice((-np.inf, 0.0, 3.5), len(found))
    seal_rows(rows)
    assert sound_rows(parse_rows(rows.tobytes())).all()
    assert [lane_of(row) for row in rows] == found

    wrong = damage(rows.tobytes(), data.draw)
    parsed = parse_rows(wrong)
    if parsed is not None:
        intact = {row.tobytes() for row in rows}
        sound = parsed[sound_rows(parsed)]
        assert {row.tobytes() for row in sound} <= intact

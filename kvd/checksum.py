"""XXH3-64: the one checksum of kvd. The bulk form is a native kernel behind `kvd.codec`."""

import struct

import xxhash

from kvd.types import Lane, PlaneClass

# Chunk key, kv group, shard scheme, class, shard index, shard count, part index, pad (zero),
# part profile, generation, codec profile: what a root binds besides the table.
_ROOT_HEAD = struct.Struct("<16sIBBHHHI8sQQ")


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return XXH3-64 of data, seed 0."""
    return xxhash.xxh3_64_intdigest(data)


def strip_root(
    chunk_key: bytes,
    lane: Lane,
    plane_class: PlaneClass,
    generation: int,
    profile: int,
    table: bytes | memoryview,
) -> int:
    """Bind a strip's table to its place: its bytes under another key, class or generation fail.

    `profile` is the codec profile id, `table` the packed table of all cells of the strip.
    """
    assert len(chunk_key) == 16
    head = _ROOT_HEAD.pack(
        chunk_key, lane.kv_group, lane.shard.scheme, plane_class, lane.shard.index,
        lane.shard.count, lane.part.index, 0, lane.part.profile, generation, profile,
    )  # fmt: skip
    state = xxhash.xxh3_64(head)
    state.update(table)
    return state.intdigest()

"""The small closed sets and value types that every room shares.

Numbers here travel in messages and lie in formats: they are never renumbered.
"""

from dataclasses import dataclass
from enum import IntEnum


class PlaneClass(IntEnum):
    """Planes that travel together, in order of significance; dropped last to first."""

    ANCHOR = 0
    RESIDUAL = 1
    EXACT = 2


CLASS_COUNT = len(PlaneClass)


class Tier(IntEnum):
    HBM = 0
    DRAM = 1
    SSD = 2


class Role(IntEnum):
    """What a tensor of a layer is; K is grouped per channel, the others per token."""

    K = 1
    V = 2
    LATENT = 3
    STATE = 4


class Dtype(IntEnum):
    BF16 = 1
    FP16 = 2
    FP32 = 3
    FP8_E4M3 = 4
    FP8_E5M2 = 5
    INT8 = 6

    @property
    def size_bytes(self) -> int:
        return _DTYPE_SIZES[self]


_DTYPE_SIZES = {
    Dtype.BF16: 2,
    Dtype.FP16: 2,
    Dtype.FP32: 4,
    Dtype.FP8_E4M3: 1,
    Dtype.FP8_E5M2: 1,
    Dtype.INT8: 1,
}


class ShardScheme(IntEnum):
    """How the ranks of one model divide its KV."""

    REPLICATED = 0
    HEADS = 1
    LAYERS = 2


@dataclass(frozen=True, slots=True)
class Shard:
    scheme: ShardScheme = ShardScheme.REPLICATED
    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.index < self.count <= 0xFFFF, self
        assert self.scheme != ShardScheme.REPLICATED or self.count == 1, self


class SegmentState(IntEnum):
    """Of a segment file. Only the strips of a FREE one may be written over, with a higher epoch."""

    FREE = 1
    OPEN = 2
    FULL = 3


PART_ALL = bytes(8)


@dataclass(frozen=True, slots=True)
class Part:
    """The heads of one head class; without a head profile there is one part, `all`."""

    profile: bytes = PART_ALL
    index: int = 0

    def __post_init__(self) -> None:
        assert len(self.profile) == 8 and 0 <= self.index <= 0xFFFF, self


@dataclass(frozen=True, slots=True)
class Lane:
    """Which slice of every chunk is meant: what stays the same along a chain."""

    kv_group: int = 0
    shard: Shard = Shard()
    part: Part = Part()


@dataclass(frozen=True, slots=True)
class Extent:
    """A place in a tier: `size` bytes at `offset` of one slab."""

    slab: int
    offset: int
    size: int

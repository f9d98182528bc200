"""Dram as one daemon leaves it to the next, as plain data: slabs, and what is readable in them."""

from dataclasses import dataclass

import numpy as np

from kvd.core.disk_effects import RowKeys
from kvd.identity import Keyspace
from kvd.types import CLASS_COUNT


@dataclass(frozen=True, slots=True)
class LeftSlab:
    """`orphan`: a process that nobody knows any more may still write into it."""

    slab: int
    tenant: str
    orphan: bool


@dataclass(frozen=True, slots=True)
class LeftRows:
    """n chunks, parents first; `parents`: digest of the chunk before, empty for none.

    `generations`, `profiles` u64[n], `heats` f64[n]; `slabs`, `sizes` u32[n, 3], `offsets`, `roots`
    u64[n, 3]: 0 where the class has no place.
    """

    keys: RowKeys
    parents: list[bytes]
    generations: np.ndarray
    profiles: np.ndarray
    heats: np.ndarray
    slabs: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    roots: np.ndarray

    def __post_init__(self) -> None:
        assert self.slabs.shape == (len(self.parents), CLASS_COUNT)


@dataclass(frozen=True, slots=True)
class LeftDram:
    """`generation`: none above it was given out. No two strips share a byte."""

    generation: int
    slab_bytes: int
    keyspaces: dict[bytes, tuple[Keyspace, str]]
    slabs: tuple[LeftSlab, ...]
    rows: LeftRows

"""What the core asks of disk and catalog. Columns of n entries; each answered by an event.

Addresses in dram are slab and offset, on disk directory, segment, epoch and offset in the file.
"""

from dataclasses import dataclass

import numpy as np

from kvd.identity import Keyspace
from kvd.types import CLASS_COUNT, Lane, PlaneClass, SegmentState


@dataclass(frozen=True, slots=True)
class LaneName:
    """What the chunks of one tree have in common; `cells`: of each strip."""

    keyspace: bytes
    lane: Lane
    cells: int


@dataclass(frozen=True, slots=True)
class StripColumns:
    """n pieces of strips: what their roots bind, and where they lie on disk and in dram.

    `name_of` u32[n] into `names`; `chain`: digest of each chunk; `classes` u8, `generations`,
    `profiles`, `roots` u64; `begins` u32: where the piece begins in its strip, 0 with its table.
    `directories` u8, `segments`, `epochs` u32, `disk_offsets` u64; `slabs` u32, `offsets` u64;
    `sizes` u32 of the piece, whole pages.
    """

    names: tuple[LaneName, ...]
    name_of: np.ndarray
    chain: list[bytes]
    classes: np.ndarray
    generations: np.ndarray
    profiles: np.ndarray
    roots: np.ndarray
    begins: np.ndarray
    directories: np.ndarray
    segments: np.ndarray
    epochs: np.ndarray
    disk_offsets: np.ndarray
    slabs: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray

    @property
    def count(self) -> int:
        return len(self.chain)


@dataclass(frozen=True, slots=True)
class WriteStrips:
    """Write whole strips and sync them; answered by StripsWritten. Their dram stays as it is."""

    batch: int
    strips: StripColumns


@dataclass(frozen=True, slots=True)
class ReadStrips:
    """Read pieces, begun in this order; answered by StripsRead at the latest by the deadline."""

    batch: int
    strips: StripColumns
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class MakeSegment:
    """Make a segment's file with its space; answered by SegmentDone."""

    request: int
    directory: int
    segment: int
    epoch: int
    plane_class: PlaneClass


@dataclass(frozen=True, slots=True)
class RecycleSegment:
    """Give a segment a higher epoch, so that all its strips are stale; answered by SegmentDone."""

    request: int
    directory: int
    segment: int
    epoch: int
    plane_class: PlaneClass


@dataclass(frozen=True, slots=True)
class RemoveSegment:
    """Remove a segment's file; answered by SegmentDone."""

    request: int
    directory: int
    segment: int


@dataclass(frozen=True, slots=True)
class ProbeDirectory:
    """Write and read back the canary of a data directory; answered by Probed."""

    directory: int


@dataclass(frozen=True, slots=True)
class MeasureSpace:
    """Look at the free space; answered by SpaceSeen, or by Probed of a directory that fails."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment as the catalog shall hold it, or held it."""

    directory: int
    segment: int
    plane_class: PlaneClass
    state: SegmentState
    epoch: int


@dataclass(frozen=True, slots=True)
class RowKeys:
    """n chunks by name: `name_of` u32[n] into `names`, `chain` digests."""

    names: tuple[LaneName, ...]
    name_of: np.ndarray
    chain: list[bytes]


@dataclass(frozen=True, slots=True)
class RowColumns:
    """n chunks as the catalog holds them; `parents`: digest of the chunk before, empty for none.

    `generations`, `profiles` u64[n], `heats` f64[n], `roots` u64[n, 3], `directories` u8[n, 3],
    `segments`, `epochs`, `pages` (first page in the file), `page_counts` u32[n, 3]: 0 where the
    class is not on disk, with zeros in its other fields.
    """

    keys: RowKeys
    parents: list[bytes]
    generations: np.ndarray
    profiles: np.ndarray
    heats: np.ndarray
    roots: np.ndarray
    directories: np.ndarray
    segments: np.ndarray
    epochs: np.ndarray
    pages: np.ndarray
    page_counts: np.ndarray

    def __post_init__(self) -> None:
        assert self.page_counts.shape == (len(self.parents), CLASS_COUNT)


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction of the catalog: drops first, then puts; answered by Committed.

    `generation`: every one below it counts as given out. `written`: (day, bytes).
    """

    batch: int
    rows: RowColumns
    dropped: RowKeys
    segments: tuple[SegmentRecord, ...]
    removed_segments: tuple[tuple[int, int], ...]  # (directory, segment)
    keyspaces: tuple[tuple[Keyspace, str], ...]
    generation: int
    written: tuple[int, int]


DiskEffect = (
    WriteStrips | ReadStrips | MakeSegment | RecycleSegment | RemoveSegment | ProbeDirectory
    | MeasureSpace | Commit
)  # fmt: skip

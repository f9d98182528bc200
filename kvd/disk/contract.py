"""What every disk promises: segments by number, strips in and out of memory, and what came of it.

A disk carries out; which segment, which strip, and when is decided elsewhere. Everything is asked
for by a number and answered through one callback, faults included; methods never block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvd.errors import Fault
from kvd.limits import CHUNK_KEY_BYTES, PAGE_BYTES
from kvd.types import Lane, PlaneClass


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A segment as it shall be: `directory` by its number, `epoch` higher than any it had."""

    directory: int
    segment: int
    epoch: int
    plane_class: PlaneClass


@dataclass(frozen=True, slots=True)
class Places:
    """Where n pieces of strips lie on disk and in memory, all in whole pages.

    `directories` u8, `segments` u32, `epochs` u32, `offsets` u64 in the file, `sizes` u32,
    `addresses` u64. The memory stays what and where it is until the piece is reported.
    """

    directories: np.ndarray
    segments: np.ndarray
    epochs: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    addresses: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.sizes)
        assert self.directories.dtype == np.uint8, self.directories.dtype
        for column in (self.segments, self.epochs, self.sizes):
            assert column.dtype == np.uint32 and column.shape == (count,), column
        for column in (self.offsets, self.addresses):
            assert column.dtype == np.uint64 and column.shape == (count,), column
            assert not (column % np.uint64(PAGE_BYTES)).any(), "not at a page"
        assert self.sizes.all() and not (self.sizes % PAGE_BYTES).any(), "not whole pages"
        assert self.offsets.all(), "a segment's first page is its head"

    @property
    def count(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, slots=True)
class Names:
    """What the roots of n strips bind, and the roots.

    `keys` u8[n, 16], `lanes` by `lane_of` u32[n], `classes` u8[n], `generations`, `profiles` and
    `roots` u64[n], `cells` u32[n]: 0 where a piece does not begin with its strip's table, which
    is then not checked.
    """

    keys: np.ndarray
    lanes: tuple[Lane, ...]
    lane_of: np.ndarray
    classes: np.ndarray
    generations: np.ndarray
    profiles: np.ndarray
    cells: np.ndarray
    roots: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.roots)
        assert self.keys.dtype == np.uint8 and self.keys.shape == (count, CHUNK_KEY_BYTES)
        for column in (self.lane_of, self.cells):
            assert column.dtype == np.uint32 and column.shape == (count,), column
        for column in (self.generations, self.profiles, self.roots):
            assert column.dtype == np.uint64 and column.shape == (count,), column
        assert self.classes.dtype == np.uint8 and self.classes.shape == (count,)


@dataclass(frozen=True, slots=True)
class SegmentDone:
    """A segment was made, recycled or dropped, durably; or not, and is as after a crash."""

    request: int
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class StripsWritten:
    """`items` i64[m] of a batch are on disk and synced where `kinds` u8[m] is 0.

    Elsewhere it is a FaultKind, `faults` says each different thing once, and nothing is known of
    the pages. Each item of a batch is reported once, in one or more reports.
    """

    batch: int
    items: np.ndarray
    kinds: np.ndarray
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class StripsRead:
    """`items` i64[m] of a batch lie in memory, all bytes of them, where `kinds` u8[m] is 0.

    Elsewhere the memory holds anything. With `busy` it may yet be written into, until a
    `ReadReleased` of the same items.
    """

    batch: int
    items: np.ndarray
    kinds: np.ndarray
    faults: tuple[Fault, ...]
    busy: bool


@dataclass(frozen=True, slots=True)
class ReadReleased:
    """The memory of items that were reported `busy` is left alone from now on."""

    batch: int
    items: np.ndarray


@dataclass(frozen=True, slots=True)
class Probed:
    """The canary of a directory was written, synced and read back, or why it was not."""

    request: int
    directory: int
    fault: Fault | None


DiskReport = SegmentDone | StripsWritten | StripsRead | ReadReleased | Probed
# Called from any thread, once for each thing asked for (for batches: each item); must not call
# the disk, and must not block.
Report = Callable[[DiskReport], None]


@dataclass(frozen=True, slots=True)
class Space:
    """Of one data directory: `allocated_bytes` are taken, or promised, by everything under it.

    Directories with the same `device` share their `free_bytes`.
    """

    device: int
    free_bytes: int
    allocated_bytes: int


class Segments(Protocol):
    def make_segment(self, request: int, place: SegmentPlace) -> None:
        """Make a segment's file, with its space; answered by SegmentDone, GONE when it is there."""
        ...

    def recycle_segment(self, request: int, place: SegmentPlace) -> None:
        """Give a segment a higher epoch: its strips are stale at once, and its pages free."""
        ...

    def drop_segment(self, request: int, directory: int, segment: int) -> None:
        """Remove a segment's file; one that is not there is no fault."""
        ...


class Disk(Segments, Protocol):
    def write_strips(self, batch: int, places: Places, names: Names) -> None:
        """Write whole strips and sync them; answered by StripsWritten.

        A strip whose table does not match its root is not written: CHECKSUM.
        """
        ...

    def read_strips(
        self, batch: int, places: Places, names: Names | None, deadline_ns: int
    ) -> None:
        """Read pieces of strips, begun in this order; answered by StripsRead, by the deadline.

        A piece of another epoch or of no segment is GONE, one that is not all there is IO.
        """
        ...

    def probe(self, request: int, directory: int) -> None:
        """Write and read back the directory's canary; answered by Probed."""
        ...

    def space(self) -> tuple[Space, ...]:
        """Return what is used and free now, of each directory in order; raise OSError."""
        ...

    def close(self) -> None:
        """Answer what waits CANCELLED, stop within the bound, let go of everything idle."""
        ...

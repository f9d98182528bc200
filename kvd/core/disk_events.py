"""What the core is told of disk and catalog: one report for each thing that it asked for."""

from dataclasses import dataclass

import numpy as np

from kvd.core.disk_effects import RowColumns, SegmentRecord
from kvd.errors import Fault
from kvd.identity import Keyspace


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the catalog held, before anything else happens.

    `generation`: every one below it may have been given out. `written`: (day, bytes). `lost`
    (directory, segment): of `segments`, those without a file. `number`: the highest of a segment
    that anything in the catalog names, what is not believed as well.
    """

    generation: int
    written: tuple[int, int]
    keyspaces: dict[bytes, tuple[Keyspace, str]]
    rows: RowColumns
    segments: tuple[SegmentRecord, ...]
    lost: tuple[tuple[int, int], ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class DayBegan:
    """Days since 1970, of the clock on the wall: once at the start and when it changes."""

    day: int


@dataclass(frozen=True, slots=True)
class SegmentDone:
    """A segment was made, recycled or dropped, durably; or not, and is as after a crash."""

    request: int
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class StripsWritten:
    """`items` i64[m] of a batch are written and synced where `kinds` u8[m] is 0, else FaultKind.

    Each item of a batch is reported once, in one or more reports; `faults` says each thing once.
    """

    batch: int
    items: np.ndarray
    kinds: np.ndarray
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class StripsRead:
    """As StripsWritten; with `busy` the memory may yet be written into until ReadReleased."""

    batch: int
    items: np.ndarray
    kinds: np.ndarray
    faults: tuple[Fault, ...]
    busy: bool


@dataclass(frozen=True, slots=True)
class ReadReleased:
    batch: int
    items: np.ndarray


@dataclass(frozen=True, slots=True)
class Probed:
    """The canary of a data directory came back as it was written, or why it did not."""

    directory: int
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class SpaceSeen:
    """Free bytes for each data directory in order; those of one `device` share theirs."""

    devices: tuple[int, ...]
    free_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """A Commit is durable, all of it; or nothing of it is known to be."""

    batch: int
    fault: Fault | None


DiskEvent = (
    Recovered | DayBegan | SegmentDone | StripsWritten | StripsRead | ReadReleased | Probed
    | SpaceSeen | Committed
)  # fmt: skip

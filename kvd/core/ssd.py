"""What the core knows of the ssd tier, as plain data: directories, segments, and what is under way.

Changed by `segments`, `save`, `commits`, `reclaim` and `load` only.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import numpy as np

from kvd.core.transitions import SEGMENT_MOVES, SegmentLife
from kvd.errors import Fault, FaultKind
from kvd.limits import PAGE_BYTES
from kvd.types import CLASS_COUNT, PlaneClass

# Left for strips that are written again while a segment is cleared, which frees the next one.
SPARE_SEGMENTS = 1
ROWS_MOST = 1 << 30
SEGMENTS_LEAST = CLASS_COUNT + SPARE_SEGMENTS
_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class SsdConfig:
    """`segments_max` of `segment_bytes` each in all `directories`; `daily_write_bytes` 0: no bound.

    `spare_bytes` of each device are left to other programs.
    """

    directories: int
    segment_bytes: int
    segments_max: int
    daily_write_bytes: int = 0
    spare_bytes: int = 0


@dataclass(slots=True)
class Directory:
    """`fault`: why nothing is written there now, until its canary comes back."""

    number: int
    fault: Fault | None = None
    probing: bool = False
    probed_ns: int = 0  # When its canary was last asked for.
    # Rows a strip of which could not be read, by generation: lost if the canary says that all is
    # well, as they will not come right; else it is the directory that cannot be read.
    suspects: dict[int, int] = field(default_factory=dict)
    suspected_ns: int = 0
    probe_at_ns: int = 0
    recovered_batch: int = 0  # The newest batch asked for when its canary last brought it back.
    free_bytes: int | None = None  # None: not looked at yet.
    stands_still_until_ns: int = 0  # After a segment found no space: not before then.


@dataclass(slots=True)
class Segment:
    """`id` is the core's; `rows` have had a strip in it, in the order written, some no more."""

    id: int
    directory: int
    number: int
    epoch: int
    plane_class: PlaneClass
    life: SegmentLife
    end: int = PAGE_BYTES  # Behind the last page given out.
    live_bytes: int = 0
    rows: list[np.ndarray] = field(default_factory=list)
    stripe: int = 0  # While it is open.
    spoiled: bool = False  # Making it failed: of use for nothing, it is there in part or not.
    writing: int = 0  # Strips placed in it that are not durable yet.
    held: int = 0  # Strips of replaced rows, which the catalog names until it hears of the row.

    def all_rows(self) -> np.ndarray:
        """Return i64: each row that may have a strip here, once, as written."""
        if len(self.rows) > 1:
            self.rows = [np.concatenate(self.rows)]
        return self.rows[0] if self.rows else _NO_ROWS


@dataclass(slots=True)
class WriteBatch:
    """Strips on their way to disk, by row and class; `good` turns False where one failed."""

    id: int
    rows: np.ndarray
    generations: np.ndarray
    item_rows: np.ndarray  # Index into `rows` of each item.
    item_classes: np.ndarray
    unreported: int
    good: np.ndarray  # bool of each row.
    condemned: np.ndarray


@dataclass(slots=True)
class ReadBatch:
    """Pieces on their way from disk: `strips` i64 and `bits` u64 of each item."""

    id: int
    strips: np.ndarray
    bits: np.ndarray
    sizes: np.ndarray
    segments: np.ndarray
    waiting: np.ndarray  # bool of each item: not reported, or only as hung.
    left: int  # How many are.


@dataclass(slots=True)
class Journal:
    """What the catalog is to be told next. Sets of rows keep their order in dictionaries."""

    written: dict[int, int] = field(default_factory=dict)  # Row -> generation, all strips on disk.
    changed: dict[int, int] = field(default_factory=dict)  # Row -> generation, which lost a class.
    dropped: dict[tuple[int, bytes], None] = field(default_factory=dict)  # (tree id, chain digest)
    segments: dict[int, None] = field(default_factory=dict)
    removed: dict[tuple[int, int], None] = field(default_factory=dict)
    trees: dict[int, None] = field(default_factory=dict)  # Whose keyspace it may not know.
    released: list[int] = field(default_factory=list)  # Segments no more held by replaced rows.

    def __bool__(self) -> bool:
        """Return whether there is something that a commit would tell, or end."""
        told = self.written or self.changed or self.dropped or self.segments or self.removed
        return bool(told or self.released)


@dataclass(slots=True)
class CommitBatch:
    """One Commit in flight: what it tells, and what its success means."""

    id: int
    journal: Journal
    rows: np.ndarray
    segments: np.ndarray  # u32[n, 3]: where the strips of `rows` lie once it is durable.
    pages: np.ndarray
    freed: list[int]
    held: dict[int, tuple[int, ...]]  # By row: what need not be held once it is durable.
    generation_limit: int
    sent_ns: int


@dataclass(slots=True)
class Wait:
    """A wish that is answered when all `rows` of these generations are durable, or cannot be."""

    request: int
    session: int
    states: np.ndarray
    rows: np.ndarray
    generations: np.ndarray
    deadline_ns: int


@dataclass(slots=True)
class Clearing:
    """A segment on its way to FREE; its `strips` that stay count as read until they are moved."""

    segment: int
    strips: np.ndarray


@dataclass(slots=True)
class Ssd:
    config: SsdConfig
    directories: list[Directory]
    segments_max: int
    segments: dict[int, Segment] = field(default_factory=dict)
    lives: Counter = field(default_factory=Counter)  # Segments by life.
    spoiled: int = 0
    # The open segment of each (stripe, class). Batches go to one stripe after the other; each keeps
    # to a directory of its own as far as it can, so that several drives work at once.
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    stripes: int = 1
    stripe: int = 0  # Of the next batch.
    segment_id: int = 0
    number: int = 0  # Of the newest file; a number is not used again while there are others.
    request_id: int = 0
    changing: dict[int, int] = field(default_factory=dict)  # Request -> segment being changed.
    batch_id: int = 0
    # Rows to be written, in order, each once: row -> (generation, bytes). What is not in dram any
    # more leaves it, so it is bounded by dram, however long nothing can be written (I9).
    queue: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)
    # Rows of the segment being cleared, which go first: what is written again frees the next one.
    moves: dict[int, int] = field(default_factory=dict)  # Row -> generation.
    rest: set[int] = field(default_factory=set)  # Rows that moved and have fresh strips to come.
    queue_since_ns: int = 0  # Since when the first of it waits.
    queued_bytes: int = 0
    refill: bool = False  # What was not saved while the tier was degraded is to be queued.
    write_at_ns: int = 0  # After what was cancelled: nothing is written before then.
    writes: dict[int, WriteBatch] = field(default_factory=dict)
    reads: dict[int, ReadBatch] = field(default_factory=dict)
    reading_bytes: int = 0
    reads_failed: bool = False  # Since those who wait for reads were last told.
    journal: Journal = field(default_factory=Journal)
    commit: CommitBatch | None = None
    commit_rows_max: int = ROWS_MOST  # Of the next commit: fewer where the catalog is nearly full.
    catalog_fault: Fault | None = None
    generation_limit: int = 0  # The catalog, durably, counts all below it as given out.
    map_full: Fault | None = None  # The catalog has no room, until drops have made some.
    map_retry_ns: int = 0
    commit_at_ns: int = 0  # After a failed commit: not before then.
    waits: dict[int, Wait] = field(default_factory=dict)
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)  # Row -> segments that it holds.
    keyspaces_known: set[bytes] = field(default_factory=set)
    clearing: Clearing | None = None
    stuck: bool = False  # Room is wanted, and no segment can be cleared.
    choose_at_ns: int = 0  # No segment was worth clearing: not before then.
    used: Counter = field(default_factory=Counter)  # Bytes on disk or on their way, by tenant.
    # By tenant at its quota: until when, and than which heat, nothing on disk counts as colder.
    coldest: dict[str, tuple[int, float]] = field(default_factory=dict)
    day: int = 0
    written: tuple[int, int] = (0, 0)  # (day, bytes)
    space_at_ns: int = 0

    @property
    def broken(self) -> Fault | None:
        """Return why nothing at all can be written now, or None."""
        if self.catalog_fault is not None:
            return self.catalog_fault
        faults = [directory.fault for directory in self.directories]
        return None if None in faults else faults[0]

    @property
    def fault(self) -> Fault | None:
        """Return why nothing can be made durable now, or None; room may still be made."""
        found = self.broken or self.map_full
        if found is None and self.segments_max < SEGMENTS_LEAST:
            message = f"there is room for {self.segments_max} segments, of {SEGMENTS_LEAST} needed"
            return Fault(FaultKind.NO_SPACE, message)
        return found

    def add(self, segment: Segment) -> None:
        self.segments[segment.id] = segment
        self.lives[segment.life] += 1

    def turn(self, segment: Segment, life: SegmentLife) -> None:
        """Move a segment on in its life; at the end of it, it is forgotten."""
        assert (segment.life, life) in SEGMENT_MOVES, (segment.id, segment.life, life)
        self.lives[segment.life] -= 1
        segment.life = life
        if life == SegmentLife.GONE:
            del self.segments[segment.id]
            self.spoiled -= segment.spoiled
        else:
            self.lives[life] += 1

    def unqueue(self, row: int) -> None:
        """Take a row out of the queue, if it is in it, and off what is to come behind."""
        self.rest.discard(row)
        _, size = self.queue.pop(row, (0, 0))
        self.queued_bytes -= size

    def lessen(self, row: int, size_bytes: int) -> None:
        """Count at most so many bytes of a queued row: a class of it is gone."""
        generation, size = self.queue[row]
        self.queue[row] = generation, min(size, size_bytes)
        self.queued_bytes -= size - min(size, size_bytes)

    def hold(self, row: int, segment: Segment) -> None:
        """Leave a place alone that the catalog may name, until it has heard of the row again."""
        segment.held += 1
        self.held[row] = (*self.held.get(row, ()), segment.id)

    def is_read(self, segment_id: int) -> bool:
        """Return whether pieces of the segment are in flight."""
        return any(
            (batch.waiting & (batch.segments == segment_id)).any() for batch in self.reads.values()
        )

    def next_batch(self) -> int:
        self.batch_id += 1
        return self.batch_id


def stripes_of(config: SsdConfig) -> int:
    """Return for how many batches at a time there are segments of their own."""
    return max(1, min(config.directories, config.segments_max // (2 * CLASS_COUNT)))


def new_ssd(config: SsdConfig) -> Ssd:
    directories = [Directory(number) for number in range(config.directories)]
    return Ssd(config, directories, config.segments_max, stripes=stripes_of(config))

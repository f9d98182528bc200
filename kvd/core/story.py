"""What became of chunks that are not there, or not whole: a bounded memory for `explain`.

Written where things happen, read by kvd.core.explain only; no decision may rest on it.
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum

from kvd.identity import Keyspace
from kvd.types import Lane

CHUNKS_MAX = 32_768  # Of which something is known; the oldest are forgotten first.
NOTES_PER_CHUNK = 4
MISSES_MAX = 256  # Chunks that were missed.


class Why(IntEnum):
    """Why strips went, or never came. Numbers travel in admin messages: never renumbered."""

    ROOM = 1  # Evicted from dram, and it was nowhere else.
    RECLAIMED = 2  # Dropped from every tier, as its segment on disk was cleared.
    CLEARED = 3
    EVICTED = 4  # By an operator.
    WRONG_BYTES = 5  # A reader found that they did not fit their checksum.
    WRONG_ROOT = 6  # The disk's hand found so.
    UNREADABLE = 7
    CAPACITY = 8  # A put found no room.
    GROWING = 9  # A put came while dram was still being made.
    PREFIX_BROKEN = 10  # A put came behind a chunk that was not whole.
    ABORTED = 11
    EXPIRED = 12  # A reservation made no progress in its time.
    SESSION_ENDED = 13  # Before its put was sealed.
    ORPHANED = 14  # Sealed when the chunk before it had gone, or was being moved.
    QUOTA = 15  # A put found its tenant's dram full of what is held.
    SSD_QUOTA = 16  # It left the disk, or never came there: its tenant may have no more there.


@dataclass(frozen=True, slots=True)
class Note:
    """`classes`: this one and those less significant are meant."""

    at_ns: int
    why: Why
    plane_class: int = 0


@dataclass(frozen=True, slots=True)
class Miss:
    """Questions that found less than they asked for: chunk `first` of `asked` is the first missing.

    `before`: digest of the chunk before it, empty at the start of the sequence. All but `times` is
    of the last of them.
    """

    at_ns: int
    tenant: str
    session: int
    digest: bytes
    keyspace: Keyspace
    lane: Lane
    chunk: bytes
    before: bytes
    first: int
    asked: int
    times: int = 1


ChunkName = tuple[bytes, Lane, bytes]  # Keyspace digest, lane, chain digest.


@dataclass(slots=True)
class Story:
    notes: dict[ChunkName, tuple[Note, ...]] = field(default_factory=dict)
    misses: dict[ChunkName, Miss] = field(default_factory=dict)  # The one of longest ago first.
    forgotten_ns: int = -1  # Of chunks that had their last note before, nothing is known.

    def miss(self, miss: Miss) -> None:
        """Remember a miss; who asks again and again takes one place only."""
        name = miss.digest, miss.lane, miss.chunk
        before = self.misses.pop(name, None)
        self.misses[name] = miss if before is None else replace(miss, times=before.times + 1)
        if len(self.misses) > MISSES_MAX:
            del self.misses[next(iter(self.misses))]

    def note(self, name: ChunkName, note: Note) -> None:
        """Add a note; forget the oldest of the chunk, or the chunk that had none for longest."""
        before = self.notes.pop(name, ())
        last = before[-1] if before else None
        if last is not None and (last.at_ns, last.why) == (note.at_ns, note.why):
            before = before[:-1]  # Its classes went one by one: the last says it of all.
        self.notes[name] = (*before[1 - NOTES_PER_CHUNK :], note)
        if len(self.notes) > CHUNKS_MAX:
            oldest = next(iter(self.notes))
            self.forgotten_ns = self.notes.pop(oldest)[-1].at_ns

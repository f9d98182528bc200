"""The states of everything that has a life, and the moves between them, as data.

Diagrams in docs/protocol.md are generated from these tables.
"""

from enum import StrEnum


class SlabState(StrEnum):
    TOUCHING = "touching"  # Being made in the background; not capacity yet.
    IDLE = "idle"  # Nobody may write it.
    OWNED = "owned"  # One open session may write it.
    RECALLING = "recalling"  # Its owner was asked to detach; no new extents.
    ORPHAN = "orphan"  # Its owner's sockets are gone, its mapping may not be.
    GONE = "gone"


SLAB_MOVES = {
    (SlabState.TOUCHING, SlabState.IDLE): "touched",
    (SlabState.TOUCHING, SlabState.GONE): "could not be made",
    (SlabState.IDLE, SlabState.OWNED): "given to a session for writing",
    (SlabState.OWNED, SlabState.RECALLING): "another session has less than its share",
    (SlabState.RECALLING, SlabState.OWNED): "no detach within the bound",
    (SlabState.RECALLING, SlabState.IDLE): "detached",
    (SlabState.OWNED, SlabState.IDLE): "detached",
    (SlabState.OWNED, SlabState.ORPHAN): "session ended",
    (SlabState.RECALLING, SlabState.ORPHAN): "session ended",
    (SlabState.ORPHAN, SlabState.IDLE): "process gone, and no other has its mapping",
    (SlabState.ORPHAN, SlabState.GONE): "nothing readable left in it",
    (SlabState.IDLE, SlabState.GONE): "empty, and another tenant needs the room",
}


class StripState(StrEnum):
    """Where the bytes of a tier are (I3); `free` is the absent strip's place."""

    FREE = "free"
    FILLING = "filling"
    READY = "ready"
    FREEING = "freeing"
    QUARANTINED = "quarantined"


STRIP_MOVES = {
    (StripState.FREE, StripState.FILLING): "reserve",
    (StripState.FILLING, StripState.READY): "seal, or read from disk",
    (StripState.FILLING, StripState.FREE): "abort, unused tail, coalesced, could not be read",
    (StripState.FILLING, StripState.QUARANTINED): "its writer, or a hung read, may still write",
    (StripState.READY, StripState.FREE): "evict",
    (StripState.READY, StripState.FREEING): "replaced while older leases live",
    (StripState.FILLING, StripState.FREEING): "could not be read, and some of it is leased",
    (StripState.QUARANTINED, StripState.FREEING): "the same, once a hung read came back",
    (StripState.FREEING, StripState.FREE): "the last older lease ended",
    (StripState.QUARANTINED, StripState.FREE): "its writer said so, or is gone",
}


class LeaseState(StrEnum):
    GRANTED = "granted"
    LOST = "lost"  # The holder must not read; its extents are not reused yet.
    ENDED = "ended"


LEASE_MOVES = {
    (LeaseState.GRANTED, LeaseState.GRANTED): "renewed by progress",
    (LeaseState.GRANTED, LeaseState.LOST): "no progress in its time, or session ended",
    (LeaseState.GRANTED, LeaseState.ENDED): "released",
    (LeaseState.LOST, LeaseState.ENDED): "views dropped, process gone, or revoked at the bound",
}


class SessionState(StrEnum):
    OPEN = "open"
    DRAINING = "draining"  # Sockets gone; its process may still read and write mappings.
    CLOSED = "closed"


SESSION_MOVES = {
    (SessionState.OPEN, SessionState.DRAINING): "a socket closed",
    (SessionState.DRAINING, SessionState.CLOSED): "process gone, or bounded time passed",
}


class SegmentLife(StrEnum):
    MAKING = "making"
    OPEN = "open"  # Strips are appended.
    FULL = "full"
    CLEARING = "clearing"  # What is worth it is written elsewhere, the rest is dropped.
    FREE = "free"  # The catalog, durably, names nothing in it.
    RECYCLING = "recycling"
    REMOVING = "removing"
    GONE = "gone"


SEGMENT_MOVES = {
    (SegmentLife.MAKING, SegmentLife.OPEN): "its file is there",
    (SegmentLife.MAKING, SegmentLife.FREE): "could not be made; what there is of it is removed",
    (SegmentLife.OPEN, SegmentLife.FULL): "no room for the next strip, or a write failed",
    (SegmentLife.FULL, SegmentLife.CLEARING): "least valuable when room is needed",
    (SegmentLife.CLEARING, SegmentLife.FREE): "the commit that drops its last strip is durable",
    (SegmentLife.FREE, SegmentLife.RECYCLING): "to be written over",
    (SegmentLife.RECYCLING, SegmentLife.OPEN): "its head has a higher epoch",
    (SegmentLife.RECYCLING, SegmentLife.FREE): "its head could not be written",
    (SegmentLife.FREE, SegmentLife.REMOVING): "more than the budget or the file system allows",
    (SegmentLife.REMOVING, SegmentLife.GONE): "its file is removed",
    (SegmentLife.REMOVING, SegmentLife.FREE): "its file could not be removed",
}

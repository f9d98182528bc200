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
    (SlabState.ORPHAN, SlabState.IDLE): "process gone",
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
    (StripState.FILLING, StripState.READY): "seal",
    (StripState.FILLING, StripState.FREE): "abort, unused tail, coalesced",
    (StripState.FILLING, StripState.QUARANTINED): "its writer may still write",
    (StripState.READY, StripState.FREE): "evict",
    (StripState.READY, StripState.FREEING): "replaced while older leases live",
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

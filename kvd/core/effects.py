"""What the core asks for: imperatives for the hands and answers for the clients.

Hands carry them out in the order given. An effect never fails silently: what can fail comes back
as an event.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from kvd.core.disk_effects import DiskEffect
from kvd.errors import KvdError
from kvd.types import CLASS_COUNT

# ---- slabs ----


@dataclass(frozen=True, slots=True)
class CreateSlab:
    """Make and touch one slab in the background; answered by SlabTouched or SlabFailed."""

    slab: int
    size: int


@dataclass(frozen=True, slots=True)
class DestroySlab:
    """Forget a slab: no session is told of it again; mappings live as long as their processes."""

    slab: int


@dataclass(frozen=True, slots=True)
class GiveSlab:
    """Send a descriptor of `slab`; a read-only one cannot be made writable by its receiver."""

    session: int
    slab: int
    writable: bool


@dataclass(frozen=True, slots=True)
class RecallSlab:
    session: int
    slab: int


@dataclass(frozen=True, slots=True)
class DropSlab:
    """Tell the session to unmap: nothing in `slab` will be named to it again."""

    session: int
    slab: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Advance the session's revoke counter; carried out before anything later in the list."""

    session: int
    counter: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    session: int
    error: KvdError


# ---- answers ----


class ReserveState(IntEnum):
    HAVE = 1
    RESERVED = 2
    REPLACE = 3
    NOT_ADMITTED = 4


class NotAdmitted(IntEnum):
    NONE = 0
    CAPACITY = 1
    PREFIX_BROKEN = 2
    GROWING = 3
    QUOTA = 4  # The tenant holds all that it may, and nothing of it can go now.


class SealState(IntEnum):
    SEALED = 1
    COALESCED = 2
    SKIPPED = 3
    ORPHANED = 4


class Shortfall(IntEnum):
    NONE = 0
    NOT_STORED = 1
    CONDEMNED = 2
    NO_ROOM = 3  # No place in dram to read the rest into.
    READ_FAILED = 4


# In place of a number of pieces: all of each strip.
WHOLE = 255
WHOLES = (WHOLE, WHOLE, WHOLE)


@dataclass(frozen=True, slots=True)
class KeyspaceGranted:
    keyspace: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Reserved:
    """`states` u8[n], `slabs` u32[n, 3], `offsets` u64[n, 3]; reservation 0: nothing to fill."""

    reservation: int
    generation: int
    states: np.ndarray
    slabs: np.ndarray
    offsets: np.ndarray
    reason: NotAdmitted


@dataclass(frozen=True, slots=True)
class Sealed:
    """`durable`: all of them are on disk, or were before; False also where nobody asked for it."""

    states: np.ndarray
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Aborted:
    pass


@dataclass(frozen=True, slots=True)
class Found:
    """`counts` per class: never growing from anchor to exact (I6)."""

    counts: tuple[int, int, int]
    lease: int


@dataclass(frozen=True, slots=True)
class LaneColumns:
    """Where the promised strips of one lane lie. Per class c the first counts[c] entries count.

    generations, profiles: u64[counts[0]]; slabs u32, offsets u64, sizes u32, roots u64:
    one array per class, of counts[c] entries.
    """

    generations: np.ndarray
    profiles: np.ndarray
    slabs: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...]
    sizes: tuple[np.ndarray, ...]
    roots: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        assert len(self.slabs) == len(self.offsets) == len(self.sizes) == CLASS_COUNT


@dataclass(frozen=True, slots=True)
class Promise:
    """What will be there. `ready` per class: so many leading pieces of each strip are, or WHOLE."""

    lease: int
    counts: tuple[int, int, int]
    lanes: tuple[LaneColumns, ...]
    reason: Shortfall
    lease_ttl_ns: int
    ready: tuple[int, int, int] = WHOLES


@dataclass(frozen=True, slots=True)
class FetchDone:
    """All is there, but for chunks behind `counts`, for `reason`; counts only where it is not NONE.

    A class with less than was promised holds only those chunks; I6 holds among them too.
    """

    delivered_bytes: int
    counts: tuple[int, int, int] = (0, 0, 0)
    reason: Shortfall = Shortfall.NONE


@dataclass(frozen=True, slots=True)
class Cleared:
    """`chunks` are gone, also from disk; `held` are still read, and are not offered any more."""

    chunks: int
    held: int


@dataclass(frozen=True, slots=True)
class Released:
    pass


@dataclass(frozen=True, slots=True)
class Renewed:
    lease_ttl_ns: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """So many strips left dram; `more`: there are others that may."""

    strips: int
    size_bytes: int
    more: bool


@dataclass(frozen=True, slots=True)
class Pinned:
    pin: int
    counts: tuple[int, int, int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Unpinned:
    pass


Outcome = (
    KeyspaceGranted | Reserved | Sealed | Aborted | Found
    | FetchDone | Released | Renewed | Cleared | Evicted | Pinned | Unpinned | KvdError
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """The one final answer of a wish (I10)."""

    request: int
    session: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Tell:
    """A fetch's promise; more answers follow."""

    request: int
    session: int
    promise: Promise


@dataclass(frozen=True, slots=True)
class TellReady:
    """More of a promise is there: `ready` as in Promise, never less than before."""

    request: int
    session: int
    ready: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LeaseLost:
    session: int
    lease: int


@dataclass(frozen=True, slots=True)
class TellDraining:
    session: int


# ---- byte delivery ----


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send the promised strips as pieces; answered by DeliveryMoved and one DeliveryEnded."""

    request: int
    session: int
    counts: tuple[int, int, int]
    lanes: tuple[LaneColumns, ...]
    layer_begin: int
    layer_end: int
    layers: tuple[int, ...] = field(default=())  # Of each lane: how many its strips hold.
    cells_per_layer: tuple[int, ...] = field(default=())
    rate_bits: int = 0
    ready: tuple[int, int, int] = WHOLES  # A class is sent once it is WHOLE.


@dataclass(frozen=True, slots=True)
class DeliverMore:
    """More of what a Deliver names is there; `ready` as in Promise."""

    request: int
    ready: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class StopDelivery:
    """No more pieces; still answered by DeliveryEnded, so that the extents are known to be idle."""

    request: int


Effect = (
    CreateSlab | DestroySlab | GiveSlab | RecallSlab | DropSlab | Revoke | CloseSession
    | Answer | Tell | TellReady | LeaseLost | TellDraining | Deliver | DeliverMore | StopDelivery
    | DiskEffect
)  # fmt: skip

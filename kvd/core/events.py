"""What the core can be told: everything that happens outside it, as frozen values.

Past tense for what a hand did, `Wanted` for a wish of a client. A wish carries the request id
that its one final answer will carry (I10). Columns are numpy arrays or joined digests.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kvd.core.disk_events import DiskEvent
from kvd.core.dram import LeftDram
from kvd.core.operator_events import OperatorWish
from kvd.errors import Fault
from kvd.identity import Keyspace
from kvd.types import Lane


class Delivery(IntEnum):
    MAP = 0
    BYTES = 1


# ---- slabs ----


@dataclass(frozen=True, slots=True)
class Started:
    """The daemon is up; dram may grow."""


@dataclass(frozen=True, slots=True)
class SlabTouched:
    """The arena made `slab` and touched it once: its bytes are capacity now."""

    slab: int


@dataclass(frozen=True, slots=True)
class SlabFailed:
    slab: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class SlabDetached:
    """The session has no writable mapping of `slab` any more, and says so."""

    session: int
    slab: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """Dram that a daemon before left, after Recovered; strips whose root does not fit are out.

    Its slabs are the arena's.
    """

    dram: LeftDram


# ---- sessions ----


@dataclass(frozen=True, slots=True)
class SessionOpened:
    session: int
    tenant: str


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A socket of the session closed. Its process may be alive, and may still write."""

    session: int


@dataclass(frozen=True, slots=True)
class ProcessGone:
    """The pidfd fired: this session's process has no mapping any more.

    `written`: slabs given to it that another process may write still, as a child does that was
    forked with the mapping. Told again whenever they become less.
    """

    session: int
    written: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class DrainStarted:
    pass


@dataclass(frozen=True, slots=True)
class DrainEnded:
    """All sessions have ended, and dram may go to another daemon: who still reads is to see it."""


# ---- wishes ----


@dataclass(frozen=True, slots=True)
class KeyspaceWanted:
    request: int
    session: int
    keyspace: Keyspace


@dataclass(frozen=True, slots=True)
class ReserveWanted:
    """Places for the chunks of `chain` (n x 32 bytes) behind `parent` (32 bytes or empty).

    `sizes` u32[n, 3]: upper bound of each strip, whole pages. `durable`: Seal shall be answered
    once the chunks are on disk.
    """

    request: int
    session: int
    keyspace: int
    lane: Lane
    parent: bytes
    chain: bytes
    sizes: np.ndarray
    durable: bool = False


@dataclass(frozen=True, slots=True)
class SealWanted:
    """Make n chunks from `first` of the reservation visible.

    `sizes` u32[n, 3], whole pages, at most what was reserved; `roots` u64[n, 3]. What was
    reserved as durable is answered by `deadline_ns`, on disk by then or not.
    """

    request: int
    session: int
    reservation: int
    first: int
    sizes: np.ndarray
    roots: np.ndarray
    profile: int
    last: bool
    deadline_ns: int = 0


@dataclass(frozen=True, slots=True)
class AbortWanted:
    request: int
    session: int
    reservation: int


@dataclass(frozen=True, slots=True)
class LookupWanted:
    request: int
    session: int
    keyspace: int
    lanes: tuple[Lane, ...]
    chain: bytes
    lease: bool


@dataclass(frozen=True, slots=True)
class FetchWanted:
    """The longest prefix per class; `layer_end` 0 means all layers; `lease` 0 means none held."""

    request: int
    session: int
    keyspace: int
    lanes: tuple[Lane, ...]
    chain: bytes
    class_count: int
    layer_begin: int
    layer_end: int
    delivery: Delivery
    rate_bits: int
    lease: int
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class PrefetchWanted:
    """Bring what is only on disk of the longest prefix to dram; answered Found, at once."""

    request: int
    session: int
    keyspace: int
    lanes: tuple[Lane, ...]
    chain: bytes
    class_count: int


@dataclass(frozen=True, slots=True)
class ClearWanted:
    """Forget all chunks of a keyspace; answered Cleared, once that is durable."""

    request: int
    session: int
    keyspace: int
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class ReleaseWanted:
    """`corrupt` u32[m]: lane << 24 | chunk of strips whose bytes failed the reader's check."""

    request: int
    session: int
    lease: int
    corrupt: np.ndarray


@dataclass(frozen=True, slots=True)
class RenewWanted:
    request: int
    session: int
    lease: int


@dataclass(frozen=True, slots=True)
class CancelWanted:
    """The client gives up the wish `request`; it is answered LATE or was answered already."""

    request: int
    session: int


@dataclass(frozen=True, slots=True)
class DeliveryMoved:
    """Byte delivery made progress; it renews the lease."""

    request: int


@dataclass(frozen=True, slots=True)
class DeliveryEnded:
    """All pieces were handed to the socket (`fault` is None), or no more will be.

    `broken`: lane and chunk of a strip that has no table, which no reader can report.
    """

    request: int
    delivered_bytes: int
    fault: Fault | None
    broken: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed; deadlines, leases and quarantines are looked at."""


Event = (
    Started | SlabTouched | SlabFailed | SlabDetached | Adopted
    | SessionOpened | SessionEnded | ProcessGone | DrainStarted | DrainEnded
    | KeyspaceWanted | ReserveWanted | SealWanted | AbortWanted
    | LookupWanted | FetchWanted | ReleaseWanted | RenewWanted | CancelWanted
    | PrefetchWanted | ClearWanted | DeliveryMoved | DeliveryEnded | Ticked | DiskEvent
    | OperatorWish
)  # fmt: skip

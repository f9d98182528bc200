"""What the SDK's verbs answer: plain frozen values. Outcomes, not errors: a miss raises nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from kvd.errors import ErrorKind, KvdError
from kvd.types import PlaneClass


class Delivery(IntEnum):
    """How the bytes of a fetch come: in slabs that are mapped, or as pieces on the stream."""

    MAP = 0
    BYTES = 1


class Reason(StrEnum):
    """Why there is less than was asked for."""

    NONE = ""
    NOT_STORED = "not stored"
    CONDEMNED = "condemned: a reader found bytes that fail their checksum"
    CAPACITY = "no place in the daemon's memory"
    PREFIX_BROKEN = "the chunk before is not stored"
    GROWING = "the daemon is still growing its memory"
    QUOTA = "the tenant's quota of the daemon's memory is full of what is in use"
    ORPHANED = "the chunk before went away during the put"
    DISCONNECTED = "no daemon is connected"
    LATE = "the deadline passed"
    LOST = "the lease or the session is gone"
    OVERLOADED = "a bound of the daemon or of the client is reached"
    UNAVAILABLE = "the daemon does not serve now"
    INCOMPATIBLE = "client and daemon do not fit together"
    DENIED = "the daemon denies it"
    CORRUPT = "bytes failed their checksum"
    NO_ROOM = "no place in the daemon's memory to read the rest into"
    READ_FAILED = "the daemon could not read it from its disk"


_REASONS = {
    ErrorKind.DENIED: Reason.DENIED,
    ErrorKind.INCOMPATIBLE: Reason.INCOMPATIBLE,
    ErrorKind.OVERLOADED: Reason.OVERLOADED,
    ErrorKind.LATE: Reason.LATE,
    ErrorKind.LOST: Reason.LOST,
    ErrorKind.UNAVAILABLE: Reason.UNAVAILABLE,
    ErrorKind.CORRUPT: Reason.CORRUPT,
}


def reason_of(error: KvdError) -> Reason:
    """Return why something is missing, or raise the error when the caller made a mistake."""
    if error.kind == ErrorKind.INVALID:
        raise error
    return _REASONS[error.kind]


@dataclass(frozen=True, slots=True)
class Stored:
    """Chunks of one put: newly stored, already there, and refused for `reason`.

    `durable`: all of them are on disk and come back after a crash; only ever with durability
    "disk". Without it and with nothing refused, they may get there later.
    """

    stored: int
    had: int
    refused: int
    reason: Reason
    size_bytes: int
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Chunks found per class, anchor to exact, never growing; `lease` is 0 without one."""

    counts: tuple[int, int, int]
    lease: int = 0
    reason: Reason = Reason.NONE


@dataclass(frozen=True, slots=True)
class Cleared:
    """Chunks forgotten for good, and those that go with their last reader; or `reason` why not."""

    chunks: int
    held: int
    reason: Reason = Reason.NONE


@dataclass(frozen=True, slots=True)
class Arrival:
    """These layers of this class have arrived for all chunks that the fetch counts of it.

    So have those of the classes before: they can be decoded.
    """

    plane_class: PlaneClass
    layer_begin: int
    layer_end: int


ArrivalCallback = Callable[[Arrival], None]


@dataclass(slots=True)
class Counters:
    """Sums since the client was made; written without a lock, so good to a count or two."""

    connects: int = 0
    lookups: int = 0
    prefetches: int = 0
    fetches: int = 0
    puts: int = 0
    chunks_stored: int = 0
    chunks_had: int = 0
    stored_bytes: int = 0
    delivered_bytes: int = 0
    decoded_chunks: int = 0
    checksum_failures: int = 0
    compared_chunks: int = 0
    differing_chunks: int = 0
    leases_lost: int = 0
    misses: dict[str, int] = field(default_factory=dict)

    def miss(self, reason: Reason) -> None:
        self.misses[reason.name] = self.misses.get(reason.name, 0) + 1


@dataclass(frozen=True, slots=True)
class Status:
    """`reason` is empty while connected, else one line with what to do; epoch 0: never met.

    `draining` says that the daemon takes leave; `slab_failure` is one line about memory that could
    not be mapped, if any.
    """

    connected: bool
    reason: str
    epoch: int
    daemon: str
    draining: bool
    slab_failure: str
    counters: Counters

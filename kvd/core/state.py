"""All that the daemon knows, as plain data. Only the handlers of this room change it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kvd.core.counts import Counts
from kvd.core.effects import WHOLES
from kvd.core.events import FetchWanted
from kvd.core.extents import ExtentMap
from kvd.core.index import Index, Tree
from kvd.core.quotas import Quota, check_quotas, slabs_by_group
from kvd.core.ssd import Ssd, SsdConfig, new_ssd
from kvd.core.story import Story
from kvd.core.transitions import (
    LEASE_MOVES,
    SESSION_MOVES,
    SLAB_MOVES,
    STRIP_MOVES,
    LeaseState,
    SessionState,
    SlabState,
    StripState,
)
from kvd.identity import Keyspace
from kvd.limits import PAGE_BYTES, Limits
from kvd.types import Extent


@dataclass(frozen=True, slots=True)
class CoreConfig:
    dram_bytes: int
    limits: Limits = field(default_factory=Limits)
    ssd: SsdConfig | None = None
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # By tenant; not changed later.

    def __post_init__(self) -> None:
        """Raise INVALID for quotas that cannot be kept."""
        assert self.dram_bytes >= PAGE_BYTES, self.dram_bytes
        check_quotas(self.quotas, self.slab_count, self.slab_bytes, self.ssd)

    @property
    def slab_bytes(self) -> int:
        # With ssd, what is read from it needs slabs of its own beside those of writers.
        most = self.dram_bytes // (4 if self.ssd else 1)
        return min(self.limits.slab_bytes, max(1, most // PAGE_BYTES) * PAGE_BYTES)

    @property
    def slab_count(self) -> int:
        return self.dram_bytes // self.slab_bytes


@dataclass(slots=True)
class Slab:
    """`ready` and `filling` count bytes; whatever is in neither, nor free, may not be reused."""

    id: int
    size: int
    extents: ExtentMap
    state: SlabState = SlabState.TOUCHING
    tenant: str = ""  # Whose bytes it has held: once given, for its whole life.
    owner: int = 0  # The session that writes or wrote it.
    recall_until_ns: int = 0
    recall_refused: bool = False
    kept_for: int = 0  # The session it was asked back for, and none else before `kept_until_ns`.
    kept_until_ns: int = 0
    bytes_by_state: dict[StripState, int] = field(
        default_factory=lambda: {s: 0 for s in StripState if s != StripState.FREE}
    )

    def become(self, state: SlabState) -> None:
        assert (self.state, state) in SLAB_MOVES, (self.id, self.state, state)
        self.state = state

    @property
    def readable_bytes(self) -> int:
        """Return the bytes that a reader may still be told of, or be reading."""
        return sum(
            self.bytes_by_state[s]
            for s in (StripState.FILLING, StripState.READY, StripState.FREEING)
        )


@dataclass(slots=True)
class Reservation:
    """Extents that one session fills. Columns by chunk of the wish; `open`: still filling."""

    id: int
    session: int
    tree: Tree
    chain: list[bytes]
    parent: int
    generation: int
    open: np.ndarray
    slabs: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    expires_ns: int
    pinned: int  # The row held until the end, or NO_ROW.
    durable: bool = False
    lost: bool = False  # Its time passed: its extents are quarantined until its writer answers.


@dataclass(slots=True)
class Lease:
    """`pins`: the (row, class) at the end of each promised prefix; ancestors follow from them.

    `reads` i64: strips whose places in dram it was told.
    """

    id: int
    session: int
    pins: list[tuple[int, int]]
    size_bytes: int
    reads: np.ndarray
    expires_ns: int
    sealed_at: int  # The last seal there was when it was granted.
    state: LeaseState = LeaseState.GRANTED
    deliveries: int = 0  # Transfers by the daemon itself that still read under it.
    free_at_ns: int = 0  # When LOST: the end of quarantine.
    released: bool = False  # By its holder, while the daemon itself still read.

    def become(self, state: LeaseState) -> None:
        assert (self.state, state) in LEASE_MOVES, (self.id, self.state, state)
        self.state = state


@dataclass(slots=True)
class Session:
    id: int
    tenant: str
    state: SessionState = SessionState.OPEN
    keyspaces: dict[int, tuple[bytes, Keyspace]] = field(default_factory=dict)
    slabs_known: set[int] = field(default_factory=set)
    slabs_owned: list[int] = field(default_factory=list)
    leases: set[int] = field(default_factory=set)
    reservations: set[int] = field(default_factory=set)
    requests: set[int] = field(default_factory=set)
    lease_bytes: int = 0
    put_ns: int = 0  # When it last got places to fill.
    revoke_count: int = 0
    close_at_ns: int = 0  # When DRAINING.

    def become(self, state: SessionState) -> None:
        assert (self.state, state) in SESSION_MOVES, (self.id, self.state, state)
        self.state = state


@dataclass(frozen=True, slots=True)
class Limbo:
    """Strips replaced while leases lived; freed once the tenant's up to `after_lease` ended."""

    tenant: str
    after_lease: int
    extents: tuple[Extent, ...]


@dataclass(slots=True)
class Pending:
    """A fetch that is not answered yet (I10): `strips` per class and lane may still be on disk."""

    request: int
    session: int
    lease: int
    deadline_ns: int
    mapped: bool = False
    strips: tuple[tuple[np.ndarray, ...], ...] = ()
    ready: tuple[int, int, int] = WHOLES
    cut: bool = False  # A read failed: what is left of the promise is `counts`.
    counts: tuple[int, int, int] = (0, 0, 0)
    left: int = 0  # What is missing, as a sum: it falls with every piece that comes.


@dataclass(slots=True)
class Clear:
    """A keyspace being forgotten: rows that are left to drop, deepest last."""

    request: int
    session: int | None  # None: who asked for it is gone, or was told that it is late.
    deadline_ns: int
    rows: np.ndarray
    generations: np.ndarray
    chunks: int = 0
    held: int = 0
    untold: bool = True  # The catalog may not have forgotten all of it, durably.
    commit: int = 0  # The one that tells the rest.


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that an operator holds: `pins` (row, class) at its ends, `reads` i64 its strips."""

    id: int
    tenant: str
    digest: bytes  # Of the keyspace.
    chunk: bytes  # The last one.
    counts: tuple[int, int, int]
    pins: list[tuple[int, int]]
    reads: np.ndarray
    size_bytes: int
    at_ns: int


@dataclass(slots=True)
class State:
    config: CoreConfig
    epoch: int
    rng: np.random.Generator
    now_ns: int = 0
    index: Index = field(default_factory=Index)
    counts: Counts = field(default_factory=Counts)
    slabs: dict[int, Slab] = field(default_factory=dict)
    slabs_max: dict[str, int] = field(default_factory=dict)  # By group, see `shares`.
    sessions: dict[int, Session] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)  # By id, so oldest first.
    lease_due: list[tuple[int, int]] = field(default_factory=list)  # Heap of (when, lease id).
    # Extents that a session's process may still write, by session; outlives the session's record.
    quarantine: dict[int, list[Extent]] = field(default_factory=dict)
    ssd: Ssd | None = None
    # The daemon's own session of each tenant, which owns the slabs that strips are read into.
    own_sessions: dict[str, int] = field(default_factory=dict)
    delivering: dict[int, int] = field(default_factory=dict)  # Request -> lease, until it ended.
    pending: dict[int, Pending] = field(default_factory=dict)
    # Fetches put off while dram grows, and until when, by request.
    postponed: dict[int, tuple[FetchWanted, int]] = field(default_factory=dict)
    limbo: list[Limbo] = field(default_factory=list)
    clears: list[Clear] = field(default_factory=list)
    story: Story = field(default_factory=Story)
    pins: dict[int, Pin] = field(default_factory=dict)
    generation: int = 0
    seals: int = 0  # Of runs of chunks, in this life.
    lease_id: int = 0
    reservation_id: int = 0
    slab_id: int = 0
    pin_id: int = 0
    touching: int = 0  # The slab being made, or 0.
    retry_touch_ns: int = 0  # After a failure: not before then.
    draining: bool = False

    def bytes_in(self, strip_state: StripState) -> int:
        """Return the dram bytes in one state; all states together are the capacity (I3)."""
        slabs = (s for s in self.slabs.values() if s.state != SlabState.TOUCHING)
        if strip_state == StripState.FREE:
            return sum(s.extents.free_bytes for s in slabs)
        return sum(s.bytes_by_state[strip_state] for s in slabs)

    @property
    def capacity_bytes(self) -> int:
        return sum(s.size for s in self.slabs.values() if s.state != SlabState.TOUCHING)


def new_state(config: CoreConfig, epoch: int) -> State:
    """Return the state of a daemon that has just begun; `epoch` also seeds its choices."""
    ssd = None if config.ssd is None else new_ssd(config.ssd)
    rng = np.random.Generator(np.random.PCG64(epoch))
    slabs_max = slabs_by_group(config.quotas, config.slab_count, config.slab_bytes)
    return State(config, epoch, rng, ssd=ssd, slabs_max=slabs_max)


def move_bytes(state: State, extent: Extent, source: StripState, target: StripState) -> None:
    """Account one extent's move between states, and take it from or give it to the free space."""
    assert (source, target) in STRIP_MOVES, (source, target)
    slab = state.slabs[extent.slab]
    if source != StripState.FREE:
        slab.bytes_by_state[source] -= extent.size
        assert slab.bytes_by_state[source] >= 0, (slab.id, source)
    if target == StripState.FREE:
        slab.extents.give(extent.offset, extent.size)
    else:
        slab.bytes_by_state[target] += extent.size

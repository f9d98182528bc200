"""What is there, counted for people: read from the state, changing nothing.

A few numpy passes over all rows: for a question now and then, not for every request.
"""

from dataclasses import dataclass

import numpy as np

from kvd.core.explain import Finding, explain_miss
from kvd.core.index import Tree
from kvd.core.slabs import is_own
from kvd.core.state import Session, State
from kvd.core.story import Miss
from kvd.core.transitions import SegmentLife, StripState
from kvd.identity import Keyspace
from kvd.types import CLASS_COUNT, Lane, Tier


@dataclass(frozen=True, slots=True)
class Held:
    """Strips and bytes of each class."""

    strips: tuple[int, ...] = (0,) * CLASS_COUNT
    sizes: tuple[int, ...] = (0,) * CLASS_COUNT


@dataclass(frozen=True, slots=True)
class DirectoryCensus:
    number: int
    free_bytes: int
    fault: str


@dataclass(frozen=True, slots=True)
class TierCensus:
    """`states` in bytes (I3) of dram, `segments` by their life of ssd."""

    tier: Tier
    capacity_bytes: int
    limit_bytes: int
    held: Held
    tenants: dict[str, Held]
    states: dict[str, int]
    segments: dict[str, int]
    directories: tuple[DirectoryCensus, ...]
    waiting_bytes: int
    reading_bytes: int
    fault: str


@dataclass(frozen=True, slots=True)
class SessionCensus:
    session: int
    tenant: str
    state: str
    requests: int
    leases: int
    lease_bytes: int
    reservations: int
    slabs: int
    keyspaces: int


@dataclass(frozen=True, slots=True)
class KeyspaceCensus:
    digest: bytes
    tenant: str
    keyspace: Keyspace | None
    lanes: tuple[Lane, ...]
    chunks: int
    dram: Held
    ssd: Held


@dataclass(frozen=True, slots=True)
class PinCensus:
    """`chunk`: digest of the last one that is held."""

    pin: int
    tenant: str
    keyspace: bytes
    chunk: bytes
    counts: tuple[int, int, int]
    size_bytes: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    state: str
    sessions: int
    leases: int
    reservations: int
    fetches_waiting: int
    pins: int
    generation: int
    keyspaces: int


def summarize(state: State) -> Summary:
    name = "draining" if state.draining else "growing" if state.touching else "ready"
    return Summary(
        name,
        sum(not is_own(number) for number in state.sessions),
        len(state.leases),
        len(state.reservations),
        len(state.pending) + len(state.postponed),
        len(state.pins),
        state.generation,
        len({tree.digest for tree in state.index.trees if tree.rows}),
    )


def count_tiers(state: State) -> tuple[TierCensus, ...]:
    """Return dram, and ssd where there is one."""
    found = [_count_dram(state)]
    if state.ssd is not None:
        found.append(_count_ssd(state))
    return tuple(found)


def _count_dram(state: State) -> TierCensus:
    index = state.index
    held, tenants = _by_tenant(state, (index.slab != 0) & (index.missing == 0))
    states = {each.value: state.bytes_in(each) for each in StripState}
    return TierCensus(
        Tier.DRAM, state.capacity_bytes, state.config.dram_bytes, held, tenants, states, {}, (),
        0, 0, "",
    )  # fmt: skip


def _count_ssd(state: State) -> TierCensus:
    ssd = state.ssd
    assert ssd is not None
    held, tenants = _by_tenant(state, state.index.segment != 0)
    directories = tuple(
        DirectoryCensus(d.number, d.free_bytes or 0, d.fault.message if d.fault else "")
        for d in ssd.directories
    )
    size = ssd.config.segment_bytes
    segments = {life.value: ssd.lives[life] for life in SegmentLife if life != SegmentLife.GONE}
    return TierCensus(
        Tier.SSD, ssd.segments_max * size, ssd.config.segments_max * size, held, tenants, {},
        segments, directories, ssd.queued_bytes, ssd.reading_bytes,
        ssd.fault.message if ssd.fault else "",
    )  # fmt: skip


def _by_tenant(state: State, there: np.ndarray) -> tuple[Held, dict[str, Held]]:
    """Count strips `there` bool[rows, 3], of all and of each tenant."""
    index = state.index
    names = sorted({tree.tenant for tree in index.trees})
    of_tree = np.array([names.index(tree.tenant) for tree in index.trees], np.int64)
    tenant = of_tree[index.tree_id] if len(of_tree) else np.zeros(len(there), np.int64)
    by_tenant = [_held(index.size, there & (tenant == at)[:, None]) for at in range(len(names))]
    return _held(index.size, there), dict(zip(names, by_tenant, strict=True))


def _held(sizes: np.ndarray, there: np.ndarray) -> Held:
    strips = there.sum(axis=0).tolist()
    return Held(tuple(strips), tuple((sizes * there).sum(axis=0, dtype=np.int64).tolist()))


def list_sessions(state: State) -> tuple[SessionCensus, ...]:
    """Return the sessions of clients."""
    sessions = (s for s in state.sessions.values() if not is_own(s.id))
    return tuple(map(_count_session, sessions))


def _count_session(session: Session) -> SessionCensus:
    return SessionCensus(
        session.id, session.tenant, session.state.value, len(session.requests),
        len(session.leases), session.lease_bytes, len(session.reservations),
        len(session.slabs_owned), len(session.keyspaces),
    )  # fmt: skip


def list_keyspaces(state: State) -> list[KeyspaceCensus]:
    """Return the keyspaces that anything is stored for, or that a client has registered."""
    index, found = state.index, []
    by_digest: dict[bytes, list[Tree]] = {}
    for tree in index.trees:
        if tree.rows:
            by_digest.setdefault(tree.digest, []).append(tree)
    for digest, (tenant, keyspace) in registered(state).items():
        if digest not in by_digest:
            found.append(KeyspaceCensus(digest, tenant, keyspace, (), 0, Held(), Held()))
    for digest, trees in by_digest.items():
        numbers = [np.fromiter(t.rows.values(), np.int64, len(t.rows)) for t in trees]
        rows = np.concatenate(numbers)
        sizes = index.size[rows]
        dram = (index.slab[rows] != 0) & (index.missing[rows] == 0)
        lanes, disk = tuple(tree.lane for tree in trees), index.segment[rows] != 0
        found.append(
            KeyspaceCensus(
                digest,
                trees[0].tenant,
                trees[0].keyspace,
                lanes,
                len(rows),
                _held(sizes, dram),
                _held(sizes, disk),
            )  # fmt: skip
        )
    return found


def registered(state: State) -> dict[bytes, tuple[str, Keyspace]]:
    """Return tenant and fields of the keyspaces that sessions have registered, by digest."""
    return {
        digest: (session.tenant, keyspace)
        for session in state.sessions.values()
        for digest, keyspace in session.keyspaces.values()
    }


def tenants(state: State) -> set[str]:
    """Return the tenants of what is stored, or that have a session."""
    return {each.tenant for each in (*state.index.trees, *state.sessions.values())}


def list_pins(state: State) -> list[PinCensus]:
    return [
        PinCensus(p.id, p.tenant, p.digest, p.chunk, p.counts, p.size_bytes, p.at_ns)
        for p in state.pins.values()
    ]


def list_misses(state: State) -> list[tuple[Miss, Finding]]:
    """Return the last questions that found less than they asked for, the newest first."""
    return [(miss, explain_miss(state, miss)) for miss in reversed(state.story.misses.values())]

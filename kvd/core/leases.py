"""Leases: what a reader was promised stays where it is until it is done, or was told otherwise.

A lease pins the last row of each promised prefix; by the prefix rule that holds all before it. A
fetch's lease also counts every strip as read, so that its place in dram stays.
"""

import heapq

import numpy as np

from kvd.core.drops import condemn
from kvd.core.effects import Answer, Effect, LeaseLost, Released, Renewed, Revoke
from kvd.core.events import ReleaseWanted, RenewWanted
from kvd.core.slabs import settle
from kvd.core.state import Lease, Limbo, Session, State, move_bytes
from kvd.core.story import Why
from kvd.core.transitions import LeaseState, StripState
from kvd.errors import ErrorKind, KvdError
from kvd.types import Extent

_NO_STRIPS = np.zeros(0, np.int64)
# How leases end.
RELEASED, REVOKED, TAKEN_OVER = "released", "revoked", "taken_over"


def grant(
    state: State,
    session: Session,
    pins: list[tuple[int, int]],
    size_bytes: int,
    instead_of: Lease | None = None,
    reads: np.ndarray | None = None,
) -> Lease:
    """Pin `pins`, and `reads` (strips) in dram, for the session; raise OVERLOADED at its bounds.

    The lease `instead_of` ends in the same step and does not count.
    """
    limits = state.config.limits
    held, held_bytes = len(session.leases), session.lease_bytes
    if instead_of is not None:
        held, held_bytes = held - 1, held_bytes - instead_of.size_bytes
    if held >= limits.leases_per_session_max:
        raise KvdError(
            ErrorKind.OVERLOADED,
            f"session holds {held} leases, the limit leases_per_session_max",
            retry_after_ms=100,
        )
    if held_bytes + size_bytes > limits.lease_bytes_per_session_max:
        raise KvdError(
            ErrorKind.OVERLOADED,
            f"leases of {held_bytes} bytes and {size_bytes} more pass the limit "
            f"lease_bytes_per_session_max of {limits.lease_bytes_per_session_max}",
            retry_after_ms=100,
        )
    state.lease_id += 1
    expires_ns = state.now_ns + limits.lease_ttl_ns
    named = _NO_STRIPS if reads is None else reads
    lease = Lease(state.lease_id, session.id, pins, size_bytes, named, expires_ns, state.seals)
    state.index.reads.reshape(-1)[named] += 1
    for row, plane_class in pins:
        state.index.pins[row, plane_class] += 1
    state.leases[lease.id] = lease
    state.counts.leases_granted[session.tenant] += 1
    session.leases.add(lease.id)
    session.lease_bytes += size_bytes
    heapq.heappush(state.lease_due, (lease.expires_ns, lease.id))
    return lease


def end(state: State, lease: Lease, how: str) -> list[Effect]:
    """Unpin; the holder reads no more. Also frees replaced strips that waited for this lease."""
    assert lease.deliveries == 0, "the daemon itself still reads under it"
    answers = _end_waiting(state, lease)
    lease.become(LeaseState.ENDED)
    for row, plane_class in lease.pins:
        state.index.pins[row, plane_class] -= 1
        assert state.index.pins[row, plane_class] >= 0
    reads = state.index.reads.reshape(-1)
    reads[lease.reads] -= 1
    assert (reads[lease.reads] >= 0).all()
    del state.leases[lease.id]
    session = state.sessions[lease.session]
    session.leases.remove(lease.id)
    session.lease_bytes -= lease.size_bytes
    assert session.lease_bytes >= 0
    state.counts.leases_ended[session.tenant, how] += 1
    return [*answers, *free_limbo(state)]


def _end_waiting(state: State, lease: Lease) -> list[Effect]:
    """Answer mapped fetches that wait for reads under it: their places are held no more (I10)."""
    answers: list[Effect] = []
    for wish in [w for w in state.pending.values() if w.lease == lease.id]:
        del state.pending[wish.request]
        state.sessions[wish.session].requests.remove(wish.request)
        lost = KvdError(ErrorKind.LOST, "its lease ended before everything was read from disk")
        answers.append(Answer(wish.request, wish.session, lost))
    return answers


def free_limbo(state: State) -> list[Effect]:
    """Free places that no lease granted before they were set aside can name."""
    if not state.limbo:
        return []
    oldest = oldest_leases(state)
    effects: list[Effect] = []
    waiting, state.limbo = state.limbo, []
    for limbo in waiting:
        if oldest.get(limbo.tenant, limbo.after_lease + 1) <= limbo.after_lease:
            state.limbo.append(limbo)
            continue
        for extent in limbo.extents:
            move_bytes(state, extent, StripState.FREEING, StripState.FREE)
            effects += settle(state, extent.slab)
    return effects


def oldest_leases(state: State) -> dict[str, int]:
    """Return each tenant's oldest lease: no tenant waits for the readers of another."""
    oldest: dict[str, int] = {}
    for lease in state.leases.values():
        oldest.setdefault(state.sessions[lease.session].tenant, lease.id)
    return oldest


def set_aside(
    state: State, tenant: str, extents: tuple[Extent, ...], source: StripState = StripState.READY
) -> list[Effect]:
    """Keep places that are no row's any more until leases that may name them end (I2, I4)."""
    for extent in extents:
        move_bytes(state, extent, source, StripState.FREEING)
    state.limbo.append(Limbo(tenant, state.lease_id, extents))
    return free_limbo(state)


def find_lease(state: State, session: int, lease_id: int) -> Lease:
    lease = state.leases.get(lease_id)
    if lease is None or lease.session != session or lease.released:
        raise KvdError(
            ErrorKind.LOST, f"lease {lease_id} is not held: released before, lost, or never granted"
        )
    return lease


def lose(state: State, lease: Lease) -> list[Effect]:
    """Take the promise back. The extents stay as they are until the reader cannot mind."""
    lease.become(LeaseState.LOST)
    lease.free_at_ns = state.now_ns + state.config.limits.quarantine_ns
    heapq.heappush(state.lease_due, (lease.free_at_ns, lease.id))
    return [LeaseLost(lease.session, lease.id)]


def renew(state: State, lease: Lease) -> None:
    if lease.state == LeaseState.LOST:
        raise KvdError(ErrorKind.LOST, f"lease {lease.id} made no progress in its time")
    lease.become(LeaseState.GRANTED)
    lease.expires_ns = state.now_ns + state.config.limits.lease_ttl_ns


def on_renew(state: State, event: RenewWanted) -> list[Effect]:
    renew(state, find_lease(state, event.session, event.lease))
    return [Answer(event.request, event.session, Renewed(state.config.limits.lease_ttl_ns))]


def on_release(state: State, event: ReleaseWanted) -> list[Effect]:
    """End the lease, and condemn what its reader found to be wrong bytes.

    Releasing a lost lease says that its views are dropped. A second release is LOST and changes
    nobody's count.
    """
    lease = find_lease(state, event.session, event.lease)
    condemn_read(state, lease, event.corrupt.tolist())
    answer = Answer(event.request, event.session, Released())
    if lease.deliveries:
        # The daemon's own reading ends first; DeliveryEnded then ends the lease.
        lease.released = True
        if lease.state == LeaseState.GRANTED:
            lose(state, lease)
        lease.free_at_ns = state.now_ns
        heapq.heappush(state.lease_due, (state.now_ns, lease.id))
        return [answer]
    return [*end(state, lease, RELEASED), answer]


def condemn_read(state: State, lease: Lease, corrupt: list[int]) -> None:
    """Mark chunks by (lane << 24 | chunk), counted along the lease's own chains."""
    chains: dict[int, list[int]] = {}
    anchors = [row for row, plane_class in lease.pins if plane_class == 0]
    for word in corrupt:
        lane, chunk = word >> 24, word & 0xFFFFFF
        if lane >= len(anchors):
            continue
        rows = chains.get(lane)
        if rows is None:
            rows, row = [], anchors[lane]
            while row >= 0:
                rows.append(row)
                row = int(state.index.parent[row])
            rows.reverse()
            chains[lane] = rows
        # What was sealed after the lease was granted is not what its reader read; it may have
        # the older generation, if it was reserved earlier.
        if chunk < len(rows) and state.index.sealed_at[rows[chunk]] <= lease.sealed_at:
            condemn(state, rows[chunk], Why.WRONG_BYTES)


def on_tick(state: State) -> list[Effect]:
    """Lose leases without progress, and end lost ones whose quarantine is over."""
    effects: list[Effect] = []
    while state.lease_due and state.lease_due[0][0] <= state.now_ns:
        lease = state.leases.get(heapq.heappop(state.lease_due)[1])
        if lease is None:
            continue
        due = lease.expires_ns if lease.state == LeaseState.GRANTED else lease.free_at_ns
        if due > state.now_ns:
            heapq.heappush(state.lease_due, (due, lease.id))
        elif lease.state == LeaseState.GRANTED:
            state.counts.leases_lost[state.sessions[lease.session].tenant] += 1
            effects += lose(state, lease)
        elif lease.deliveries:
            heapq.heappush(state.lease_due, (state.now_ns + state.config.limits.tick_ns, lease.id))
        else:
            effects += revoke(state, lease)
    return effects


def revoke(state: State, lease: Lease) -> list[Effect]:
    """End a lost lease whose reader said nothing: its counter moves before any reuse."""
    session = state.sessions[lease.session]
    session.revoke_count += 1
    return [Revoke(session.id, session.revoke_count), *end(state, lease, REVOKED)]

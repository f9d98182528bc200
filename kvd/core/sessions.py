"""The life of a session: everything it owns ends with it, its extents when its process cannot mind.

A socket's end ends the session at once. Its process may go on reading and writing mappings, so
the session drains until the pidfd fired or a bounded time passed.
"""

from kvd.core import clear, deliver, leases, reservations
from kvd.core.effects import Effect, Revoke, TellDraining
from kvd.core.events import (
    DrainEnded,
    DrainStarted,
    ProcessGone,
    SessionEnded,
    SessionOpened,
)
from kvd.core.slabs import free_quarantined, is_own, own_session, settle
from kvd.core.state import Session, State
from kvd.core.transitions import SessionState, SlabState


def on_opened(state: State, event: SessionOpened) -> list[Effect]:
    assert event.session not in state.sessions and event.tenant
    state.sessions[event.session] = Session(event.session, event.tenant)
    state.counts.sessions_opened[event.tenant] += 1
    if state.ssd is not None:
        own_session(state, event.tenant)
    return [TellDraining(event.session)] if state.draining else []


def on_ended(state: State, event: SessionEnded) -> list[Effect]:
    session = state.sessions.get(event.session)
    if session is None or session.state != SessionState.OPEN:
        return []
    session.become(SessionState.DRAINING)
    state.counts.sessions_ended[session.tenant] += 1
    session.close_at_ns = state.now_ns + state.config.limits.quarantine_ns
    clear.end_of_session(state, session)
    effects = deliver.end_of_session(state, session) + reservations.end_of_session(state, session)
    for slab_id in session.slabs_owned:
        state.slabs[slab_id].become(SlabState.ORPHAN)
    session.slabs_owned.clear()
    return effects


def on_process_gone(state: State, event: ProcessGone) -> list[Effect]:
    """Free what waited for this process; what another one may still write goes on waiting."""
    effects = on_ended(state, SessionEnded(event.session))
    session = state.sessions.get(event.session)
    if session is not None:
        session.close_at_ns = state.now_ns
        for lease_id in sorted(session.leases):
            state.leases[lease_id].free_at_ns = state.now_ns
    for slab in state.slabs.values():
        if slab.id in event.written:
            continue
        if slab.state == SlabState.ORPHAN and slab.owner == event.session:
            slab.become(SlabState.IDLE)
            slab.owner = 0
    free_quarantined(state, event.session, event.written)
    return effects + (close(state, session) if session else [])


def close(state: State, session: Session) -> list[Effect]:
    """End a drained session, unless the daemon itself still reads under one of its leases."""
    assert session.state == SessionState.DRAINING
    effects: list[Effect] = []
    for lease_id in sorted(session.leases):
        lease = state.leases[lease_id]
        if not lease.deliveries:
            effects += leases.revoke(state, lease)
    if session.leases:
        return effects
    assert not session.reservations and not session.requests and not session.slabs_owned  # I11
    session.become(SessionState.CLOSED)
    del state.sessions[session.id]
    for slab in list(state.slabs.values()):
        if slab.owner == session.id:
            effects += settle(state, slab.id)
    return effects


def on_drain(state: State, event: DrainStarted) -> list[Effect]:
    """Take no new wishes; those under way go on."""
    state.draining = True
    return [
        TellDraining(s.id) for s in state.sessions.values()
        if s.state == SessionState.OPEN and not is_own(s.id)
    ]  # fmt: skip


def on_drain_ended(state: State, event: DrainEnded) -> list[Effect]:
    """Move every revoke counter: the next daemon knows no lease of this one (I2, I4)."""
    assert state.draining
    effects: list[Effect] = []
    for session in list(state.sessions.values()):
        if is_own(session.id):
            continue
        effects += on_ended(state, SessionEnded(session.id))
        session.revoke_count += 1
        effects.append(Revoke(session.id, session.revoke_count))
    return effects


def on_tick(state: State) -> list[Effect]:
    effects: list[Effect] = []
    for session in list(state.sessions.values()):
        if session.state == SessionState.DRAINING and session.close_at_ns <= state.now_ns:
            effects += close(state, session)
    return effects

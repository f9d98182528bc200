"""The life of slabs: growing dram in the background, who may write which, taking them back.

A slab goes to another writer only after its process is gone, with all that had its mapping, or
said that it detached; to another tenant never. The daemon itself is a writer, of the slabs that
strips are read into from disk.
"""

from collections.abc import Collection

import numpy as np

from kvd.clock import NS_PER_S
from kvd.core.effects import (
    CreateSlab,
    DestroySlab,
    DropSlab,
    Effect,
    GiveSlab,
    RecallSlab,
)
from kvd.core.events import SlabDetached, SlabFailed, SlabTouched
from kvd.core.extents import ExtentMap
from kvd.core.shares import (
    below_share,
    is_kept,
    is_last_for_reading,
    is_mate,
    may_grow,
    share,
    total,
    writers,
)
from kvd.core.state import Session, Slab, State, move_bytes
from kvd.core.transitions import SlabState, StripState
from kvd.types import Extent

TOUCH_RETRY_NS = 5 * NS_PER_S  # After a failed slab: memory may come back, a storm may not.


def grow(state: State) -> list[Effect]:
    """Ask for the next slab, one at a time, until the configured capacity is there."""
    if state.touching or state.draining or state.now_ns < state.retry_touch_ns:
        return []
    if len(state.slabs) >= state.config.slab_count:
        return []
    state.slab_id += 1
    size = state.config.slab_bytes
    state.slabs[state.slab_id] = Slab(state.slab_id, size, ExtentMap(size))
    state.touching = state.slab_id
    return [CreateSlab(state.slab_id, size)]


def on_slab_touched(state: State, event: SlabTouched) -> list[Effect]:
    assert event.slab == state.touching
    state.slabs[event.slab].become(SlabState.IDLE)
    state.touching = 0
    state.counts.slabs_made[()] += 1
    return grow(state)


def on_slab_failed(state: State, event: SlabFailed) -> list[Effect]:
    """Go on with the capacity there is, and try again later."""
    assert event.slab == state.touching
    state.slabs.pop(event.slab).become(SlabState.GONE)
    state.touching = 0
    state.retry_touch_ns = state.now_ns + TOUCH_RETRY_NS
    state.counts.slabs_failed[()] += 1
    return []


def on_slab_detached(state: State, event: SlabDetached) -> list[Effect]:
    """Take the slab from its writer, who may have it again like anybody else."""
    slab = state.slabs.get(event.slab)
    session = state.sessions.get(event.session)
    if slab is None or session is None or slab.owner != event.session:
        return []  # Crossed with the end of either.
    if slab.state not in (SlabState.OWNED, SlabState.RECALLING):
        return []
    if _is_reserved(state, session, slab):
        return []  # The client promised not to: its reservation ends first, then it detaches.
    slab.become(SlabState.IDLE)
    slab.owner = 0
    session.slabs_owned.remove(slab.id)
    return []


def _is_reserved(state: State, owner: Session, slab: Slab) -> bool:
    """Return whether its owner was promised places in it, or lost them and may still write."""
    if is_own(owner.id):
        filled = slab.bytes_by_state[StripState.FILLING]
        return bool(filled or slab.bytes_by_state[StripState.QUARANTINED])
    reservations = (state.reservations[number] for number in owner.reservations)
    return any((r.slabs[r.open] == slab.id).any() for r in reservations)


def own_session(state: State, tenant: str) -> Session:
    """Return the daemon's own session of a tenant; its id is below zero, and it never ends."""
    number = state.own_sessions.get(tenant)
    if number is None:
        number = state.own_sessions[tenant] = -1 - len(state.own_sessions)
        state.sessions[number] = Session(number, tenant)
    return state.sessions[number]


def is_own(session: int) -> bool:
    return session < 0


def free_quarantined(state: State, session: int, written: Collection[int]) -> None:
    """Free what was set aside because this session's process could write it, but in `written`."""
    extents = state.quarantine.pop(session, [])
    for extent in extents:
        if extent.slab not in written:
            move_bytes(state, extent, StripState.QUARANTINED, StripState.FREE)
    if kept := [extent for extent in extents if extent.slab in written]:
        state.quarantine[session] = kept


def take_run(
    state: State, session: Session, ends: np.ndarray
) -> tuple[Extent | None, int, list[Effect]]:
    """Take strips that end at `ends` from space the session may write, giving it a slab if need be.

    Return the extent of those taken, side by side, and their count: at least one, or None.
    """
    for slab_id in session.slabs_owned:
        slab = state.slabs[slab_id]
        if slab.state != SlabState.OWNED:
            continue
        offset, count = slab.extents.take(ends)
        if count:
            return _filling(state, slab, offset, int(ends[count - 1])), count, []
    tenants = _tenants_to_take(state, session)
    idle = [s for s in state.slabs.values() if s.tenant in tenants and _is_free(state, s, session)]
    for slab in idle if idle and _may_take(state, session) else ():
        offset, count = slab.extents.take(ends)
        if not count:
            continue
        slab.become(SlabState.OWNED)
        slab.owner, slab.tenant, slab.recall_refused = session.id, session.tenant, False
        slab.kept_for = 0
        session.slabs_owned.append(slab.id)
        extent = _filling(state, slab, offset, int(ends[count - 1]))
        if is_own(session.id):
            return extent, count, []
        session.slabs_known.add(slab.id)
        return extent, count, [GiveSlab(session.id, slab.id, True)]
    return None, 0, []


def _tenants_to_take(state: State, session: Session) -> tuple[str, ...]:
    """Return whose slabs it may have: its own tenant's, and perhaps those that nobody has had."""
    return ("", session.tenant) if may_grow(state, session) else (session.tenant,)


def _may_take(state: State, session: Session) -> bool:
    """Return whether it may have an idle slab at all; walks over all slabs, so ask it once."""
    return is_own(session.id) or not is_last_for_reading(state, session)


def _is_free(state: State, slab: Slab, session: Session) -> bool:
    return slab.state == SlabState.IDLE and not is_kept(state, slab, session)


def _filling(state: State, slab: Slab, offset: int, size: int) -> Extent:
    extent = Extent(slab.id, offset, size)
    state.sessions[slab.owner].put_ns = state.now_ns
    move_bytes(state, extent, StripState.FREE, StripState.FILLING)
    return extent


def show(state: State, session: Session, slabs: set[int]) -> list[Effect]:
    """Give read-only descriptors of slabs that the session has not seen."""
    fresh = sorted(slabs - session.slabs_known)
    session.slabs_known.update(fresh)
    return [GiveSlab(session.id, slab, False) for slab in fresh]


def destroy(state: State, slab: Slab) -> list[Effect]:
    """Give up a slab with nothing readable in it, and make another in its place."""
    assert slab.readable_bytes == 0
    slab.become(SlabState.GONE)
    del state.slabs[slab.id]
    for session, extents in list(state.quarantine.items()):
        kept = [e for e in extents if e.slab != slab.id]
        state.quarantine[session] = kept
        if not kept:
            del state.quarantine[session]
    told: list[Effect] = []
    for session in state.sessions.values():
        if slab.id in session.slabs_known:
            session.slabs_known.discard(slab.id)
            told.append(DropSlab(session.id, slab.id))
    return [*told, DestroySlab(slab.id), *grow(state)]


def settle(state: State, slab_id: int) -> list[Effect]:
    """Destroy an emptied slab that can never be written again as it is."""
    slab = state.slabs.get(slab_id)
    if slab is None or slab.readable_bytes:
        return []
    if slab.state == SlabState.ORPHAN and slab.owner not in state.sessions:
        return destroy(state, slab)
    return []


def remake(state: State, slab: Slab, session: Session) -> list[Effect]:
    """Give up a slab with nothing readable in it, for one that the session may have."""
    effects = destroy(state, slab)
    if state.touching:
        _keep(state, state.slabs[state.touching], session)
    return effects


def usable_slabs(state: State, session: Session) -> tuple[set[int], list[Slab]]:
    """Return the slabs whose freed space helps the session at once, and those to be made anew.

    The latter are of another tenant of its group, or of a session that is gone while its process
    may not be.
    """
    own = {s for s in session.slabs_owned if state.slabs[s].state == SlabState.OWNED}
    anew, tenants = [], _tenants_to_take(state, session)
    near = [
        slab for slab in state.slabs.values()
        if slab.tenant in tenants or is_mate(state, slab, session)
    ]  # fmt: skip
    idle = [slab for slab in near if _is_free(state, slab, session)]
    for slab in idle if idle and _may_take(state, session) else ():
        if slab.tenant in tenants:
            own.add(slab.id)
        else:
            anew.append(slab)
    anew += [s for s in near if s.state == SlabState.ORPHAN and s.owner not in state.sessions]
    if anew and state.pins:
        pinned = _pinned(state)
        anew = [slab for slab in anew if not pinned[slab.id]]
    return own, anew


def _pinned(state: State) -> np.ndarray:
    """Return bool by slab: in which an operator holds something, so that it cannot be emptied."""
    pinned = np.zeros(state.slab_id + 1, bool)
    for pin in state.pins.values():
        pinned[state.index.slab.reshape(-1)[pin.reads]] = True
    return pinned


def is_awaited(state: State, session: Session) -> bool:
    """Return whether a slab was asked back for the session, and its writer has not answered."""
    return any(
        slab.state == SlabState.RECALLING and slab.kept_for == session.id
        for slab in state.slabs.values()
    )


def recall_for(state: State, session: Session) -> tuple[bool, list[Effect]]:
    """Ask the richest writer of its group for one slab when it has less than an equal share.

    With more writers than slabs they take turns: who put longest ago gives its only one. Return
    whether one is there at once, as the daemon's own are.
    """
    for slab in state.slabs.values():
        if slab.state == SlabState.RECALLING and is_mate(state, slab, session):
            return False, []
    if not below_share(state, session):
        return False, []
    pinned = _pinned(state)
    owners = sorted(writers(state, session), key=lambda s: (-len(s.slabs_owned), s.put_ns, s.id))
    left = share(state, session) if len(owners) <= total(state, session) else 0
    for owner in owners:
        if owner.id == session.id or len(owner.slabs_owned) <= left:
            continue
        candidates = [state.slabs[s] for s in owner.slabs_owned]
        candidates = [s for s in candidates if s.state == SlabState.OWNED]
        candidates = [s for s in candidates if not _is_reserved(state, owner, s)]
        candidates = [s for s in candidates if not s.recall_refused]
        if owner.tenant != session.tenant:  # For another tenant it would have to be emptied.
            candidates = [s for s in candidates if not pinned[s.id]]
        if candidates:
            slab = min(candidates, key=lambda s: (s.readable_bytes, s.id))
            _keep(state, slab, session)
            if is_own(owner.id):
                slab.become(SlabState.IDLE)
                slab.owner = 0
                owner.slabs_owned.remove(slab.id)
                return True, []
            slab.become(SlabState.RECALLING)
            state.counts.slabs_recalled[()] += 1
            slab.recall_until_ns = state.now_ns + state.config.limits.recall_ns
            return False, [RecallSlab(owner.id, slab.id)]
    return False, []


def _keep(state: State, slab: Slab, session: Session) -> None:
    """Keep a slab for the session for a while, or whoever puts most would take it back at once."""
    slab.kept_for = session.id
    slab.kept_until_ns = state.now_ns + 2 * state.config.limits.recall_ns


def on_tick(state: State) -> list[Effect]:
    """Give up recalls that were not answered, remake foreign empty slabs, keep growing."""
    effects: list[Effect] = []
    for slab in list(state.slabs.values()):
        if slab.state == SlabState.RECALLING and slab.recall_until_ns <= state.now_ns:
            slab.become(SlabState.OWNED)
            slab.recall_refused = True
        effects += settle(state, slab.id)
    return effects + grow(state)

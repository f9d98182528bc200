"""Who may have how many slabs: a tenant its quota, all tenants without one what the quotas leave.

Each is a *group*. Slabs never go from one group to another: none is emptied for another's wishes.
"""

from kvd.core.quotas import SHARED
from kvd.core.state import Session, Slab, State
from kvd.core.transitions import SessionState, SlabState


def group_of(state: State, tenant: str) -> str:
    return tenant if tenant in state.slabs_max else SHARED


def is_mate(state: State, slab: Slab, session: Session) -> bool:
    """Return whether the slab holds bytes of the session's group."""
    if not slab.tenant:
        return False
    return group_of(state, slab.tenant) == group_of(state, session.tenant)


def _held(state: State, session: Session) -> int:
    return sum(is_mate(state, slab, session) for slab in state.slabs.values())


def may_grow(state: State, session: Session) -> bool:
    """Return whether its group may have one more of the slabs that nobody has had yet."""
    if len(state.slabs_max) == 1:
        return True  # Without quotas all that there is.
    return _held(state, session) < state.slabs_max[group_of(state, session.tenant)]


def is_bounded(state: State, session: Session) -> bool:
    """Return whether it is the tenant's quota that keeps it from having another slab."""
    return group_of(state, session.tenant) != SHARED and not may_grow(state, session)


def is_kept(state: State, slab: Slab, session: Session) -> bool:
    """Return whether an idle slab is kept for another session of its group, for a while."""
    if slab.kept_for in (0, session.id) or state.now_ns >= slab.kept_until_ns:
        return False
    if len(state.slabs_max) == 1:
        return True
    # Whatever slab another group takes instead, there is one left for each that this one may have.
    other = state.sessions.get(slab.kept_for)
    return other is not None and group_of(state, other.tenant) == group_of(state, session.tenant)


def growing(state: State, session: Session) -> bool:
    """Return whether a slab is being made that the session may have."""
    return state.touching != 0 and may_grow(state, session)


def total(state: State, session: Session) -> int:
    """Return how many slabs its group has, or may yet have of those that are there."""
    return min(len(state.slabs), state.slabs_max[group_of(state, session.tenant)])


def is_last_for_reading(state: State, session: Session) -> bool:
    """Return whether the group's idle slabs are so few that they are wanted for what is read."""
    group = group_of(state, session.tenant)
    without = sum(
        not state.sessions[number].slabs_owned for tenant, number in state.own_sessions.items()
        if group_of(state, tenant) == group
    )  # fmt: skip
    idle = [slab for slab in state.slabs.values() if slab.state == SlabState.IDLE]
    fresh = sum(not slab.tenant for slab in idle)
    room = state.slabs_max[group] - _held(state, session)
    count = min(fresh, room) + sum(is_mate(state, slab, session) for slab in idle)
    return count <= min(without, total(state, session) // 2)


def writers(state: State, session: Session) -> list[Session]:
    """Return who shares the group's slabs: sessions that own some, and the one that asks."""
    group = group_of(state, session.tenant)
    return [
        s for s in state.sessions.values()
        if s.state == SessionState.OPEN and (s.slabs_owned or s.id == session.id)
        and group_of(state, s.tenant) == group
    ]  # fmt: skip


def share(state: State, session: Session) -> int:
    return max(1, total(state, session) // len(writers(state, session)))


def below_share(state: State, session: Session) -> bool:
    return len(session.slabs_owned) < share(state, session)

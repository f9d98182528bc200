"""Fetches that wait a moment: dram is still growing, so there will be room to read into.

A daemon that has just begun is asked at once, by everybody who used the one before.
"""

from collections.abc import Callable

from kvd.core.effects import Answer, Effect, Shortfall
from kvd.core.events import FetchWanted
from kvd.core.shares import growing
from kvd.core.state import Session, State
from kvd.errors import ErrorKind, KvdError

Fetching = Callable[[State, FetchWanted], list[Effect]]


def waits(state: State, event: FetchWanted, reason: Shortfall) -> bool:
    """Put a fetch off that has less than it could have soon; return whether it is."""
    if reason != Shortfall.NO_ROOM or not growing(state, state.sessions[event.session]):
        return False
    until_ns = state.postponed.get(event.request, (event, 0))[1]
    until_ns = until_ns or min(event.deadline_ns, state.now_ns + state.config.limits.growth_wait_ns)
    if until_ns <= state.now_ns:
        return False
    tenant = state.sessions[event.session].tenant
    state.counts.fetches_postponed[tenant] += event.request not in state.postponed
    state.postponed[event.request] = (event, until_ns)
    state.sessions[event.session].requests.add(event.request)
    return True


def retry(state: State, fetching: Fetching) -> list[Effect]:
    """Try those again that were put off: there is another slab, or time has passed."""
    effects: list[Effect] = []
    for request, before in list(state.postponed.items()):
        event = before[0]
        state.sessions[event.session].requests.discard(request)
        if event.deadline_ns <= state.now_ns:
            late = KvdError(ErrorKind.LATE, "no room to read into by the deadline")
            effects.append(Answer(request, event.session, late))
            del state.postponed[request]
            continue
        try:
            effects += fetching(state, event)
        except KvdError as refusal:
            effects.append(Answer(request, event.session, refusal))
        if state.postponed[request] is before:  # Else it was put off again.
            del state.postponed[request]
    return effects


def on_cancel(state: State, request: int, session: int) -> list[Effect]:
    """Answer a fetch that was put off and is given up; nothing when there is none."""
    event, _ = state.postponed.get(request, (None, 0))
    if event is None or event.session != session:
        return []
    del state.postponed[request]
    state.sessions[session].requests.discard(request)
    return [Answer(request, session, KvdError(ErrorKind.LATE, "cancelled by the client"))]


def end_of_session(state: State, session: Session) -> None:
    """Nobody is left to answer."""
    for request, (event, _) in list(state.postponed.items()):
        if event.session == session.id:
            del state.postponed[request]
            session.requests.discard(request)

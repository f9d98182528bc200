"""Who waits for chunks to become durable, and what he is told."""

import numpy as np

from kvd.core.effects import Answer, Effect, Sealed
from kvd.core.events import SealWanted
from kvd.core.index import NO_ROW, Saving
from kvd.core.segments import find_ssd
from kvd.core.ssd import Wait
from kvd.core.state import Reservation, Session, State


def rows_of(state: State, reservation: Reservation, event: SealWanted) -> np.ndarray:
    """Return i64: the rows of the chunks that a Seal speaks of; NO_ROW where there is none.

    The last one speaks of all chunks of the reservation, those that were had included.
    """
    known, chain = reservation.tree.rows, reservation.chain
    if not event.last:
        chain = chain[event.first : event.first + len(event.sizes)]
    return np.array([known.get(digest, NO_ROW) for digest in chain], np.int64)


def answer_sealed(
    state: State, event: SealWanted, states: np.ndarray, waited: np.ndarray
) -> list[Effect]:
    """Answer a Seal at once, or have it wait until its chunks are durable."""
    requests = state.sessions[event.session].requests
    if not len(waited) or len(requests) >= state.config.limits.requests_per_session_max:
        return [Answer(event.request, event.session, Sealed(states))]
    ssd = find_ssd(state)
    limit_ns = state.now_ns + state.config.limits.deadline_ns_max
    deadline_ns = min(event.deadline_ns or limit_ns, limit_ns)
    ssd.waits[event.request] = Wait(
        event.request, event.session, states, waited, state.index.generation[waited], deadline_ns
    )
    requests.add(event.request)
    return []


def settle(state: State) -> list[Effect]:
    """Answer those whose chunks are all durable, or cannot become so, or whose deadline passed."""
    ssd, effects = find_ssd(state), []
    for wait in list(ssd.waits.values()):
        verdict = _verdict(state, wait)
        if verdict is not None:
            del ssd.waits[wait.request]
            state.sessions[wait.session].requests.remove(wait.request)
            effects.append(Answer(wait.request, wait.session, Sealed(wait.states, verdict)))
    return effects


def _verdict(state: State, wait: Wait) -> bool | None:
    """Return whether all is durable, or None while that is open."""
    ssd, index, rows = find_ssd(state), state.index, wait.rows
    there = (rows != NO_ROW) & (index.generation[rows] == wait.generations)
    there &= index.present[rows].all(axis=1) & ~index.condemned[rows]
    durable = index.segment[rows].all(axis=1)
    if (~there | ~durable & (index.saving[rows] == Saving.NONE)).any():
        return False
    if durable.all():
        above = _above(state, int(rows[0]))
        if above is not None:
            return above
    late = wait.deadline_ns <= state.now_ns or ssd.fault is not None
    return False if late else None


def _above(state: State, row: int) -> bool | None:
    """Return whether all chunks before the row are durable, or None while that is open.

    One that was condemned, and is being replaced, is not: with a crash goes what is behind it.
    """
    index = state.index
    at = int(index.parent[row])
    while at != NO_ROW:
        if not (index.cataloged[at] and index.segment[at].all()) or index.condemned[at]:
            return False if index.saving[at] == Saving.NONE else None
        at = int(index.parent[at])
    return True


def end_of_session(state: State, session: Session) -> None:
    """Nobody is left to answer."""
    if state.ssd is not None:
        for request in [r for r, wait in state.ssd.waits.items() if wait.session == session.id]:
            del state.ssd.waits[request]
            session.requests.discard(request)


def on_cancel(state: State, request: int, session: int) -> bool:
    """Have a wait answered with what is true now; return whether there was one."""
    wait = None if state.ssd is None else state.ssd.waits.get(request)
    if wait is None or wait.session != session:
        return False
    wait.deadline_ns = state.now_ns
    return True

"""Reservations: extents that one session fills, from Reserve to Seal, abort or loss.

What a reservation did not seal is free again only when its writer cannot write there any more.
"""

import numpy as np

from kvd.core.effects import Aborted, Answer, Effect
from kvd.core.events import AbortWanted
from kvd.core.index import NO_ROW
from kvd.core.state import Reservation, Session, State, move_bytes
from kvd.core.story import Note, Why
from kvd.core.transitions import StripState
from kvd.errors import ErrorKind, KvdError
from kvd.types import CLASS_COUNT, Extent

# How reservations end.
SEALED, ABORTED, LOST, WITH_SESSION = "sealed", "aborted", "lost", "with_session"


def find_reservation(
    state: State, session: int, reservation_id: int, *, is_last: bool
) -> Reservation:
    """Return what a writer asks about; raise LOST when it is gone.

    A lost one ends when it is last asked about: only then has its writer stopped. Seals are sent
    while the strips behind them are still being laid.
    """
    found = state.reservations.get(reservation_id)
    if found is None or found.session != session:
        raise KvdError(ErrorKind.LOST, f"reservation {reservation_id} is not open")
    if found.lost:
        if is_last:
            finish(state, found, StripState.FREE, LOST)
        raise KvdError(ErrorKind.LOST, f"reservation {reservation_id} made no progress in its time")
    return found


def hold(state: State, reservation: Reservation, row: int) -> None:
    """Pin the deepest row of the put instead of the one before: the next chunk needs its parent.

    A chunk that is replaced lies before others that are had, which are held already.
    """
    if (
        reservation.pinned != NO_ROW
        and state.index.depth[reservation.pinned] >= state.index.depth[row]
    ):
        return
    state.index.pins[row] += 1
    if reservation.pinned != NO_ROW:
        state.index.pins[reservation.pinned] -= 1
    reservation.pinned = row


def give_back(state: State, reservation: Reservation, chunk: int, target: StripState) -> None:
    assert reservation.open[chunk]
    source = StripState.QUARANTINED if reservation.lost else StripState.FILLING
    for plane_class in range(CLASS_COUNT):
        extent = reserved_extent(reservation, chunk, plane_class)
        if source != target:
            move_bytes(state, extent, source, target)
    reservation.open[chunk] = False


def reserved_extent(reservation: Reservation, chunk: int, plane_class: int) -> Extent:
    return Extent(
        int(reservation.slabs[chunk, plane_class]),
        int(reservation.offsets[chunk, plane_class]),
        int(reservation.sizes[chunk, plane_class]),
    )


def open_extents(reservation: Reservation) -> list[Extent]:
    columns = (reservation.slabs, reservation.offsets, reservation.sizes)
    still = np.flatnonzero(reservation.open)
    return list(map(Extent, *(column[still].ravel().tolist() for column in columns)))


def finish(state: State, reservation: Reservation, target: StripState, how: str) -> None:
    """End a reservation; what it did not seal goes to `target`.

    No slab is settled: one with open places in it has a writer, and is not given up.
    """
    for chunk in np.flatnonzero(reservation.open).tolist():
        give_back(state, reservation, chunk, target)
    if reservation.pinned != NO_ROW:
        state.index.pins[reservation.pinned] -= 1
    del state.reservations[reservation.id]
    session = state.sessions[reservation.session]
    session.reservations.discard(reservation.id)
    if not reservation.lost:  # Else it ended, as its writer sees it, when it was lost.
        state.counts.reservations_ended[session.tenant, how] += 1


def _note_open(state: State, reservation: Reservation, why: Why) -> None:
    """Remember why the first chunk that was not sealed never came; those behind follow from it."""
    opened = np.flatnonzero(reservation.open)
    if len(opened):
        tree = reservation.tree
        name = tree.digest, tree.lane, reservation.chain[int(opened[0])]
        state.story.note(name, Note(state.now_ns, why))


def on_abort(state: State, event: AbortWanted) -> list[Effect]:
    """Give all of it back: the client says that it writes no more."""
    reservation = find_reservation(state, event.session, event.reservation, is_last=True)
    _note_open(state, reservation, Why.ABORTED)
    finish(state, reservation, StripState.FREE, ABORTED)
    return [Answer(event.request, event.session, Aborted())]


def on_tick(state: State) -> list[Effect]:
    """Set aside the extents of reservations without progress: their writer may still write."""
    for reservation in state.reservations.values():
        if not reservation.lost and reservation.expires_ns <= state.now_ns:
            for extent in open_extents(reservation):
                move_bytes(state, extent, StripState.FILLING, StripState.QUARANTINED)
            reservation.lost = True
            _note_open(state, reservation, Why.EXPIRED)
            tenant = state.sessions[reservation.session].tenant
            state.counts.reservations_ended[tenant, LOST] += 1
    return []


def end_of_session(state: State, session: Session) -> list[Effect]:
    """Abort what the session had open; its process may still write there, so quarantine it."""
    for reservation_id in sorted(session.reservations):
        reservation = state.reservations[reservation_id]
        extents = open_extents(reservation)
        _note_open(state, reservation, Why.SESSION_ENDED)
        finish(state, reservation, StripState.QUARANTINED, WITH_SESSION)
        if extents:
            state.quarantine.setdefault(session.id, []).extend(extents)
    return []

"""Putting: reserve places, let the client fill them, make them visible at Seal.

Nothing of a put can be found before its Seal (I1), and a chunk becomes visible only behind a
complete parent, so that prefixes have no holes.
"""

import numpy as np

from kvd.core.effects import (
    Aborted,
    Answer,
    Effect,
    NotAdmitted,
    Reserved,
    ReserveState,
    Sealed,
    SealState,
)
from kvd.core.events import AbortWanted, ReserveWanted, SealWanted
from kvd.core.evict import extent_of, place_strips
from kvd.core.index import NO_ROW, Tree
from kvd.core.keyspaces import tree_of
from kvd.core.leases import supersede
from kvd.core.slabs import settle
from kvd.core.state import Reservation, Session, State, move_bytes
from kvd.core.transitions import StripState
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, PAGE_BYTES
from kvd.policy.value import heat_after, heat_at
from kvd.types import CLASS_COUNT, Extent


def split_chain(chain: bytes) -> list[bytes]:
    return [chain[at : at + DIGEST_BYTES] for at in range(0, len(chain), DIGEST_BYTES)]


def _check_sizes(state: State, sizes: np.ndarray, count: int) -> None:
    if sizes.shape != (count, CLASS_COUNT):
        raise KvdError(
            ErrorKind.INVALID, f"sizes are {sizes.shape}, the chain has {count} chunks x 3 classes"
        )
    largest = int(sizes.max(initial=0))
    if largest > state.config.slab_bytes:
        raise KvdError(
            ErrorKind.INVALID,
            f"a strip of {largest} bytes does not fit a slab of {state.config.slab_bytes}: "
            "use smaller chunks (chunk_tokens) or more dram",
        )
    if (sizes == 0).any() or (sizes % PAGE_BYTES).any():
        raise KvdError(ErrorKind.INVALID, f"strip sizes are whole pages of {PAGE_BYTES}, not 0")


def _known(
    state: State, tree: Tree, parent: int, chain: list[bytes]
) -> tuple[np.ndarray, int]:
    """Return what each chunk is before room is looked for, and the last row that is had."""
    index, get = state.index, tree.rows.get
    states = np.full(len(chain), ReserveState.RESERVED, np.uint8)
    before, held = parent, parent
    for at, digest in enumerate(chain):
        row = get(digest, NO_ROW)
        if row == NO_ROW:
            before = NO_ROW
            continue
        if index.parent[row] != before:
            raise KvdError(ErrorKind.INVALID, f"chunk {at} of the chain is known behind another")
        before = row
        if index.complete(row):
            states[at], held = ReserveState.HAVE, row
        else:
            states[at] = ReserveState.REPLACE
    return states, held


def on_reserve(state: State, event: ReserveWanted) -> list[Effect]:
    session, tree = tree_of(state, event.session, event.keyspace, event.lane)
    chain = split_chain(event.chain)
    _check_sizes(state, event.sizes, len(chain))
    limits = state.config.limits
    if len(session.reservations) >= limits.reservations_per_session_max:
        raise KvdError(
            ErrorKind.OVERLOADED,
            f"session has {len(session.reservations)} open reservations, the limit "
            "reservations_per_session_max",
            retry_after_ms=100,
        )
    parent = tree.rows.get(event.parent, NO_ROW) if event.parent else NO_ROW
    count = len(chain)
    slabs = np.zeros((count, CLASS_COUNT), np.uint32)
    offsets = np.zeros((count, CLASS_COUNT), np.uint64)
    if event.parent and (parent == NO_ROW or not state.index.complete(parent)):
        states = np.full(count, ReserveState.NOT_ADMITTED, np.uint8)
        outcome = Reserved(0, 0, states, slabs, offsets, NotAdmitted.PREFIX_BROKEN)
        return [Answer(event.request, event.session, outcome)]
    states, held = _known(state, tree, parent, chain)
    reason = NotAdmitted.NONE
    if held != NO_ROW:
        # Held from here on, so that making room cannot take what was just answered as had.
        state.index.pins[held] += 1
    effects: list[Effect] = []
    for at in np.flatnonzero(states != ReserveState.HAVE).tolist():
        sizes = event.sizes[at].tolist()
        extents, reason, more = place_strips(state, session, sizes)
        effects += more
        if reason != NotAdmitted.NONE:
            states[at:] = ReserveState.NOT_ADMITTED
            break
        slabs[at] = [extent.slab for extent in extents]
        offsets[at] = [extent.offset for extent in extents]
    opened = (states == ReserveState.RESERVED) | (states == ReserveState.REPLACE)
    if not opened.any():
        if held != NO_ROW:
            state.index.pins[held] -= 1
        outcome = Reserved(0, 0, states, slabs, offsets, reason)
        return [*effects, Answer(event.request, event.session, outcome)]
    state.generation += 1
    state.reservation_id += 1
    reservation = Reservation(
        state.reservation_id, session.id, tree, chain, parent, state.generation,
        opened, slabs, offsets, event.sizes.copy(),
        state.now_ns + limits.reservation_ttl_ns, held,
    )  # fmt: skip
    state.reservations[reservation.id] = reservation
    session.reservations.add(reservation.id)
    outcome = Reserved(reservation.id, state.generation, states, slabs, offsets, reason)
    return [*effects, Answer(event.request, event.session, outcome)]


def _find_reservation(state: State, session: int, reservation_id: int) -> Reservation:
    found = state.reservations.get(reservation_id)
    if found is None or found.session != session:
        raise KvdError(ErrorKind.LOST, f"reservation {reservation_id} is not open")
    if found.lost:
        # Its writer has stopped: it asks to seal. So its extents are safe to reuse.
        finish(state, found, StripState.FREE)
        raise KvdError(ErrorKind.LOST, f"reservation {reservation_id} made no progress in its time")
    return found


def on_seal(state: State, event: SealWanted) -> list[Effect]:
    reservation = _find_reservation(state, event.session, event.reservation)
    count = len(event.sizes)
    end = event.first + count
    if end > len(reservation.chain):
        raise KvdError(
            ErrorKind.INVALID,
            f"seal of chunks {event.first} to {end} passes the {len(reservation.chain)} reserved",
        )
    _check_sizes(state, event.sizes, count)
    reserved = reservation.sizes[event.first : end]
    if (event.sizes > reserved).any():
        raise KvdError(
            ErrorKind.INVALID,
            f"a strip of {int(event.sizes.max())} bytes is larger than what was reserved for it",
        )
    reservation.expires_ns = state.now_ns + state.config.limits.reservation_ttl_ns
    effects: list[Effect] = []
    states = np.zeros(count, np.uint8)
    for at in range(count):
        chunk = event.first + at
        if not reservation.open[chunk]:
            states[at] = SealState.SKIPPED
            continue
        states[at], more = _seal_chunk(
            state, reservation, chunk, event.profile, (event.sizes[at], event.roots[at])
        )
        effects += more
    if event.last:
        effects += finish(state, reservation, StripState.FREE)
    return [*effects, Answer(event.request, event.session, Sealed(states))]


def _seal_chunk(
    state: State, reservation: Reservation, chunk: int, profile: int, columns: tuple
) -> tuple[SealState, list[Effect]]:
    """Make one chunk visible, whole and at once (I1), or give its extents back."""
    index, tree = state.index, reservation.tree
    parent = reservation.parent
    if chunk:
        parent = tree.rows.get(reservation.chain[chunk - 1], NO_ROW)
    digest = reservation.chain[chunk]
    row = tree.rows.get(digest, NO_ROW)
    verdict = SealState.SEALED
    if (parent == NO_ROW and (chunk or reservation.parent != NO_ROW)) or (
        parent != NO_ROW and not index.complete(parent)
    ):
        verdict = SealState.ORPHANED
    elif row != NO_ROW and index.complete(row):
        verdict = SealState.COALESCED
        _hold(state, reservation, row)
    if verdict != SealState.SEALED:
        _give_back(state, reservation, chunk, StripState.FREE)
        return verdict, []
    sizes, roots = columns
    old: tuple[Extent, ...] = ()
    if row == NO_ROW:
        row = index.new_row(tree, digest, parent)
    else:
        old = tuple(extent_of(state, row, c) for c in range(CLASS_COUNT) if index.slab[row, c])
    _fill_row(state, reservation, chunk, row, (sizes, roots, profile))
    _hold(state, reservation, row)
    return verdict, supersede(state, old) if old else []


def _fill_row(
    state: State, reservation: Reservation, chunk: int, row: int, sealed: tuple
) -> None:
    index = state.index
    sizes, roots, profile = sealed
    parent = int(index.parent[row])
    fresh = index.slab[row] == 0
    slabs, offsets = reservation.slabs[chunk], reservation.offsets[chunk]
    for plane_class, size in enumerate(sizes.tolist()):
        slab, offset = int(slabs[plane_class]), int(offsets[plane_class])
        reserved = int(reservation.sizes[chunk, plane_class])
        used = Extent(slab, offset, size)
        move_bytes(state, used, StripState.FILLING, StripState.READY)
        if reserved > size:
            tail = Extent(slab, offset + size, reserved - size)
            move_bytes(state, tail, StripState.FILLING, StripState.FREE)
        largest = reservation.tree.strip_bytes_max
        largest[plane_class] = max(largest[plane_class], size)
    index.slab[row], index.offset[row] = slabs, offsets
    index.size[row], index.root[row] = sizes, roots
    index.generation[row], index.profile[row] = reservation.generation, profile
    index.condemned[row] = False
    index.heat[row] = heat_after(index.heat[row], state.now_ns)
    reservation.open[chunk] = False
    if parent != NO_ROW:
        index.children[parent] += fresh
        index.place_frontier(parent)
    index.place_frontier(row)
    assert index.heat[row] >= heat_at(state.now_ns)


def _hold(state: State, reservation: Reservation, row: int) -> None:
    """Pin the newest row of the put instead of the one before: the next chunk needs its parent."""
    state.index.pins[row] += 1
    if reservation.pinned != NO_ROW:
        state.index.pins[reservation.pinned] -= 1
    reservation.pinned = row


def _give_back(state: State, reservation: Reservation, chunk: int, target: StripState) -> None:
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
    chunks = np.flatnonzero(reservation.open).tolist()
    return [reserved_extent(reservation, c, k) for c in chunks for k in range(CLASS_COUNT)]


def finish(state: State, reservation: Reservation, target: StripState) -> list[Effect]:
    """End a reservation; what it did not seal goes to `target`."""
    touched = {extent.slab for extent in open_extents(reservation)}
    for chunk in np.flatnonzero(reservation.open).tolist():
        _give_back(state, reservation, chunk, target)
    if reservation.pinned != NO_ROW:
        state.index.pins[reservation.pinned] -= 1
    del state.reservations[reservation.id]
    state.sessions[reservation.session].reservations.discard(reservation.id)
    effects: list[Effect] = []
    for slab in sorted(touched):
        effects += settle(state, slab)
    return effects


def on_abort(state: State, event: AbortWanted) -> list[Effect]:
    """Give all of it back: the client says that it writes no more."""
    reservation = _find_reservation(state, event.session, event.reservation)
    effects = finish(state, reservation, StripState.FREE)
    return [*effects, Answer(event.request, event.session, Aborted())]


def on_tick(state: State) -> list[Effect]:
    """Set aside the extents of reservations without progress: their writer may still write."""
    for reservation in state.reservations.values():
        if not reservation.lost and reservation.expires_ns <= state.now_ns:
            for extent in open_extents(reservation):
                move_bytes(state, extent, StripState.FILLING, StripState.QUARANTINED)
            reservation.lost = True
    return []


def end_of_session(state: State, session: Session) -> list[Effect]:
    """Abort what the session had open; its process may still write there, so quarantine it."""
    for reservation_id in sorted(session.reservations):
        reservation = state.reservations[reservation_id]
        extents = open_extents(reservation)
        finish(state, reservation, StripState.QUARANTINED)
        if extents:
            state.quarantine.setdefault(session.id, []).extend(extents)
    return []

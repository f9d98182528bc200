"""Reserve: which chunks are had, and places for those that are not.

Nothing of a put can be found before its Seal (I1).
"""

import numpy as np

from kvd.core.effects import Answer, Effect, NotAdmitted, Reserved, ReserveState
from kvd.core.events import ReserveWanted
from kvd.core.evict import give_back_strips, place_strips
from kvd.core.index import NO_ROW, Tree
from kvd.core.keyspaces import tree_of
from kvd.core.state import Reservation, Session, State
from kvd.core.story import Note, Why
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, PAGE_BYTES
from kvd.types import CLASS_COUNT

_STORIES = {
    NotAdmitted.CAPACITY: Why.CAPACITY,
    NotAdmitted.GROWING: Why.GROWING,
    NotAdmitted.PREFIX_BROKEN: Why.PREFIX_BROKEN,
    NotAdmitted.QUOTA: Why.QUOTA,
}
_UNKNOWN = NO_ROW - 1  # The row of a chunk that is not there: no row has it as parent.


def check_sizes(state: State, sizes: np.ndarray, count: int) -> None:
    """Raise INVALID unless `sizes` u32[count, 3] are whole pages that fit a slab."""
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


def _known(state: State, tree: Tree, parent: int, chain: list[bytes]) -> tuple[np.ndarray, int]:
    """Return what each chunk is before room is looked for, and the last row that is had."""
    index, get = state.index, tree.rows.get
    if len(set(chain)) != len(chain):
        raise KvdError(ErrorKind.INVALID, "the chain has the same chunk twice")
    states = np.full(len(chain), ReserveState.RESERVED, np.uint8)
    before, held = parent, parent
    for at, digest in enumerate(chain):
        row = get(digest, NO_ROW)
        if row == NO_ROW:
            before = _UNKNOWN
            continue
        if index.parent[row] != before:
            raise KvdError(ErrorKind.INVALID, f"chunk {at} of the chain is known behind another")
        before = row
        if index.complete(row):
            states[at], held = ReserveState.HAVE, row
        else:
            states[at] = ReserveState.REPLACE
    return states, held


def _check_bounds(state: State, session: Session) -> None:
    if len(session.reservations) >= state.config.limits.reservations_per_session_max:
        raise KvdError(
            ErrorKind.OVERLOADED,
            f"session has {len(session.reservations)} open reservations, the limit "
            "reservations_per_session_max",
            retry_after_ms=100,
        )


def _check_durable(state: State) -> None:
    """Raise UNAVAILABLE when nothing can be made durable now."""
    if state.ssd is None:
        raise KvdError(
            ErrorKind.UNAVAILABLE, "durability DISK: this daemon has no ssd tier (--data)"
        )
    if state.ssd.fault is not None:
        message = f"durability DISK: the ssd tier is degraded: {state.ssd.fault.message}"
        raise KvdError(ErrorKind.UNAVAILABLE, message)


def _has_generation(state: State) -> bool:
    """Return whether a fresh generation cannot come again after a restart (I2).

    What is given out while the catalog fails cannot become durable before it was told of it.
    """
    ssd = state.ssd
    return (
        ssd is None or ssd.catalog_fault is not None or state.generation + 1 < ssd.generation_limit
    )


def _waits_for_disk(state: State, event: ReserveWanted, tree: Tree, states: np.ndarray) -> bool:
    """Return whether chunks that are had are not durable yet, while they shall be."""
    if not event.durable:
        return False
    had = np.flatnonzero(states == ReserveState.HAVE).tolist()
    digests = (event.chain[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES] for at in had)
    return not all(state.index.segment[tree.rows[digest]].all() for digest in digests)


def _note_refused(state: State, tree: Tree, digest: bytes, reason: NotAdmitted) -> None:
    """Remember why the first chunk of a tail was not admitted; those behind follow from it."""
    why = _STORIES[reason]
    state.story.note((tree.digest, tree.lane, digest), Note(state.now_ns, why))


def _count(state: State, tenant: str, states: np.ndarray, reason: NotAdmitted) -> None:
    """Count the chunks of an answer: those with places or had, and why others have none."""
    numbers = np.bincount(states, minlength=ReserveState.NOT_ADMITTED + 1).tolist()
    counts = state.counts
    for said in (ReserveState.HAVE, ReserveState.RESERVED, ReserveState.REPLACE):
        counts.reserved_chunks[tenant, said] += numbers[said]
    if refused := numbers[ReserveState.NOT_ADMITTED]:
        counts.not_admitted_chunks[tenant, reason] += refused


def on_reserve(state: State, event: ReserveWanted) -> list[Effect]:
    """Answer each chunk, with extents for those to be filled; a full cache refuses the tail.

    A durable wish for chunks that are had, but not on disk yet, gets a reservation of nothing: its
    Seal is answered once they are.
    """
    if event.durable:
        _check_durable(state)
    session, tree = tree_of(state, event.session, event.keyspace, event.lane)
    starts = range(0, len(event.chain), DIGEST_BYTES)
    chain = [event.chain[at : at + DIGEST_BYTES] for at in starts]
    count = len(chain)
    check_sizes(state, event.sizes, count)
    _check_bounds(state, session)
    parent = tree.rows.get(event.parent, NO_ROW) if event.parent else NO_ROW
    slabs = np.zeros((count, CLASS_COUNT), np.uint32)
    offsets = np.zeros((count, CLASS_COUNT), np.uint64)
    if event.parent and (parent == NO_ROW or not state.index.complete(parent)):
        states = np.full(count, ReserveState.NOT_ADMITTED, np.uint8)
        if chain:
            _note_refused(state, tree, chain[0], NotAdmitted.PREFIX_BROKEN)
        _count(state, session.tenant, states, NotAdmitted.PREFIX_BROKEN)
        outcome = Reserved(0, 0, states, slabs, offsets, NotAdmitted.PREFIX_BROKEN)
        return [Answer(event.request, event.session, outcome)]
    states, held = _known(state, tree, parent, chain)
    if held != NO_ROW:
        # Held from here on, so that making room cannot take what was just answered as had.
        state.index.pins[held] += 1
    wanted = np.flatnonzero(states != ReserveState.HAVE)
    if len(wanted) and not _has_generation(state):
        states[wanted[0] :], wanted = ReserveState.NOT_ADMITTED, wanted[:0]
    sizes = event.sizes[wanted].ravel()
    placement = place_strips(state, session, sizes)
    placed = placement.count // CLASS_COUNT
    give_back_strips(state, placement, sizes, placed * CLASS_COUNT)
    slabs[wanted] = placement.slabs.reshape(-1, CLASS_COUNT)
    offsets[wanted] = placement.offsets.reshape(-1, CLASS_COUNT)
    if placed < len(wanted):
        states[wanted[placed] :] = ReserveState.NOT_ADMITTED
    effects, reason = placement.effects, placement.reason
    refused = np.flatnonzero(states == ReserveState.NOT_ADMITTED)
    if len(refused):
        reason = reason or NotAdmitted.GROWING
        _note_refused(state, tree, chain[int(refused[0])], reason)
    _count(state, session.tenant, states, reason)
    if not placed and not _waits_for_disk(state, event, tree, states):
        if held != NO_ROW:
            state.index.pins[held] -= 1
        outcome = Reserved(0, 0, states, slabs, offsets, reason)
        return [*effects, Answer(event.request, event.session, outcome)]
    opened = (states == ReserveState.RESERVED) | (states == ReserveState.REPLACE)
    state.generation += 1
    state.reservation_id += 1
    reservation = Reservation(
        state.reservation_id, session.id, tree, chain, parent, state.generation,
        opened, slabs, offsets, event.sizes.copy(),
        state.now_ns + state.config.limits.reservation_ttl_ns, held, event.durable,
    )  # fmt: skip
    state.index.adopt(tree)
    state.reservations[reservation.id] = reservation
    state.counts.reservations_opened[session.tenant] += 1
    session.reservations.add(reservation.id)
    outcome = Reserved(reservation.id, state.generation, states, slabs, offsets, reason)
    return [*effects, Answer(event.request, event.session, outcome)]

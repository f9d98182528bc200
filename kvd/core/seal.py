"""Seal: what was filled becomes visible, a chunk whole and at once (I1).

A chunk becomes visible only behind a complete parent, so that prefixes have no holes.
"""

import numpy as np

from kvd.core import save, waits
from kvd.core.counts import DRAM, REPLACED
from kvd.core.drops import extent_of, hold_segments, note_gone
from kvd.core.effects import Effect, SealState
from kvd.core.events import SealWanted
from kvd.core.index import NO_ROW, Saving
from kvd.core.leases import set_aside
from kvd.core.reservations import SEALED, find_reservation, finish, give_back, hold
from kvd.core.reserve import check_sizes
from kvd.core.state import Reservation, State, move_bytes
from kvd.core.story import Note, Why
from kvd.core.transitions import StripState
from kvd.errors import ErrorKind, KvdError
from kvd.policy.value import heat_after
from kvd.types import CLASS_COUNT, Extent

WARM_BITS = 0.1
_OTHERS = {
    SealState.COALESCED: "coalesced",
    SealState.SKIPPED: "skipped",
    SealState.ORPHANED: "orphaned",
}


def on_seal(state: State, event: SealWanted) -> list[Effect]:
    """Seal chunks of a reservation in order; `last` gives back what is left of it."""
    session, number = event.session, event.reservation
    reservation = find_reservation(state, session, number, is_last=event.last)
    _check(state, reservation, event)
    reservation.expires_ns = state.now_ns + state.config.limits.reservation_ttl_ns
    effects: list[Effect] = []
    states = np.zeros(len(event.sizes), np.uint8)
    at = 0
    while at < len(states):
        chunk = event.first + at
        verdict = _verdict(state, reservation, chunk)
        count = 1
        if verdict == SealState.SEALED:
            count = _fresh_run(reservation, chunk, event.first + len(states))
            effects += _seal_run(state, reservation, event, chunk, count)
        elif verdict != SealState.SKIPPED:
            if verdict == SealState.ORPHANED:
                tree, digest = reservation.tree, reservation.chain[chunk]
                state.story.note((tree.digest, tree.lane, digest), Note(state.now_ns, Why.ORPHANED))
            give_back(state, reservation, chunk, StripState.FREE)
        states[at : at + count] = verdict
        if verdict != SealState.SEALED:
            state.counts.sealed_chunks[reservation.tree.tenant, _OTHERS[verdict]] += 1
        at += count
    waited = np.zeros(0, np.int64)
    if reservation.durable:
        waited = waits.rows_of(state, reservation, event)
    if event.last:
        finish(state, reservation, StripState.FREE, SEALED)
    return [*effects, *waits.answer_sealed(state, event, states, waited)]


def _check(state: State, reservation: Reservation, event: SealWanted) -> None:
    end = event.first + len(event.sizes)
    if end > len(reservation.chain):
        raise KvdError(
            ErrorKind.INVALID,
            f"seal of chunks {event.first} to {end} passes the {len(reservation.chain)} reserved",
        )
    check_sizes(state, event.sizes, len(event.sizes))
    if event.roots.shape != event.sizes.shape:
        raise KvdError(
            ErrorKind.INVALID, f"roots are {event.roots.shape}, sizes {event.sizes.shape}"
        )
    over = event.sizes > reservation.sizes[event.first : end]
    if over.any():
        raise KvdError(
            ErrorKind.INVALID,
            f"a strip of {int(event.sizes[over].max())} bytes is larger than what was reserved",
        )


def _parent(reservation: Reservation, chunk: int) -> int:
    if not chunk:
        return reservation.parent
    return reservation.tree.rows.get(reservation.chain[chunk - 1], NO_ROW)


def _verdict(state: State, reservation: Reservation, chunk: int) -> SealState:
    index, parent = state.index, _parent(reservation, chunk)
    if not reservation.open[chunk]:
        return SealState.SKIPPED
    if parent == NO_ROW and (chunk or reservation.parent != NO_ROW):
        return SealState.ORPHANED
    if parent != NO_ROW and not index.complete(parent):
        return SealState.ORPHANED
    row = reservation.tree.rows.get(reservation.chain[chunk], NO_ROW)
    if row != NO_ROW and index.parent[row] != parent:
        return SealState.ORPHANED  # Stored behind another chunk meanwhile.
    if row != NO_ROW and index.complete(row):
        hold(state, reservation, row)
        return SealState.COALESCED
    if row != NO_ROW and index.busy(row):
        return SealState.ORPHANED  # A hand still has to do with the generation that is there.
    return SealState.SEALED


def _fresh_run(reservation: Reservation, chunk: int, end: int) -> int:
    """Return how many chunks from here are filling and not known: sealed as columns at once."""
    known, count = reservation.tree.rows, 0
    while chunk + count < end and reservation.open[chunk + count]:
        if reservation.chain[chunk + count] in known:
            break
        count += 1
    return max(count, 1)


def _seal_run(
    state: State, reservation: Reservation, event: SealWanted, chunk: int, count: int
) -> list[Effect]:
    """Make `count` chunks visible: fresh ones, or one that replaces an incomplete generation."""
    index, tree = state.index, reservation.tree
    chain = reservation.chain[chunk : chunk + count]
    parent = _parent(reservation, chunk)
    old: tuple[Extent, ...] = ()
    known = tree.rows.get(chain[0], NO_ROW)
    if known == NO_ROW:
        rows = index.new_rows(tree, chain, parent)
    else:
        assert count == 1
        rows = np.array([known])
        old = tuple(extent_of(state, known, c) for c in range(CLASS_COUNT) if index.slab[known, c])
        for plane_class in range(CLASS_COUNT):
            index.copies.discard(known * CLASS_COUNT + plane_class)
            if index.slab[known, plane_class]:
                note_gone(state, known, plane_class, DRAM, REPLACED)
        hold_segments(state, known)
        index.saving[known] = Saving.NONE
        if state.ssd is not None:
            state.ssd.unqueue(known)
    fresh = ~index.present[rows[0]]
    span = slice(chunk, chunk + count)
    sizes = event.sizes[chunk - event.first : chunk - event.first + count]
    _count(state, tree.tenant, sizes, "replaced" if known != NO_ROW else "new")
    _fill(state, reservation, span, sizes)
    index.present[rows] = True
    index.slab[rows] = reservation.slabs[span]
    index.offset[rows] = reservation.offsets[span]
    index.size[rows] = sizes
    index.root[rows] = event.roots[chunk - event.first : chunk - event.first + count]
    index.generation[rows] = reservation.generation
    state.seals += 1
    index.sealed_at[rows] = state.seals
    index.profile[rows] = event.profile
    index.condemned[rows] = False
    index.heat[rows] = heat_after(index.heat[rows[0]], state.now_ns)
    reservation.open[span] = False
    index.children[rows[:-1]] += 1
    if parent != NO_ROW:
        index.children[parent] += fresh
        index.place_frontier(parent)
    index.place_frontier(int(rows[-1]))
    hold(state, reservation, int(rows[-1]))
    warm_parents(state, int(rows[0]))
    save.on_sealed(state, rows.tolist())
    return set_aside(state, tree.tenant, old) if old else []


def _count(state: State, tenant: str, sizes: np.ndarray, what: str) -> None:
    state.counts.sealed_chunks[tenant, what] += len(sizes)
    for plane_class, size_bytes in enumerate(sizes.sum(axis=0, dtype=np.int64).tolist()):
        state.counts.sealed_bytes[tenant, plane_class] += size_bytes


def warm_parents(state: State, row: int) -> None:
    """Let heat flow up the chain: a chunk is worth at least what was built on it.

    Stops where the difference is small, so that the next chunk of a chain costs a step or two.
    """
    index = state.index
    heat, at = index.heat[row], int(index.parent[row])
    while at != NO_ROW and index.heat[at] < heat - WARM_BITS:
        index.heat[at] = heat
        at = int(index.parent[at])


def _fill(state: State, reservation: Reservation, span: slice, sizes: np.ndarray) -> None:
    """Account the filled strips as ready, and give back what they did not need."""
    slabs, offsets = reservation.slabs[span], reservation.offsets[span]
    tails = reservation.sizes[span] - sizes
    for slab in np.unique(slabs).tolist():
        filled = int(sizes[slabs == slab].sum())
        whole = Extent(slab, 0, filled)
        move_bytes(state, whole, StripState.FILLING, StripState.READY)
    for at in np.argwhere(tails):
        place = tuple(at)
        begin = int(offsets[place]) + int(sizes[place])
        tail = Extent(int(slabs[place]), begin, int(tails[place]))
        move_bytes(state, tail, StripState.FILLING, StripState.FREE)
    largest = reservation.tree.strip_bytes_max
    for plane_class, size in enumerate(sizes.max(axis=0).tolist()):
        largest[plane_class] = max(largest[plane_class], size)

"""Making room: the least valuable strips go first, in drop order, leaves before their parents.

Leaf first keeps presence monotone along a chain (I6); a pinned strip is never taken (I4).
"""

from dataclasses import dataclass

import numpy as np

from kvd.core.effects import Effect, NotAdmitted
from kvd.core.index import NO_ROW
from kvd.core.slabs import (
    below_share,
    growing,
    recall_for,
    remake,
    settle,
    take_run,
    usable_slabs,
)
from kvd.core.state import Session, Slab, State, move_bytes
from kvd.core.transitions import StripState
from kvd.policy.value import log_density
from kvd.types import CLASS_COUNT, Extent, PlaneClass

SAMPLE_ROWS = 64  # The best of 64 is in the worst 5 % with a chance of 96 %.
# Rounds of eviction that one wish may cause for each strip it wants, and victims of one round:
# they bound the time of one step.
EVICTIONS_PER_STRIP = 2
VICTIMS_MAX = 16
ALIKE_BITS = 1.0  # So near to the least valuable one must a victim of the same round be.


def drop_class(state: State, row: int, plane_class: int) -> int:
    """Free the row's least significant strip and return the slab it lay in."""
    index = state.index
    assert index.top_class(row) == plane_class
    assert not index.children[row, plane_class] and not index.pins[row, plane_class]  # I4, I6
    extent = extent_of(state, row, plane_class)
    move_bytes(state, extent, StripState.READY, StripState.FREE)
    index.slab[row, plane_class] = 0
    parent = int(index.parent[row])
    if parent != NO_ROW:
        index.children[parent, plane_class] -= 1
        # The value of a chunk is at least that of what was built on it.
        index.heat[parent] = max(index.heat[parent], index.heat[row])
    index.place_frontier(row)
    if parent != NO_ROW:
        index.place_frontier(parent)
    if plane_class == PlaneClass.ANCHOR:
        index.forget_row(row)
    return extent.slab


def extent_of(state: State, row: int, plane_class: int) -> Extent:
    index = state.index
    slab = int(index.slab[row, plane_class])
    assert slab, (row, plane_class)
    return Extent(slab, int(index.offset[row, plane_class]), int(index.size[row, plane_class]))


def _candidates(state: State, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return those rows whose top strip nobody holds, and its class."""
    index = state.index
    tops = (index.slab[rows] != 0).sum(axis=1) - 1
    free = index.pins[rows, tops] == 0
    return rows[free], tops[free]


def evict(state: State, useful: set[int], wanted_bytes: int) -> set[int]:
    """Drop the least valuable of some sampled strips until `wanted_bytes` are free in useful slabs.

    Return the slabs they lay in; none when everything is held. When no strip of a useful slab can
    go, one elsewhere goes, of the same tenant: it may be the leaf that keeps useful inner strips
    from being dropped.
    """
    index = state.index
    frontier = np.array(index.frontier, np.int64)
    if not len(frontier):
        return set()
    helps = np.zeros(state.slab_id + 1, bool)
    helps[list(useful)] = True
    sampled = frontier
    if len(frontier) > SAMPLE_ROWS:
        sampled = np.unique(frontier[state.rng.integers(0, len(frontier), SAMPLE_ROWS)])
    rows, tops = _candidates(state, sampled)
    if not helps[index.slab[rows, tops]].any() and len(sampled) < len(frontier):
        rows, tops = _candidates(state, frontier)
    chosen = helps[index.slab[rows, tops]]
    if not chosen.any():
        tenants = {state.slabs[slab].tenant for slab in useful}
        kin = np.array([tree.tenant in tenants for tree in index.trees])
        chosen, wanted_bytes = kin[index.tree_id[rows]], 1
    rows, tops = rows[chosen], tops[chosen]
    if not len(rows):
        return set()
    density = log_density(index.heat[rows], tops, index.size[rows, tops])
    victims = np.argsort(density)[:VICTIMS_MAX]
    # What is worth clearly more is not taken for want of others: the next round sees what lay
    # behind the first ones. A row is named once, and dropping one takes no other off the frontier.
    victims = victims[density[victims] <= density[victims[0]] + ALIKE_BITS]
    slabs: set[int] = set()
    for victim in victims.tolist():
        row, top = int(rows[victim]), int(tops[victim])
        wanted_bytes -= int(index.size[row, top])
        slabs.add(drop_class(state, row, top))
        if wanted_bytes <= 0:
            break
    return slabs


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the first `chunks` of the wanted lie: `slabs` u32[n, 3], `offsets` u64[n, 3]."""

    chunks: int
    slabs: np.ndarray
    offsets: np.ndarray
    reason: NotAdmitted
    effects: list[Effect]


def place_strips(state: State, session: Session, sizes: np.ndarray) -> Placement:
    """Find room for the strips of `sizes` u32[n, 3], evicting as needed, whole chunks in order."""
    flat = sizes.ravel().astype(np.int64)
    slabs, offsets = np.zeros(len(flat), np.uint32), np.zeros(len(flat), np.uint64)
    reason, effects, at = NotAdmitted.NONE, [], 0
    budget = EVICTIONS_PER_STRIP * len(flat)
    while at < len(flat):
        ends = np.cumsum(flat[at:])
        extent, count, given = take_run(state, session, ends)
        effects += given
        if extent is not None:
            slabs[at : at + count] = extent.slab
            offsets[at : at + count] = extent.offset + ends[:count] - flat[at : at + count]
            at += count
            continue
        if not budget:
            reason = NotAdmitted.CAPACITY
            break
        budget -= 1
        reason, more = _make_room(state, session, int(ends[: 2 * CLASS_COUNT].max()))
        effects += more
        if reason != NotAdmitted.NONE:
            break
    chunks = at // CLASS_COUNT
    for strip in range(chunks * CLASS_COUNT, at):
        extent = Extent(int(slabs[strip]), int(offsets[strip]), int(flat[strip]))
        move_bytes(state, extent, StripState.FILLING, StripState.FREE)
        slabs[strip] = offsets[strip] = 0
    shape = sizes.shape
    return Placement(chunks, slabs.reshape(shape), offsets.reshape(shape), reason, effects)


def _make_room(
    state: State, session: Session, wanted_bytes: int
) -> tuple[NotAdmitted, list[Effect]]:
    """Evict strips that can help, or say why nothing can be done now."""
    if growing(state):
        return NotAdmitted.GROWING, []
    own, anew = usable_slabs(state, session)
    effects = recall_for(state, session)
    waiting = NotAdmitted.GROWING if effects else NotAdmitted.CAPACITY
    done = False
    if anew and (not own or below_share(state, session)):
        # One at a time: to empty all of them a little would cost all and help nobody.
        slab = min(anew, key=lambda s: (s.readable_bytes, s.id))
        done, more = _empty(state, slab, session)
        effects += more
    if own:
        slabs = evict(state, own, wanted_bytes)
        done = done or bool(slabs)
        for slab_id in sorted(slabs):
            effects += settle(state, slab_id)
    return NotAdmitted.NONE if done else waiting, effects


def _empty(state: State, slab: Slab, session: Session) -> tuple[bool, list[Effect]]:
    """Evict from a slab that is to be made anew, and make it so once nothing readable is left."""
    effects: list[Effect] = []
    evicted: set[int] = set()
    if slab.readable_bytes:
        evicted = evict(state, {slab.id}, slab.readable_bytes)
        for other in sorted(evicted - {slab.id}):
            effects += settle(state, other)
    if slab.readable_bytes:
        return bool(evicted), effects
    return True, [*effects, *remake(state, slab, session)]

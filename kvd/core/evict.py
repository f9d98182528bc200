"""Making room in dram: the least valuable strips go first.

What is in dram only goes in drop order, leaves before their parents, which keeps presence monotone
along a chain (I6); a copy of what is on disk goes in any order. What is held is never taken (I4).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvd.core.drops import closure_of, drop_all, drop_class, free_copy
from kvd.core.effects import Effect, NotAdmitted
from kvd.core.index import Saving
from kvd.core.shares import below_share, growing, is_bounded
from kvd.core.slabs import (
    is_awaited,
    recall_for,
    remake,
    settle,
    take_run,
    usable_slabs,
)
from kvd.core.state import Session, Slab, State, move_bytes
from kvd.core.story import Why
from kvd.core.transitions import StripState
from kvd.policy.value import log_density
from kvd.types import CLASS_COUNT, Extent

SAMPLE_ROWS = 64  # The best of 64 is in the worst 5 % with a chance of 96 %.
SAMPLES_MAX = 16  # So many times more are looked at where few of them are the tenant's.
# Rounds of eviction that one wish may cause for each strip it wants, and victims of one round:
# they bound the time of one step.
EVICTIONS_PER_STRIP = 2
ROUNDS_MAX = 2048  # A second, about; whoever wants more comes again, as others wait for the loop.
VICTIMS_MAX = 16
_STRIPS_AT_ONCE = 1024  # Placed side by side, so that each round looks at few of many.
# How much less a copy is worth than what would be lost: reading it again costs far less than
# computing it. Arbitrary until measured; log2.
RELOAD_BITS = 4.0
ALIKE_BITS = 1.0  # So near to the least valuable one must a victim of the same round be.


class _Victims(NamedTuple):
    """Strips that may go from dram: `rows`, `classes` i64, `copy` bool: on disk as well."""

    rows: np.ndarray
    classes: np.ndarray
    copy: np.ndarray


def _candidates(state: State, fresh: np.ndarray, copies: np.ndarray) -> _Victims:
    """Return those strips that nobody holds, of rows on the frontier and of numbers of copies."""
    index = state.index
    tops = index.present[fresh].sum(axis=1) - 1
    free = (index.pins[fresh, tops] == 0) & (index.reads[fresh, tops] == 0)
    free &= (index.saving[fresh] != Saving.WRITING) & (index.missing[fresh, tops] == 0)
    rows, classes = np.divmod(copies, CLASS_COUNT)
    idle = (index.reads[rows, classes] == 0) & (index.saving[rows] != Saving.WRITING)
    kind = np.zeros(int(free.sum() + idle.sum()), bool)
    kind[int(free.sum()) :] = True
    return _Victims(
        np.concatenate((fresh[free], rows[idle])), np.concatenate((tops[free], classes[idle])), kind
    )


def _sampled(state: State, helps: np.ndarray) -> _Victims:
    """Return candidates in slabs that help, from a sample, or from all when there is none in it."""
    index = state.index
    bags = (index.frontier, index.copies)
    rows = SAMPLE_ROWS
    if state.config.quotas:
        # Others' rows may be most of all, and a tenant's victims are as well chosen as ever.
        rows *= min(SAMPLES_MAX, max(1, len(state.slabs) // max(1, int(helps.sum()))))
    found = _candidates(state, *(bag.sample(state.rng, rows) for bag in bags))
    if helps[index.slab[found.rows, found.classes]].any():
        return found
    if all(len(bag) <= rows for bag in bags):
        return found
    return _candidates(state, *(bag.members.copy() for bag in bags))


def evict(state: State, useful: set[int], wanted_bytes: int, fit_bytes: int = 0) -> set[int]:
    """Drop the least valuable of some sampled strips until `wanted_bytes` are free in useful slabs.

    With `fit_bytes` only strips as large are dropped, as long as there are some: one leaves a hole
    that a strip of that size fits, where the holes of smaller ones do not join.

    Return the slabs they lay in; none when everything is held. When no strip of a useful slab can
    go, one elsewhere goes, of the same tenant: it may be the leaf that keeps useful inner strips
    from being dropped.
    """
    index = state.index
    helps = np.zeros(state.slab_id + 1, bool)
    helps[list(useful)] = True
    found = _sampled(state, helps)
    chosen = helps[index.slab[found.rows, found.classes]]
    fitting = chosen & (index.size[found.rows, found.classes] >= fit_bytes)
    if fitting.any():
        chosen = fitting
    if not chosen.any():
        tenants = {state.slabs[slab].tenant for slab in useful}
        kin = np.array([tree.tenant in tenants for tree in index.trees], bool)
        # A copy elsewhere is the last of nothing: no inner strip waits for it.
        chosen, wanted_bytes = kin[index.tree_id[found.rows]] & ~found.copy, 1
    rows, classes, copy = (column[chosen] for column in found)
    if not len(rows):
        return _uproot(state, helps)
    density = log_density(index.heat[rows], classes, index.size[rows, classes])
    density -= RELOAD_BITS * copy
    victims = np.argsort(density)[:VICTIMS_MAX]
    # What is worth clearly more is not taken for want of others: the next round sees what lay
    # behind the first ones. A row is named once, and dropping one takes no other off the frontier.
    victims = victims[density[victims] <= density[victims[0]] + ALIKE_BITS]
    slabs: set[int] = set()
    for victim in victims.tolist():
        row, plane_class = int(rows[victim]), int(classes[victim])
        wanted_bytes -= int(index.size[row, plane_class])
        if copy[victim]:
            slabs.add(free_copy(state, row, plane_class))
        else:
            slabs.add(drop_class(state, row, plane_class, Why.ROOM))
        if wanted_bytes <= 0:
            break
    return slabs


def _uproot(state: State, helps: np.ndarray) -> set[int]:
    """Drop a strip in dram only with what stands on it on disk; for want of anything else to go.

    So it stands with a chunk that was replaced while what was built on it is on disk only.
    """
    index = state.index
    fresh = helps[index.slab] & (index.slab != 0) & (index.segment == 0)
    strips = np.flatnonzero(fresh.reshape(-1))
    rows, classes = np.divmod(strips, CLASS_COUNT)
    for at in np.argsort(index.heat[rows])[:SAMPLE_ROWS].tolist():
        row, plane_class = int(rows[at]), int(classes[at])
        behind = closure_of(state, row, plane_class)
        if behind is not None:
            slabs = set(index.slab[behind, plane_class:].ravel().tolist()) - {0}
            drop_all(state, behind, plane_class, Why.ROOM)
            return slabs
    return set()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the first `count` of the wanted strips lie: `slabs` u32[n], `offsets` u64[n]."""

    count: int
    slabs: np.ndarray
    offsets: np.ndarray
    reason: NotAdmitted
    effects: list[Effect]


def place_strips(state: State, session: Session, sizes: np.ndarray) -> Placement:
    """Find room for strips of `sizes` u32[n] in order, evicting as needed; it is FILLING then."""
    flat = sizes.astype(np.int64)
    slabs, offsets = np.zeros(len(flat), np.uint32), np.zeros(len(flat), np.uint64)
    reason, effects, at, fit_bytes = NotAdmitted.NONE, [], 0, 0
    budget = min(ROUNDS_MAX, EVICTIONS_PER_STRIP * len(flat))
    while at < len(flat):
        ends = np.cumsum(flat[at : at + _STRIPS_AT_ONCE])
        extent, count, given = take_run(state, session, ends)
        effects += given
        if extent is not None:
            slabs[at : at + count] = extent.slab
            offsets[at : at + count] = extent.offset + ends[:count] - flat[at : at + count]
            at += count
            fit_bytes = 0
            continue
        if not budget:
            enough = EVICTIONS_PER_STRIP * len(flat) <= ROUNDS_MAX
            reason = _full(state, session) if enough else NotAdmitted.GROWING
            break
        budget -= 1
        wanted = max(fit_bytes, int(ends[: 2 * CLASS_COUNT].max()))
        reason, more = _make_room(state, session, wanted, fit_bytes)
        effects += more
        fit_bytes = int(flat[at])
        if reason != NotAdmitted.NONE:
            break
    return Placement(at, slabs, offsets, reason, effects)


def give_back_strips(state: State, placement: Placement, sizes: np.ndarray, count: int) -> None:
    """Free what was placed behind the first `count` strips."""
    for strip in range(count, placement.count):
        place = int(placement.slabs[strip]), int(placement.offsets[strip])
        extent = Extent(*place, int(sizes[strip]))
        move_bytes(state, extent, StripState.FILLING, StripState.FREE)
        placement.slabs[strip] = placement.offsets[strip] = 0


def _make_room(
    state: State, session: Session, wanted_bytes: int, fit_bytes: int
) -> tuple[NotAdmitted, list[Effect]]:
    """Evict strips that can help, or say why nothing can be done now."""
    if growing(state, session):
        return NotAdmitted.GROWING, []
    own, anew = usable_slabs(state, session)
    done, effects = recall_for(state, session)
    waiting = _full(state, session)
    if effects or is_awaited(state, session):
        waiting = NotAdmitted.GROWING
    if anew and (not own or below_share(state, session)):
        # One at a time: to empty all of them a little would cost all and help nobody.
        slab = min(anew, key=lambda s: (s.readable_bytes, s.id))
        done, more = _empty(state, slab, session)
        effects += more
    if own:
        slabs = evict(state, own, wanted_bytes, fit_bytes)
        done = done or bool(slabs)
        for slab_id in sorted(slabs):
            effects += settle(state, slab_id)
    return NotAdmitted.NONE if done else waiting, effects


def _full(state: State, session: Session) -> NotAdmitted:
    """Return why there is no room: the tenant's quota, or all that there is."""
    return NotAdmitted.QUOTA if is_bounded(state, session) else NotAdmitted.CAPACITY


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

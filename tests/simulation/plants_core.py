"""Bugs planted in the core: of visibility, leases, places in dram, answers, tenants."""

import numpy as np

from kvd.core import deliver, drops, find, keyspaces, leases, reserve, seal, sessions
from kvd.core.effects import ReserveState
from kvd.core.events import ProcessGone, ReserveWanted, SealWanted
from kvd.core.extents import ExtentMap
from kvd.core.index import NO_ROW, Index
from kvd.core.transitions import StripState
from kvd.limits import PAGE_BYTES
from kvd.testing.reading import Fetch
from tests.simulation.planted import Patch, Plant


def visible_before_it_is_complete(patch: Patch) -> None:
    """Reserve makes its chunks visible at once."""
    real = reserve.on_reserve

    def on_reserve(state, event: ReserveWanted):
        effects = real(state, event)
        outcome = getattr(effects[-1], "outcome", None)
        number = getattr(outcome, "reservation", 0)
        if number:
            chunks = int((outcome.states != ReserveState.NOT_ADMITTED).sum())
            roots = np.zeros((chunks, 3), np.uint64)
            sizes = event.sizes[:chunks]
            sealed = SealWanted(0, event.session, number, 0, sizes, roots, 1, last=False)
            seal.on_seal(state, sealed)
        return effects

    patch.setattr(reserve, "on_reserve", on_reserve)


def leases_that_pin_nothing(patch: Patch) -> None:
    real = leases.grant
    patch.setattr(
        find,
        "grant",
        lambda state, session, pins, size, over=None, reads=None: real(
            state, session, [], size, over
        ),
    )
    # A lease that names nothing condemns nothing, which would be found first.
    patch.setattr(Fetch, "note_reported", lambda self, corrupt, before: None)


def reports_about_what_came_later(patch: Patch) -> None:
    real = leases.condemn_read

    def condemn_read(state, lease, corrupt):
        lease.sealed_at = state.seals
        real(state, lease, corrupt)

    patch.setattr(leases, "condemn_read", condemn_read)


def leases_that_pin_one_lane(patch: Patch) -> None:
    """A lookup of several lanes holds what it found in the first one only."""
    real = find.on_lookup
    pins = find._pins

    def on_lookup(state, event):
        with patch.context() as for_this:
            for_this.setattr(
                find, "_pins", lambda index, trees, *rest: pins(index, trees[:1], *rest)
            )
            return real(state, event)

    patch.setattr(find, "on_lookup", on_lookup)


def process_thought_gone_with_its_session(patch: Patch) -> None:
    """What is quarantined is free, and its slabs are given away, while the process still writes."""
    real = sessions.on_ended

    def on_ended(state, event):
        known = event.session in state.sessions
        effects = real(state, event)
        if known:
            patch.setattr(sessions, "on_ended", real)
            effects += sessions.on_process_gone(state, ProcessGone(event.session))
            patch.setattr(sessions, "on_ended", on_ended)
        return effects

    patch.setattr(sessions, "on_ended", on_ended)


def children_of_a_process_forgotten(patch: Patch) -> None:
    """Its slabs are given to others when it is gone, whoever else has them mapped."""
    real = sessions.on_process_gone
    patch.setattr(
        sessions, "on_process_gone", lambda state, event: real(state, ProcessGone(event.session))
    )


def late_seal_thought_the_last(patch: Patch) -> None:
    """Places of a lost reservation are free with its next Seal, whatever is laid behind it."""
    real = seal.find_reservation
    patch.setattr(
        seal,
        "find_reservation",
        lambda state, session, number, *, is_last: real(state, session, number, is_last=True),
    )


def reuse_without_revoke(patch: Patch) -> None:
    patch.setattr(leases, "revoke", lambda state, lease: leases.end(state, lease, "revoked"))
    patch.setattr(deliver, "revoke", lambda state, lease: leases.end(state, lease, "revoked"))


def replaced_strips_freed_at_once(patch: Patch) -> None:
    def set_aside(state, tenant, extents):
        for extent in extents:
            seal.move_bytes(state, extent, StripState.READY, StripState.FREE)
        return []

    patch.setattr(seal, "set_aside", set_aside)


def last_page_given_twice(patch: Patch) -> None:
    """The space map forgets the last page of what it gave."""
    real = ExtentMap.take

    def take(self, ends):
        offset, count = real(self, ends)
        if count and ends[count - 1] > PAGE_BYTES:
            self.give(offset + int(ends[count - 1]) - PAGE_BYTES, PAGE_BYTES)
        return offset, count

    patch.setattr(ExtentMap, "take", take)


def tail_counted_twice(patch: Patch) -> None:
    """What a strip did not need is returned, and still counted as ready."""
    real = seal.move_bytes

    def move_bytes(state, extent, source, target):
        real(state, extent, source, target)
        if (source, target) == (StripState.FILLING, StripState.FREE):
            state.slabs[extent.slab].bytes_by_state[StripState.READY] += extent.size

    patch.setattr(seal, "move_bytes", move_bytes)


def deadlines_not_looked_at(patch: Patch) -> None:
    patch.setattr(deliver, "on_tick", lambda state: [])


def answered_twice(patch: Patch) -> None:
    """A wish that was answered at its deadline is answered again when its delivery ends."""

    def answer_pending(state, request, outcome):
        wish = state.pending.get(request)
        if wish is None:
            return [deliver.Answer(request, 0, outcome)]
        state.sessions[wish.session].requests.remove(request)
        del state.pending[request]
        return [deliver.Answer(request, wish.session, outcome)]

    patch.setattr(deliver, "answer_pending", answer_pending)


def tenants_not_told_apart(patch: Patch) -> None:
    real = keyspaces.keyspace_digest
    patch.setattr(keyspaces, "keyspace_digest", lambda keyspace, tenant: real(keyspace, ""))


def corrupt_chunks_offered(patch: Patch) -> None:
    real = Index.rows_of

    def rows_of(self, tree, chain, count):
        condemned = self.condemned.copy()
        self.condemned[:] = False
        rows = real(self, tree, chain, count)
        self.condemned[:] = condemned
        return rows

    patch.setattr(Index, "rows_of", rows_of)


def sealed_behind_a_hole(patch: Patch) -> None:
    """A chunk becomes visible although the one before it is not complete."""
    patch.setattr(
        Index,
        "complete",
        lambda self, row: bool(self.present[row, 0]) and not self.condemned[row],
    )


def leases_never_lost(patch: Patch) -> None:
    patch.setattr(leases, "on_tick", lambda state: [])


def one_extent_forgotten(patch: Patch) -> None:
    """Of what is evicted the place of an exact strip is never free again."""
    real = drops.move_bytes

    def move_bytes(state, extent, source, target):
        if (source, target) != (StripState.READY, StripState.FREE) or extent.size > PAGE_BYTES:
            real(state, extent, source, target)

    patch.setattr(drops, "move_bytes", move_bytes)


def generations_mixed(patch: Patch) -> None:
    """A chunk that is replaced keeps its old anchor, and is said to be of the new generation."""
    real = seal._seal_run

    def seal_run(state, reservation, event, chunk, count):
        known = reservation.tree.rows.get(reservation.chain[chunk], NO_ROW)
        before = state.index.root[known, 0].copy()
        effects = real(state, reservation, event, chunk, count)
        if known != NO_ROW:
            state.index.root[known, 0] = before
        return effects

    patch.setattr(seal, "_seal_run", seal_run)


PLANTS = tuple(
    Plant(plant, pattern, tiered=False)
    for plant, pattern in (
        (visible_before_it_is_complete, "I1: chunk .* was not sealed|chunk .* was given"),
        (leases_that_pin_nothing, "I5: .* a lease held|I2, I4: lease held|I4: a delivery read"),
        (reports_about_what_came_later, "a report about .* condemned"),
        (leases_that_pin_one_lane, "I5: .* a lease held"),
        (
            process_thought_gone_with_its_session,
            "I2, I4: lease held|I4: a del|I1: .* to be ready|I2: session .* behind a restart",
        ),
        (children_of_a_process_forgotten, "I2, I4: lease held|I4: a del|I1: .* to be ready"),
        (
            late_seal_thought_the_last,
            "I2, I4: lease held|I4: a del|I1: .* to be ready|I4: .* there is another",
        ),
        (reuse_without_revoke, "I2, I4: lease held"),
        (
            replaced_strips_freed_at_once,
            "I2, I4: lease held|I4: a delivery read|I1: .* to be ready",
        ),
        (last_page_given_twice, "I3: slab"),
        (tail_counted_twice, "I3: slab"),
        (deadlines_not_looked_at, "I10: wish .* has no answer by its deadline"),
        (answered_twice, "I10: wish .* is answered twice|I10: an operator was answered"),
        (tenants_not_told_apart, "tenants: "),
        (corrupt_chunks_offered, "chunk .* was (reported corrupt|cleared) and is offered"),
        (sealed_behind_a_hole, "I6|I4: a strip is held, and not present"),
        (one_extent_forgotten, "I3: slab"),
        (generations_mixed, "I2: root .* of another strip"),
        (leases_never_lost, "lease .* outlives its time"),
    )
)

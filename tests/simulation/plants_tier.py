"""Bugs planted in the core's ssd tier.

The core's own invariants of the tier are switched off: the world's oracles must find them alone.
"""

from dataclasses import replace

import numpy as np

from kvd.core import (
    clear,
    commits,
    deliver,
    evict,
    load,
    reclaim,
    recover,
    save,
    segments,
    slabs,
    ssd_invariants,
    waits,
)
from kvd.core.disk_effects import RecycleSegment
from kvd.core.effects import Answer, FetchDone, TellReady
from kvd.core.index import Saving
from kvd.core.segments import find_ssd
from kvd.limits import PAGE_BYTES
from kvd.testing import world
from tests.simulation.planted import Patch, Plant

# ---- saving ----


def durable_when_written(patch: Patch) -> None:
    """A durable Seal is answered once its strips are written, before the commit."""
    real = waits._verdict

    def verdict(state, wait):
        index, written = state.index, find_ssd(state).journal.written
        done = all(row in written or index.segment[row].all() for row in wait.rows.tolist())
        return True if done else real(state, wait)

    patch.setattr(waits, "_verdict", verdict)


def seals_never_late(patch: Patch) -> None:
    real = waits._verdict
    patch.setattr(
        waits, "_verdict", lambda state, wait: real(state, replace(wait, deadline_ns=1 << 62))
    )


def failed_writes_committed(patch: Patch) -> None:
    """A strip that could not be written is committed all the same."""
    real = save.on_strips_written
    patch.setattr(
        save,
        "on_strips_written",
        lambda state, event: real(
            state, replace(event, kinds=np.zeros_like(event.kinds), faults=())
        ),
    )


def dram_given_away_while_it_is_saved(patch: Patch) -> None:
    """Strips that a hand is writing to disk leave dram like any others."""
    real = evict._candidates

    def candidates(state, fresh, copies):
        saving = state.index.saving.copy()
        state.index.saving[saving == Saving.WRITING] = Saving.NONE
        found = real(state, fresh, copies)
        state.index.saving[:] = saving
        keep = (saving[found.rows] != Saving.WRITING) | (found.classes > 0)
        return evict._Victims(*(column[keep] for column in found))

    patch.setattr(evict, "_candidates", candidates)


def two_commits_at_a_time(patch: Patch) -> None:
    real = commits.commit_due

    def commit_due(state):
        ssd = find_ssd(state)
        before, ssd.commit = ssd.commit, None
        sent = real(state)
        ssd.commit = ssd.commit or before
        return sent

    patch.setattr(commits, "commit_due", commit_due)


def more_written_than_a_day_allows(patch: Patch) -> None:
    patch.setattr(save, "_is_spent", lambda ssd: False)


# ---- commits and segments ----


def recycled_when_it_is_chosen(patch: Patch) -> None:
    """A segment gets its next epoch when it begins to be cleared."""
    real = reclaim._begin

    def begin(state):
        effects, ssd = real(state), find_ssd(state)
        segment = ssd.segments.get(ssd.clearing.segment if ssd.clearing else 0)
        if segment is None or not segment.live_bytes:
            return effects
        place = segment.directory, segment.number, segment.epoch + 1, segment.plane_class
        return [*effects, RecycleSegment(0, *place)]

    patch.setattr(reclaim, "_begin", begin)


def freed_under_what_lives_in_it(patch: Patch) -> None:
    patch.setattr(commits, "_is_cleared", lambda ssd, segment: bool(ssd.segments[segment].life))


def more_segments_than_allowed(patch: Patch) -> None:
    real = segments.provide

    def provide(state, stripe, plane_class, *, last):
        ssd = find_ssd(state)
        ssd.segments_max += 9
        effects = real(state, stripe, plane_class, last=last)
        ssd.segments_max -= 9
        return effects

    patch.setattr(save, "provide", provide)


# ---- reads ----


def one_piece_for_all(patch: Patch) -> None:
    """A strip counts as read when its first piece is."""
    real = load.on_strips_read

    def on_strips_read(state, event):
        batch = find_ssd(state).reads[event.batch]
        good = batch.strips[event.items][event.kinds == 0]
        missing = state.index.missing.reshape(-1)
        before = missing[good].copy()
        effects = real(state, event)
        missing[good[before != 0]] = 0
        return effects

    patch.setattr(load, "on_strips_read", on_strips_read)


def failed_reads_taken_as_read(patch: Patch) -> None:
    real = load.on_strips_read

    def on_strips_read(state, event):
        if event.busy:
            return real(state, event)
        return real(state, replace(event, kinds=np.zeros_like(event.kinds), faults=()))

    patch.setattr(load, "on_strips_read", on_strips_read)


def hung_reads_thought_over(patch: Patch) -> None:
    """What a hung read may still write into is free at once."""
    real = load.on_strips_read

    def on_strips_read(state, event):
        return real(state, replace(event, busy=False))

    patch.setattr(load, "on_strips_read", on_strips_read)
    patch.setattr(load, "on_read_released", lambda state, event: [])


def ready_said_once_more(patch: Patch) -> None:
    """Old news of what is ready comes again, and takes back what was said."""
    real = deliver._progress_of

    def progress_of(state, wish, **rest):
        effects = real(state, wish, **rest)
        told = [e for e in effects if isinstance(e, TellReady)]
        return [*effects[:1], replace(told[0], ready=(0, 0, 0)), *effects[1:]] if told else effects

    patch.setattr(deliver, "_progress_of", progress_of)


def cut_too_short(patch: Patch) -> None:
    """A promise loses one chunk more than could not be read."""
    real = deliver._progress_of

    def progress_of(state, wish, **rest):
        return [_shortened(effect) for effect in real(state, wish, **rest)]

    patch.setattr(deliver, "_progress_of", progress_of)


def _shortened(effect: object) -> object:
    match effect:
        case Answer(outcome=FetchDone(counts=(anchors, _, _)) as done) if anchors:
            fewer = tuple(min(count, anchors - 1) for count in done.counts)
            return replace(effect, outcome=replace(done, counts=fewer))
    return effect


def tenants_share_what_is_read(patch: Patch) -> None:
    real = slabs.own_session
    patch.setattr(load, "own_session", lambda state, tenant: real(state, "red"))


# ---- restarts ----


def generations_begin_anew(patch: Patch) -> None:
    real = recover.on_recovered

    def on_recovered(state, event):
        effects = real(state, event)
        state.generation = 0
        return effects

    patch.setattr(recover, "on_recovered", on_recovered)


def open_segments_begin_anew(patch: Patch) -> None:
    """After a restart open segments are written from their first page on."""
    real = recover._count_segments

    def count_segments(state):
        real(state)
        for segment in find_ssd(state).segments.values():
            segment.end = PAGE_BYTES

    patch.setattr(recover, "_count_segments", count_segments)
    patch.setattr(recover, "_spare_ends", lambda ssd, rows, segments: None)


def forgotten_at_recovery(patch: Patch) -> None:
    """Chunks deep in a chain are left out when the daemon begins."""
    real = recover._stand

    def stand(*rows):
        parents, masks, depths = real(*rows)
        masks[depths > 1] = 0
        return parents, masks, depths

    patch.setattr(recover, "_stand", stand)


def cleared_before_it_is_durable(patch: Patch) -> None:
    patch.setattr(clear, "_all_told", lambda state: True)
    real = clear.advance

    patch.setattr(clear, "advance", lambda state: [*_as_if_told(state), *real(state)])


def _as_if_told(state) -> list:
    for each in state.clears:
        each.untold = False
    return []


def clocks_that_win_a_day(patch: Patch) -> None:
    """With every new date the day's bytes may be written again, as well when it is set back."""

    def on_day(state, day):
        find_ssd(state).day, find_ssd(state).refill = day, True

    patch.setattr(save, "on_day", on_day)


def oracles_alone(patch: Patch) -> None:
    for name in ("check", "check_rows"):
        patch.setattr(ssd_invariants, name, lambda state, *found: None)
    patch.setattr(world, "check_some", lambda state, turn: None)


PLANTS = tuple(
    Plant(plant, pattern, tiered=True, setting=oracles_alone)
    for plant, pattern in (
        (durable_when_written, "I7: .* is answered durable"),
        (seals_never_late, "I10: wish .* has no answer by its deadline"),
        (failed_writes_committed, "I7: .* lies in .*, which holds"),
        (
            dram_given_away_while_it_is_saved,
            "I4: a write found|I4: a place .* saved|I6: pres",
        ),
        (two_commits_at_a_time, "I9: two commits in flight"),
        (more_written_than_a_day_allows, "wear: .* bytes are written of"),
        (clocks_that_win_a_day, "wear: .* bytes are written of"),
        (recycled_when_it_is_chosen, "I7: .* is recycled under"),
        (freed_under_what_lives_in_it, "I7: .* is free and holds"),
        (more_segments_than_allowed, "I8: .* makes"),
        (one_piece_for_all, "I1: class .* is said to be ready"),
        (failed_reads_taken_as_read, "I1: class .* is said to be ready"),
        (hung_reads_thought_over, "I4: two reads into|I4: a place .* read into|I4: a read into"),
        (ready_said_once_more, "I1: ready shrinks"),
        (cut_too_short, "I5: .* is cut, and could be read"),
        (tenants_share_what_is_read, "tenants: slab"),
        (generations_begin_anew, "I2: generation .* was given before a restart"),
        (open_segments_begin_anew, "I7: a write over"),
        (forgotten_at_recovery, "I7: .* is durable and not found"),
        (cleared_before_it_is_durable, "is cleared, and in the catalog"),
    )
)

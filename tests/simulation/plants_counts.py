"""Wrong counts planted in the core, each of which the world must find by the family named here."""

from kvd.core import commits, drops, find, seal, tallies
from kvd.core.counts import REPLACED
from tests.simulation.planted import Patch, Plant


def coming_strips_hit_dram(patch: Patch) -> None:
    """What is read from disk for a fetch counts as found in dram."""
    real = tallies._count

    def count(counts, key, asked, hit):
        real(counts, key, asked, asked if key[1] == "dram" and hit else hit)

    patch.setattr(tallies, "_count", count)


def lookups_count_one_lane(patch: Patch) -> None:
    real = find.tallies.on_lookup

    def on_lookup(counts, tenant, event, found):
        real(counts, tenant, event, tuple(count // 2 for count in found))

    patch.setattr(find.tallies, "on_lookup", on_lookup)


def replaced_strips_are_not_gone(patch: Patch) -> None:
    real = drops.note_gone

    def note_gone(state, row, plane_class, tier, why):
        if why != REPLACED:
            real(state, row, plane_class, tier, why)

    patch.setattr(seal, "note_gone", note_gone)
    patch.setattr(drops, "note_gone", note_gone)


def leases_end_twice(patch: Patch) -> None:
    real = find.end

    def end(state, lease, how):
        state.counts.leases_ended[state.sessions[lease.session].tenant, how] += 1
        return real(state, lease, how)

    patch.setattr(find, "end", end)


def moved_strips_are_durable_again(patch: Patch) -> None:
    """What was written again for its segment to be cleared counts as new on disk."""
    real = commits._settle_row

    def settle_row(state, row, segments, pages):
        before = state.counts.ssd_moved_strips.copy()
        real(state, row, segments, pages)
        for plane_class, number in (state.counts.ssd_moved_strips - before).items():
            state.counts.ssd_durable_strips[plane_class] += number

    patch.setattr(commits, "_settle_row", settle_row)


PLANTS = tuple(
    Plant(plant, pattern, tiered=True, counted=True)
    for plant, pattern in (
        (coming_strips_hit_dram, r"counts: fetch_(hit|missed)_strips"),
        (lookups_count_one_lane, r"counts: lookup_(hit|missed)_strips"),
        (replaced_strips_are_not_gone, "counts: class . (in dram|on disk)"),
        (leases_end_twice, "counts: leases"),
        (moved_strips_are_durable_again, "counts: class . on disk"),
    )
)

"""Reads the core's state as numbers, by the names of the table of metrics. Changes nothing.

Called on the loop's thread: sums over slabs, segments, sessions and trees, never over chunks.
"""

from collections import Counter
from dataclasses import fields

from kvd.core.counts import DRAM, Counts
from kvd.core.slabs import is_own
from kvd.core.ssd import Ssd
from kvd.core.state import State
from kvd.core.transitions import SlabState, StripState
from kvd.observe.samples import Reading, Series


def read_counts(counts: Counts) -> Reading:
    """Return a copy of all counts."""
    families = ((each.name, getattr(counts, each.name)) for each in fields(counts))
    return {f"kvd_{name}_total": _by_labels(family) for name, family in families}


def _by_labels(family: Counter) -> Series:
    """Return a family by tuples: one of a single label has no need of them where it is counted."""
    return {key if type(key) is tuple else (key,): number for key, number in family.items()}


def read_gauges(state: State) -> Reading:
    reading = {**_of_slabs(state), **_of_index(state), **_of_sessions(state)}
    reading |= {
        "kvd_dram_configured_bytes": {(): state.config.dram_bytes},
        "kvd_pending_fetches": {(): len(state.pending)},
        "kvd_postponed_fetches": {(): len(state.postponed)},
        "kvd_open_deliveries": {(): len(state.delivering)},
        "kvd_draining": {(): state.draining},
        "kvd_generation": {(): state.generation},
    }
    return reading if state.ssd is None else reading | _of_ssd(state.ssd)


def _of_slabs(state: State) -> Reading:
    held: Counter[tuple[str, str]] = Counter()
    unowned = 0
    for slab in state.slabs.values():
        if slab.state == SlabState.TOUCHING:
            continue
        if not slab.tenant:
            unowned += slab.size
            continue
        held[slab.tenant, StripState.FREE] += slab.extents.free_bytes
        for what, size_bytes in slab.bytes_by_state.items():
            held[slab.tenant, what] += size_bytes
    slabs = Counter((slab.state,) for slab in state.slabs.values())
    return {"kvd_dram_bytes": held, "kvd_dram_unowned_bytes": {(): unowned}, "kvd_slabs": slabs}


def _of_index(state: State) -> Reading:
    """Of what is in dram no column is summed: it is what came in less what went."""
    chunks: Counter[tuple[str]] = Counter()
    for tree in state.index.trees:
        chunks[tree.tenant,] += len(tree.rows)
    counts = state.counts
    in_dram = Counter(counts.adopted_bytes)
    in_dram.update(counts.ssd_read_bytes)
    for (_, plane_class), size_bytes in counts.sealed_bytes.items():
        in_dram[plane_class] += size_bytes
    for (_, tier, plane_class, _), size_bytes in counts.evicted_bytes.items():
        in_dram[plane_class] -= size_bytes * (tier == DRAM)
    return {"kvd_chunks": chunks, "kvd_dram_class_bytes": _by_labels(in_dram)}


def _of_sessions(state: State) -> Reading:
    sessions, leases, reservations = Counter(), Counter(), Counter()
    lease_bytes: Counter[tuple[str]] = Counter()
    for session in state.sessions.values():
        if is_own(session.id):
            continue
        key = (session.tenant,)
        sessions[key] += 1
        leases[key] += len(session.leases)
        lease_bytes[key] += session.lease_bytes
        reservations[key] += len(session.reservations)
    return {
        "kvd_sessions": sessions,
        "kvd_leases": leases,
        "kvd_lease_bytes": lease_bytes,
        "kvd_reservations": reservations,
    }


def _of_ssd(ssd: Ssd) -> Reading:
    live: Counter[tuple[int]] = Counter()
    for segment in ssd.segments.values():
        live[segment.plane_class,] += segment.live_bytes
    today = ssd.written[1] if ssd.written[0] == ssd.day else 0
    directories = [(directory.number, directory) for directory in ssd.directories]
    return {
        "kvd_ssd_segments_max": {(): ssd.segments_max},
        "kvd_ssd_segments": {(life,): count for life, count in ssd.lives.items()},
        "kvd_ssd_segment_bytes": {(): ssd.config.segment_bytes},
        "kvd_ssd_class_bytes": live,
        "kvd_ssd_tenant_bytes": _by_labels(ssd.used),
        "kvd_ssd_free_bytes": {(n,): each.free_bytes or 0 for n, each in directories},
        "kvd_ssd_directory_degraded": {(n,): each.fault is not None for n, each in directories},
        "kvd_ssd_catalog_degraded": {(): (ssd.catalog_fault or ssd.map_full) is not None},
        "kvd_ssd_write_queue_bytes": {(): ssd.queued_bytes},
        "kvd_ssd_write_queue_chunks": {(): len(ssd.queue) + len(ssd.moves)},
        "kvd_ssd_writes": {(): len(ssd.writes)},
        "kvd_ssd_reading_bytes": {(): ssd.reading_bytes},
        "kvd_ssd_waiting_seals": {(): len(ssd.waits)},
        "kvd_ssd_written_today_bytes": {(): today},
        "kvd_ssd_daily_bound_bytes": {(): ssd.config.daily_write_bytes},
    }

"""I2 to I6, I9 to I11 as one function over the state. Run each step in simulation.

Everything derived is derived again here, from the ground, and compared.
"""

from collections import defaultdict

import numpy as np

from kvd.core.index import NO_ROW
from kvd.core.reservations import open_extents
from kvd.core.state import State
from kvd.core.transitions import LeaseState, SessionState, SlabState, StripState
from kvd.types import CLASS_COUNT


def check(state: State) -> None:
    """Raise AssertionError naming the invariant that does not hold."""
    live = _live_rows(state)
    _check_prefixes(state, live)
    _check_frontier(state, live)
    _check_pins(state, live)
    _check_extents(state, live)
    _check_sessions(state)
    _check_wishes(state)


def _live_rows(state: State) -> list[int]:
    index = state.index
    live = [row for tree in index.trees for row in tree.rows.values()]
    assert len(live) == len(set(live)) == index.row_count
    assert len(index.free_rows) + index.row_count == len(index.parent)
    for tree in index.trees:
        for digest, row in tree.rows.items():
            assert index.chain[row] == digest and index.tree_id[row] == tree.id
    return live


def _check_prefixes(state: State, live: list[int]) -> None:
    """I6: a class stands on the classes before it, and on the same class of the parent."""
    index = state.index
    children: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(CLASS_COUNT, np.int32))
    for row in live:
        present = index.slab[row] != 0
        assert present[0], f"I6: row {row} has no anchor"
        assert (present[1:] <= present[:-1]).all(), f"I6: row {row} has {present}"
        parent = int(index.parent[row])
        if parent != NO_ROW:
            assert index.chain[parent] is not None, f"I6: row {row} outlived its parent"
            above = index.slab[parent] != 0
            assert (present <= above).all(), f"I6: row {row} has {present}, its parent {above}"
            children[parent] += present
        assert 0 < index.generation[row] <= state.generation
    for row in live:
        assert (index.children[row] == children[row]).all(), f"children of row {row}"


def _check_frontier(state: State, live: list[int]) -> None:
    index = state.index
    expected = {r for r in live if not index.children[r, index.top_class(r)]}
    assert set(index.frontier) == expected and len(index.frontier) == len(expected)
    for at, row in enumerate(index.frontier):
        assert index.frontier_at[row] == at


def _check_pins(state: State, live: list[int]) -> None:
    """I4: what leases and open reservations hold is counted exactly, and present."""
    index = state.index
    pins = np.zeros_like(index.pins)
    for lease in state.leases.values():
        assert lease.state != LeaseState.ENDED
        for row, plane_class in lease.pins:
            assert index.slab[row, plane_class], f"I4: lease {lease.id} lost its strip"
            pins[row, plane_class] += 1
    for reservation in state.reservations.values():
        if reservation.pinned != NO_ROW:
            pins[reservation.pinned] += 1
    assert (pins == index.pins).all(), "I4: pins"
    waiting = [limbo.after_lease for limbo in state.limbo]
    assert waiting == sorted(waiting)
    if waiting:
        assert state.leases and next(iter(state.leases)) <= waiting[0], "I2: limbo without reader"


def _check_extents(state: State, live: list[int]) -> None:
    """I3: every byte of every slab is in exactly one place."""
    index = state.index
    held: dict[int, list[tuple[int, int, StripState]]] = defaultdict(list)
    for row in live:
        for c in range(CLASS_COUNT):
            if slab := int(index.slab[row, c]):
                place = (int(index.offset[row, c]), int(index.size[row, c]), StripState.READY)
                held[slab].append(place)
    for reservation in state.reservations.values():
        kind = StripState.QUARANTINED if reservation.lost else StripState.FILLING
        for extent in open_extents(reservation):
            held[extent.slab].append((extent.offset, extent.size, kind))
    for limbo in state.limbo:
        for extent in limbo.extents:
            held[extent.slab].append((extent.offset, extent.size, StripState.FREEING))
    for extents in state.quarantine.values():
        for extent in extents:
            held[extent.slab].append((extent.offset, extent.size, StripState.QUARANTINED))
    assert set(held) <= set(state.slabs), "I3: an extent in a slab that is gone"
    for slab in state.slabs.values():
        places = held[slab.id]
        for kind, counted in slab.bytes_by_state.items():
            assert counted == sum(p[1] for p in places if p[2] == kind), f"I3: {kind}"
        free = zip(slab.extents.begins, slab.extents.sizes, strict=True)
        places = sorted([(b, s, StripState.FREE) for b, s in free] + places)
        at = 0
        for begin, size, _ in places:
            assert begin == at and size > 0, f"I3: slab {slab.id} at {at}: {places}"
            at += size
        assert at == slab.size, f"I3: slab {slab.id} ends at {at}"
    everything = sum(state.bytes_in(s) for s in StripState)
    assert everything == state.capacity_bytes <= state.config.dram_bytes, "I3"


def _check_sessions(state: State) -> None:
    """I9, I11: bounds hold, and everything belongs to a session that is there."""
    limits = state.config.limits
    owned = defaultdict(int)
    for lease in state.leases.values():
        assert lease.id in state.sessions[lease.session].leases, "I11"
        owned[lease.session] += lease.size_bytes
    for reservation in state.reservations.values():
        session = state.sessions[reservation.session]
        assert session.state == SessionState.OPEN, "I11"
        assert reservation.id in session.reservations, "I11"
    for session in state.sessions.values():
        assert session.lease_bytes == owned[session.id] <= limits.lease_bytes_per_session_max
        assert len(session.leases) <= limits.leases_per_session_max, "I9"
        assert len(session.reservations) <= limits.reservations_per_session_max, "I9"
        assert len(session.requests) <= limits.requests_per_session_max, "I9"
        assert len(session.keyspaces) <= limits.keyspaces_per_session_max, "I9"
        assert session.slabs_known <= set(state.slabs), "I11: a slab that is gone"
        if session.state == SessionState.DRAINING:
            assert not session.reservations and not session.requests, "I11"
            assert not session.slabs_owned, "I11"
    writers = {}
    for session in state.sessions.values():
        for slab_id in session.slabs_owned:
            assert slab_id not in writers, "I11: two writers of one slab"
            writers[slab_id] = session
    for slab in state.slabs.values():
        if slab.state in (SlabState.OWNED, SlabState.RECALLING):
            assert writers[slab.id].id == slab.owner and slab.tenant == writers[slab.id].tenant
        else:
            assert slab.id not in writers


def _check_wishes(state: State) -> None:
    """I10: whatever waits has a lease, a session and a deadline."""
    for wish in state.pending.values():
        assert state.delivering[wish.request] == wish.lease, "I10"
        assert wish.request in state.sessions[wish.session].requests, "I10"
        assert state.leases[wish.lease].deliveries > 0
    reading = defaultdict(int)
    for lease_id in state.delivering.values():
        reading[lease_id] += 1
    for lease in state.leases.values():
        assert lease.deliveries == reading[lease.id]

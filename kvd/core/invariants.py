"""I2 to I6, I9 to I11 as one function over the state. Run each step in simulation.

Everything derived is derived again here, from the ground, and compared.
"""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from kvd.core import ssd_invariants
from kvd.core.index import COLUMNS, NO_ROW, OF_LIVE_ROWS
from kvd.core.leases import oldest_leases
from kvd.core.reservations import open_extents
from kvd.core.slabs import is_own
from kvd.core.state import State
from kvd.core.transitions import LeaseState, SessionState, SlabState, StripState
from kvd.types import CLASS_COUNT, Extent

# What moves without anything that stands in the index: heat is no invariant, holds are looked at
# each time.
_MOVING = ("heat", "pins", "reads")
_Place = tuple[int, int, StripState]  # Offset, size.
_Places = dict[int, list[_Place]]  # By slab.
_STANDING = tuple(name for name in COLUMNS if name not in _MOVING)


def check(state: State) -> None:
    """Raise AssertionError naming the invariant that does not hold."""
    Checker().check(state)


class Checker:
    """Checks the states of one core again and again, as `check` does.

    What follows from what stands in the index alone is derived anew only where that has changed
    since, byte by byte: after one event of eight.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._live = np.zeros(0, np.int64)
        self._in_dram: _Places = {}
        self._on_disk = None

    def check(self, state: State) -> None:
        seen = _standing(state)
        if seen != self._seen:
            self._live = _live_rows(state)
            _check_prefixes(state, self._live)
            _check_links(state, self._live)
            _check_frontier(state, self._live)
            self._in_dram = _places_of_rows(state, self._live)
            if state.ssd is not None:
                ssd_invariants.check_rows(state, self._live)
                self._on_disk = ssd_invariants.derive(state, self._live)
            self._seen = seen
        generations = state.index.generation[self._live]
        assert (generations <= state.generation).all(), "I2: a generation to come"
        _check_pins(state)
        _check_extents(state, self._in_dram)
        _check_sessions(state)
        _check_wishes(state)
        if self._on_disk is not None:
            ssd_invariants.check(state, self._on_disk)


def _standing(state: State) -> tuple[object, ...]:
    """Return all that the checks of rows read, as values to be compared."""
    index, ssd = state.index, state.ssd
    held = () if ssd is None else (*ssd.held, *(ssd.commit.held if ssd.commit else ()))
    return (
        held,
        index.row_count,
        len(index.free_rows),
        [len(tree.rows) for tree in index.trees],
        index.frontier.members.tobytes(),
        index.copies.members.tobytes(),
        *[getattr(index, name).tobytes() for name in _STANDING],
    )


def _live_rows(state: State) -> np.ndarray:
    index = state.index
    live = [row for tree in index.trees for row in tree.rows.values()]
    assert len(live) == len(set(live)) == index.row_count
    assert len(index.free_rows) + index.row_count == len(index.parent)
    for tree in index.trees:
        rows = np.fromiter(tree.rows.values(), np.int64, len(tree.rows))
        assert (index.tree_id[rows] == tree.id).all()
        assert [index.chain[row] for row in rows.tolist()] == list(tree.rows)
    return np.array(live, np.int64)


def _check_prefixes(state: State, live: np.ndarray) -> None:
    """I6: a class stands on the classes before it, and on the same class of the parent."""
    index = state.index
    present = index.present[live]
    held = (index.slab[live] != 0) | (index.segment[live] != 0)
    assert (present == held).all(), f"I6: present nowhere: {live[(present != held).any(axis=1)]}"
    assert present[:, 0].all(), f"I6: without an anchor: {live[~present[:, 0]]}"
    assert (present[:, 1:] <= present[:, :-1]).all(), "I6: a class without the one before it"
    parents = index.parent[live]
    behind = parents != NO_ROW
    known = np.zeros(len(index.parent), bool)
    known[live] = True
    assert known[parents[behind]].all(), "I6: a row outlived its parent"
    for name in OF_LIVE_ROWS:
        column = getattr(index, name)
        here = np.count_nonzero(column[live])
        assert np.count_nonzero(column) == here, f"{name} of a row that is gone"
    above = index.present[parents[behind]]
    holes = (present[behind] > above).any(axis=1)
    assert not holes.any(), f"I6: their parents have less: {live[behind][holes]}"
    strips = parents[behind, None] * CLASS_COUNT + np.arange(CLASS_COUNT)
    counts = np.bincount(strips[present[behind]], minlength=index.children.size)
    wrong = counts != index.children.reshape(-1)
    assert not wrong.any(), f"children of rows {np.flatnonzero(wrong) // CLASS_COUNT}"
    assert (index.generation[live] > 0).all(), "I2: no generation"


def _check_links(state: State, live: np.ndarray) -> None:
    index = state.index
    children = defaultdict(set)
    for row, parent in zip(live.tolist(), index.parent[live].tolist(), strict=True):
        children[parent].add(row)
        above = -1 if parent == NO_ROW else int(index.depth[parent])
        assert index.depth[row] == above + 1, f"depth of {row}"
    for row in live.tolist():
        linked = index.children_of(row)
        assert set(linked) == children[row] and len(linked) == len(children[row]), row


def _check_frontier(state: State, live: np.ndarray) -> None:
    index = state.index
    tops = index.present[live].sum(axis=1) - 1
    last = (index.children[live, tops] == 0) & (index.segment[live, tops] == 0)
    expected = set(live[last].tolist())
    members = index.frontier.members.tolist()
    assert set(members) == expected and len(members) == len(expected)
    both = (index.slab != 0) & (index.segment != 0) & (index.in_flight == 0)
    copies = index.copies.members.tolist()
    assert set(copies) == set(np.flatnonzero(both.reshape(-1)).tolist()), "copies"
    assert len(set(copies)) == len(copies)


def _check_pins(state: State) -> None:
    """I4: what leases and open reservations hold is counted exactly, and present."""
    index = state.index
    pins = np.zeros_like(index.pins)
    reads = np.zeros(index.reads.size, index.reads.dtype)
    if state.ssd is not None and state.ssd.clearing is not None:
        reads[state.ssd.clearing.strips] += 1
    for lease in state.leases.values():
        assert lease.state != LeaseState.ENDED
        for row, plane_class in lease.pins:
            assert index.present[row, plane_class], f"I4: lease {lease.id} lost its strip"
            pins[row, plane_class] += 1
        reads[lease.reads] += 1
    for pin in state.pins.values():
        for row, plane_class in pin.pins:
            assert index.present[row, plane_class], f"I4: pin {pin.id} lost its strip"
            pins[row, plane_class] += 1
        reads[pin.reads] += 1
    for reservation in state.reservations.values():
        if reservation.pinned != NO_ROW:
            pins[reservation.pinned] += 1
    assert (pins == index.pins).all(), "I4: pins"
    assert (reads == index.reads.reshape(-1)).all(), "I4: reads"
    oldest = oldest_leases(state)
    for limbo in state.limbo:
        first = oldest.get(limbo.tenant)
        assert first is not None and first <= limbo.after_lease, "I2: limbo without reader"


def _check_extents(state: State, in_dram: _Places) -> None:
    """I3: every byte of every slab is in exactly one place."""
    held = {slab: places.copy() for slab, places in in_dram.items()}
    for kind, extents in _places_of_others(state):
        for extent in extents:
            held.setdefault(extent.slab, []).append((extent.offset, extent.size, kind))
    assert held.keys() <= state.slabs.keys(), "I3: an extent in a slab that is gone"
    for slab in state.slabs.values():
        places = held.get(slab.id, [])
        counted = dict.fromkeys(slab.bytes_by_state, 0)
        for _, size, kind in places:
            counted[kind] += size
        assert counted == slab.bytes_by_state, f"I3: slab {slab.id}: {counted}"
        free = zip(slab.extents.begins, slab.extents.sizes, strict=True)
        places += [(begin, size, StripState.FREE) for begin, size in free]
        places.sort()
        at = 0
        for begin, size, _ in places:
            assert begin == at and size > 0, f"I3: slab {slab.id} at {at}: {places}"
            at += size
        assert at == slab.size, f"I3: slab {slab.id} ends at {at}"
        assert slab.extents.free_bytes == sum(slab.extents.sizes), "I3: free bytes"
    assert state.capacity_bytes <= state.config.dram_bytes, "I3: more dram than configured"


def _places_of_rows(state: State, live: np.ndarray) -> _Places:
    index, places = state.index, defaultdict(list)
    columns = (
        index.slab[live], index.offset[live], index.size[live], index.in_flight[live],
        index.hung[live],
    )  # fmt: skip
    for slab, offset, size, coming, hung in zip(
        *(c.ravel().tolist() for c in columns), strict=True
    ):
        if slab:
            kind = StripState.FILLING if coming else StripState.READY
            places[slab].append((offset, size, StripState.QUARANTINED if hung else kind))
    return places


def _places_of_others(state: State) -> list[tuple[StripState, Iterable[Extent]]]:
    """Return what is not free, and no row's."""
    kinds: list[tuple[StripState, Iterable[Extent]]] = [
        (StripState.QUARANTINED if r.lost else StripState.FILLING, open_extents(r))
        for r in state.reservations.values()
    ]
    kinds += [(StripState.FREEING, limbo.extents) for limbo in state.limbo]
    kinds += [(StripState.QUARANTINED, extents) for extents in state.quarantine.values()]
    return kinds


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
        if is_own(session.id):
            assert not session.leases and not session.reservations and not session.requests
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
        assert wish.request in state.sessions[wish.session].requests, "I10"
        if not wish.mapped:
            assert state.delivering[wish.request] == wish.lease, "I10"
            assert state.leases[wish.lease].deliveries > 0
    reading = defaultdict(int)
    for lease_id in state.delivering.values():
        reading[lease_id] += 1
    for lease in state.leases.values():
        assert lease.deliveries == reading[lease.id]

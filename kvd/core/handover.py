"""What a daemon that ends leaves of its dram: State to columns, changing nothing.

Left out is what may change behind the next daemon's back, and what nobody may be offered.
"""

import numpy as np

from kvd.core.columns import row_keys_of
from kvd.core.dram import LeftDram, LeftRows, LeftSlab
from kvd.core.index import NO_ROW
from kvd.core.slabs import is_own
from kvd.core.state import Slab, State
from kvd.core.transitions import SlabState, StripState


def leave_dram(state: State) -> LeftDram:
    """Return what the next daemon may take over; the sessions of this one must have ended."""
    assert state.draining, "who still reads was not told"
    kept = [left for slab in state.slabs.values() if (left := _left(slab)) is not None]
    rows, places = _readable(state, np.array([left.slab for left in kept], np.uint32))
    index = state.index
    trees = [index.trees[tree_id] for tree_id in np.unique(index.tree_id[rows]).tolist()]
    chain, there = index.chain, places != 0
    parents = [chain[p] if p != NO_ROW else b"" for p in index.parent[rows].tolist()]
    return LeftDram(
        state.generation,
        state.config.slab_bytes,
        {tree.digest: (tree.keyspace, tree.tenant) for tree in trees if tree.keyspace},
        tuple(kept),
        LeftRows(
            row_keys_of(state, rows), parents,  # type: ignore[arg-type]
            index.generation[rows], index.profile[rows], index.heat[rows], places,
            np.where(there, index.offset[rows], 0), np.where(there, index.size[rows], 0),
            np.where(there, index.root[rows], 0),
        ),
    )  # fmt: skip


def is_detached(state: State) -> bool:
    """Return whether no session can write into dram any more, or says that it cannot."""
    owned = (SlabState.OWNED, SlabState.RECALLING)
    return not any(s.state in owned and not is_own(s.owner) for s in state.slabs.values())


def _left(slab: Slab) -> LeftSlab | None:
    """Return the slab as it is left, or None where something other than a session may write."""
    by_session = slab.state == SlabState.ORPHAN
    if slab.state in (SlabState.OWNED, SlabState.RECALLING):
        by_session = not is_own(slab.owner)
    if slab.state == SlabState.TOUCHING:
        return None
    if by_session:
        # What is left in it stays readable; what its writer did not seal is never named.
        readable = slab.bytes_by_state[StripState.READY]
        return LeftSlab(slab.id, slab.tenant, True) if readable else None
    if slab.bytes_by_state[StripState.FILLING] or slab.bytes_by_state[StripState.QUARANTINED]:
        return None  # A read that is under way, or hung, may outlive this daemon's loop.
    return LeftSlab(slab.id, slab.tenant, False)


def _readable(state: State, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that have a whole strip in a kept slab, parents first, and the slabs."""
    index = state.index
    live = [row for tree in index.trees if tree.keyspace for row in tree.rows.values()]
    rows = np.array(live, np.int64)
    rows = rows[~index.condemned[rows]]
    whole = np.isin(index.slab[rows], kept) & (index.in_flight[rows] == 0)
    places = np.where(whole, index.slab[rows], 0).astype(np.uint32)
    some = places.any(axis=1)
    rows, places = rows[some], places[some]
    order = np.argsort(index.depth[rows], kind="stable")
    return rows[order], places[order]

"""Dram of a daemon before, taken over: whole columns at once, after what the catalog held.

Where both know a chunk of one generation, its strips in dram are copies; where they differ the
catalog is believed, as what it names is durable; what it does not know is fresh, and is to be
written. What would make a hole stays out (I6).
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from kvd.core import save
from kvd.core.counts import add_by_class
from kvd.core.dram import LeftDram, LeftRows, LeftSlab
from kvd.core.effects import DestroySlab, Effect
from kvd.core.events import Adopted
from kvd.core.extents import ExtentMap
from kvd.core.index import NO_ROW, Tree
from kvd.core.keyspaces import named_tree
from kvd.core.shares import group_of
from kvd.core.slabs import is_own
from kvd.core.state import Slab, State
from kvd.core.transitions import SlabState, StripState
from kvd.types import CLASS_COUNT

_BITS = 1 << np.arange(CLASS_COUNT)
_ALL = (1 << CLASS_COUNT) - 1
# The leading classes of a set of classes, a bit each.
_LEADING = [mask & ~(mask + 1) for mask in range(_ALL + 1)]


@dataclass(slots=True)
class _Found:
    """By left row: its tree or None, its row of the index, and which of its strips are taken."""

    trees: list[Tree | None]
    numbers: list[int]
    parents: list[int]  # Rows of the index, or of what is left as -2 - place.
    taken: list[int]
    standing: list[int]  # Classes that are present afterwards.


def on_adopted(state: State, event: Adopted) -> list[Effect]:
    """Take in what was left; the state must be that of a daemon that has not started yet."""
    left = event.dram
    assert not state.slabs and all(map(is_own, state.sessions))
    assert left.slab_bytes == state.config.slab_bytes
    state.generation = max(state.generation, left.generation)
    kept = _choose(state, left)
    trees = _take_trees(state, left)
    found = _find(state, left.rows, trees, [slab.slab for slab in kept])
    _add_rows(state, left.rows, found)
    _place(state, left.rows, found)
    return _take_slabs(state, left, kept)


def _choose(state: State, left: LeftDram) -> list[LeftSlab]:
    """Return the slabs that there is room for, as the quotas are now: those that hold most."""
    held: Counter = Counter()
    for slab, size in zip(
        left.rows.slabs.ravel().tolist(), left.rows.sizes.ravel().tolist(), strict=True
    ):
        held[slab] += size
    kept: list[LeftSlab] = []
    of_group: Counter = Counter()
    for slab in sorted(left.slabs, key=lambda slab: (-held[slab.slab], slab.slab)):
        group = group_of(state, slab.tenant)
        full = slab.tenant and of_group[group] >= state.slabs_max[group]
        if not full and len(kept) < state.config.slab_count:
            of_group[group] += bool(slab.tenant)
            kept.append(slab)
    return sorted(kept, key=lambda slab: slab.slab)


def _take_trees(state: State, left: LeftDram) -> list[Tree | None]:
    """Return the tree of each name; None where it cannot be."""
    trees = []
    for name in left.rows.keys.names:
        keyspace, tenant = left.keyspaces[name.keyspace]
        trees.append(named_tree(state, name, keyspace, tenant))
    return trees


def _find(state: State, rows: LeftRows, trees: list[Tree | None], kept: list[int]) -> _Found:
    """Decide, parents first, which strips are taken."""
    index = state.index
    of = [trees[name] for name in rows.keys.name_of.tolist()]
    chain = rows.keys.chain
    numbers = [
        NO_ROW if tree is None else tree.rows.get(digest, NO_ROW)
        for tree, digest in zip(of, chain, strict=True)
    ]
    offered = _offered(state, rows, np.array(numbers, np.int64), kept)
    found = _Found(of, numbers, [], [], [])
    known = (index.present * _BITS).sum(axis=1).tolist()
    places: dict[tuple[int, bytes], int] = {}
    for at, tree in enumerate(of):
        parent, above = NO_ROW, 0
        if tree is not None and (tree.id, chain[at]) not in places:
            places[tree.id, chain[at]] = at
            before = rows.parents[at]
            place = places.get((tree.id, before)) if before else None
            if not before:
                above = _ALL
            elif place is not None:
                parent, above = -2 - place, found.standing[place]
            elif (row := tree.rows.get(before)) is not None:
                parent, above = row, known[row]
        here = known[numbers[at]] if numbers[at] != NO_ROW else 0
        standing = here | (_LEADING[here | offered[at]] & above)
        found.parents.append(parent)
        found.taken.append(offered[at] & standing)
        found.standing.append(standing)
    return found


def _offered(state: State, rows: LeftRows, numbers: np.ndarray, kept: list[int]) -> list[int]:
    """Return the classes of each row that are there, and that the catalog does not contradict."""
    index = state.index
    good = np.isin(rows.slabs, kept) & (rows.slabs != 0)
    known = numbers != NO_ROW
    same = index.generation[numbers] == rows.generations
    same &= index.profile[numbers] == rows.profiles
    good &= (same | ~known)[:, None]
    on_disk = (index.segment[numbers] != 0) & known[:, None]
    fits = (index.root[numbers] == rows.roots) & (index.size[numbers] == rows.sizes)
    return ((good & (fits | ~on_disk)) * _BITS).sum(axis=1).tolist()


def _add_rows(state: State, rows: LeftRows, found: _Found) -> None:
    """Give a row to every chunk that has none yet and can stand."""
    index = state.index
    fresh = [
        at for at, number in enumerate(found.numbers) if number == NO_ROW and found.standing[at]
    ]
    numbers = index.claim_rows(len(fresh))
    at = np.array(fresh, np.int64)
    index.generation[numbers], index.profile[numbers] = rows.generations[at], rows.profiles[at]
    index.heat[numbers] = -np.inf
    for column in (index.size, index.root, index.slab, index.offset, index.present):
        column[numbers] = 0
    for number, place in zip(numbers.tolist(), fresh, strict=True):
        tree, parent = found.trees[place], found.parents[place]
        assert tree is not None
        if parent < NO_ROW:
            parent = found.numbers[-2 - parent]
        found.numbers[place] = number
        digest = rows.keys.chain[place]
        index.tree_id[number], index.parent[number] = tree.id, parent
        index.depth[number] = 0 if parent == NO_ROW else index.depth[parent] + 1
        index.first_child[number] = NO_ROW
        index.next_sibling[number] = index.prev_sibling[number] = NO_ROW
        index.link(number, parent)
        index.chain[number] = digest
        tree.rows[digest] = number


def _place(state: State, rows: LeftRows, found: _Found) -> None:
    """Enter the places of what is taken: copies of what is on disk, or all there is."""
    index = state.index
    at = np.flatnonzero(found.taken)
    numbers = np.array(found.numbers, np.int64)[at]
    taken = (np.array(found.taken, np.int64)[at, None] & _BITS) != 0
    fresh = taken & ~index.present[numbers]
    for column, values in ((index.size, rows.sizes), (index.root, rows.roots)):
        column[numbers] = np.where(fresh, values[at], column[numbers])
    index.slab[numbers] = np.where(taken, rows.slabs[at], 0)
    index.offset[numbers] = np.where(taken, rows.offsets[at], 0)
    index.present[numbers] |= fresh
    index.heat[numbers] = np.maximum(index.heat[numbers], rows.heats[at])
    parents = index.parent[numbers]
    behind = parents != NO_ROW
    np.add.at(index.children, parents[behind], fresh[behind].astype(index.children.dtype))
    classes = np.nonzero(taken)[1]
    add_by_class(state.counts.adopted_strips, classes)
    add_by_class(state.counts.adopted_bytes, classes, index.size[numbers][taken])
    strips = numbers[:, None] * CLASS_COUNT + np.arange(CLASS_COUNT)
    index.copies.add_all(strips[taken & ~fresh])
    changed = fresh.any(axis=1)
    for row in np.unique(np.concatenate([numbers[changed], parents[behind & changed]])).tolist():
        index.place_frontier(row)
    for tree_id in np.unique(index.tree_id[numbers]).tolist():
        largest = index.size[numbers[index.tree_id[numbers] == tree_id]].max(axis=0).tolist()
        tree = index.trees[tree_id]
        tree.strip_bytes_max = [*map(max, tree.strip_bytes_max, largest)]
    # Parents first, as they were left.
    save.on_sealed(state, numbers[changed].tolist())


def _take_slabs(state: State, left: LeftDram, kept: list[LeftSlab]) -> list[Effect]:
    """Enter the slabs, and give up those without room or use."""
    index = state.index
    live = np.flatnonzero(index.slab.ravel())
    slabs = index.slab.ravel()[live]
    order = np.argsort(slabs, kind="stable")
    live, slabs = live[order], slabs[order]
    for record in kept:
        begin, end = np.searchsorted(slabs, (record.slab, record.slab + 1)).tolist()
        if record.orphan and begin == end:
            continue  # Nobody could ever write in it again.
        strips = live[begin:end]
        sizes = index.size.ravel()[strips]
        extents = ExtentMap.holding(left.slab_bytes, index.offset.ravel()[strips], sizes)
        life = SlabState.ORPHAN if record.orphan else SlabState.IDLE
        slab = Slab(record.slab, left.slab_bytes, extents, life, record.tenant)
        slab.bytes_by_state[StripState.READY] = int(sizes.sum(dtype=np.int64))
        state.slabs[slab.id] = slab
        state.counts.adopted_slabs[()] += 1
    state.slab_id = max((slab.slab for slab in left.slabs), default=0)
    return [DestroySlab(slab.slab) for slab in left.slabs if slab.slab not in state.slabs]

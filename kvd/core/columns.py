"""From rows of the index to the columns that disk and catalog are told."""

import numpy as np

from kvd.core.disk_effects import LaneName, RowColumns, RowKeys, StripColumns
from kvd.core.index import NO_ROW
from kvd.core.ssd import Ssd
from kvd.core.state import State
from kvd.limits import PAGE_BYTES
from kvd.types import CLASS_COUNT


def _names(state: State, tree_ids: np.ndarray) -> tuple[tuple[LaneName, ...], np.ndarray]:
    trees = state.index.trees
    found, name_of = np.unique(tree_ids, return_inverse=True)
    chosen = (trees[tree_id] for tree_id in found.tolist())
    names = tuple(LaneName(tree.digest, tree.lane, tree.grid.cell_count) for tree in chosen)
    return names, name_of.astype(np.uint32)


def _places(ssd: Ssd, segments: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return directories u8, numbers and epochs u32 of segments named by the core's ids; 0 is 0."""
    ids, which = np.unique(segments, return_inverse=True)
    table = np.zeros((len(ids), 3), np.uint32)
    for at, segment_id in enumerate(ids.tolist()):
        if segment_id:
            segment = ssd.segments[segment_id]
            table[at] = segment.directory, segment.number, segment.epoch
    found = table[which.reshape(segments.shape)]
    return found[..., 0].astype(np.uint8), found[..., 1].copy(), found[..., 2].copy()


def strip_columns(
    state: State,
    strips: np.ndarray,
    where: tuple[np.ndarray, np.ndarray],
    begins: np.ndarray,
    sizes: np.ndarray,
) -> StripColumns:
    """Return pieces of `strips` (numbers); `where`: segment ids and pages of the whole strips."""
    index = state.index
    assert state.ssd is not None
    rows, classes = strips // CLASS_COUNT, strips % CLASS_COUNT
    names, name_of = _names(state, index.tree_id[rows])
    segments, pages = where
    directories, numbers, epochs = _places(state.ssd, segments)
    chain = index.chain
    offsets = index.offset[rows, classes] + begins.astype(np.uint64)
    return StripColumns(
        names, name_of, [chain[row] for row in rows.tolist()],  # type: ignore[misc]
        classes.astype(np.uint8), index.generation[rows], index.profile[rows],
        index.root[rows, classes], begins.astype(np.uint32), directories, numbers, epochs,
        pages.astype(np.uint64) * np.uint64(PAGE_BYTES) + begins.astype(np.uint64),
        index.slab[rows, classes], offsets, sizes.astype(np.uint32),
    )  # fmt: skip


def row_columns(
    state: State, rows: np.ndarray, segments: np.ndarray, pages: np.ndarray
) -> RowColumns:
    """Return rows as the catalog shall hold them, their strips at `segments`, `pages` [n, 3]."""
    index = state.index
    assert state.ssd is not None
    directories, numbers, epochs = _places(state.ssd, segments)
    there = segments != 0
    chain = index.chain
    parents = (chain[p] if p != NO_ROW else b"" for p in index.parent[rows].tolist())
    return RowColumns(
        row_keys_of(state, rows),
        list(parents),  # type: ignore[arg-type]
        index.generation[rows], index.profile[rows], index.heat[rows],
        np.where(there, index.root[rows], 0), directories, numbers, epochs,
        np.where(there, pages, 0).astype(np.uint32),
        np.where(there, index.size[rows] // PAGE_BYTES, 0).astype(np.uint32),
    )  # fmt: skip


def row_keys(state: State, keys: list[tuple[int, bytes]]) -> RowKeys:
    """Return chunks by (tree id, chain digest)."""
    names, name_of = _names(state, np.array([tree_id for tree_id, _ in keys], np.int32))
    return RowKeys(names, name_of, [digest for _, digest in keys])


def row_keys_of(state: State, rows: np.ndarray) -> RowKeys:
    """Return chunks by their rows."""
    index = state.index
    names, name_of = _names(state, index.tree_id[rows])
    return RowKeys(names, name_of, [index.chain[row] for row in rows.tolist()])  # type: ignore[misc]

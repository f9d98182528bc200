"""A catalog compared with the segments that there are: what to believe, and what to put right.

Pure: rows and numbers in, rows and changes out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvd.catalog.contract import Changes, Contents
from kvd.errors import KvdError
from kvd.format.rows import keys_of, lane_of, lane_starts
from kvd.shape import cell_grid

# Rows of one transaction: what waits for a catalog's thread takes memory by then.
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True)
class Reconciled:
    """`contents` of lanes that there are; `orphans` u32 of each directory are unknown to them.

    `lost` are (directory, segment) without a file, and strips of `hurt` chunks lay in them: the
    core leaves these out, and has the catalog told. `purge` is what the core cannot name.
    """

    contents: Contents
    purge: Changes
    orphans: list[np.ndarray]
    lost: list[tuple[int, int]]
    hurt: int


def reconcile(contents: Contents, found: Sequence[np.ndarray]) -> Reconciled:
    """Compare a catalog with the segment files `found`, u32 of each directory in its order."""
    rows, segments, purge = contents.rows, contents.segments, contents.purge
    known = _names(segments["directory"], segments["segment"])
    here = [_names(np.uint8(number), each) for number, each in enumerate(found)]
    is_lost = ~np.isin(known, np.concatenate(here))
    orphans = [each[~np.isin(names, known)] for names, each in zip(here, found, strict=True)]
    strange = _of_no_lane(rows, contents)
    if strange.any():
        dropped = np.concatenate([purge.dropped_rows, keys_of(rows[strange])])
        purge, rows = replace(purge, dropped_rows=dropped), rows[~strange]
    lost = [(int(s["directory"]), int(s["segment"])) for s in segments[is_lost]]
    hurt = 0
    if lost:
        gone = np.isin(_names(rows["directory"], rows["segment"]), known[is_lost])
        hurt = int((gone & (rows["pages"] != 0)).any(axis=1).sum())
    return Reconciled(replace(contents, rows=rows), purge, orphans, lost, hurt)


def in_parts(changes: Changes) -> tuple[Changes, ...]:
    """Return the same drops as several transactions of a bounded size; none for no change.

    Drops only: they go through however full the catalog is.
    """
    assert not len(changes.rows)
    return tuple(part for part in _parts(changes) if part.items)


def _parts(changes: Changes) -> Iterator[Changes]:
    for at in range(0, len(changes.dropped_rows), _ROWS_AT_ONCE):
        yield Changes(dropped_rows=changes.dropped_rows[at : at + _ROWS_AT_ONCE])
    yield Changes(dropped=changes.dropped)


def _names(directories: np.ndarray | np.uint8, segments: np.ndarray) -> np.ndarray:
    """Return u64: directory and number as one."""
    return np.uint64(directories) << np.uint64(32) | segments


def _of_no_lane(rows: np.ndarray, contents: Contents) -> np.ndarray:
    """Return bool[n]: rows of a lane that their keyspace has not."""
    starts = lane_starts(rows)
    strange = []
    for row in rows[starts]:
        keyspace, _ = contents.keyspaces[row["keyspace"].tobytes()]
        try:
            cell_grid(keyspace.shape, lane_of(row))
        except KvdError:
            strange.append(True)
        else:
            strange.append(False)
    counts = np.diff(np.append(starts, len(rows)))
    return np.repeat(np.array(strange, bool), counts)

"""A catalog compared with the segments that there are: what to believe, and what to put right.

Pure: rows and numbers in, rows and changes out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvd.catalog.contract import Changes, Contents, Table
from kvd.daemon.translating import segment_keys
from kvd.errors import KvdError
from kvd.format.rows import keys_of, lane_of, lane_starts, seal_rows
from kvd.shape import cell_grid

# Rows of one transaction: what waits for a catalog's thread takes memory by then.
_ROWS_AT_ONCE = 16_384
_PLACE = ("root", "directory", "segment", "epoch", "page", "pages")


@dataclass(frozen=True, slots=True)
class Reconciled:
    """`contents` only of segments that there are; `orphans` u32 of each directory are unknown.

    `lost` are (directory, segment) without a file, `hurt` the number of chunks they take with them.
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
    hurt = 0
    if is_lost.any():
        gone = np.isin(_names(rows["directory"], rows["segment"]), known[is_lost])
        # Without one class a reader is not offered those behind it.
        gone = np.logical_or.accumulate(gone & (rows["pages"] != 0), axis=1)
        hurt = int(gone.any(axis=1).sum())
        mended, at = _without(rows, gone)
        strange |= gone[:, 0]
        rows = rows.copy()
        rows[at] = mended
        purge = replace(purge, rows=mended)
    if strange.any():
        dropped = np.concatenate([purge.dropped_rows, keys_of(rows[strange])])
        purge, rows = replace(purge, dropped_rows=dropped), rows[~strange]
    lost = [(int(s["directory"]), int(s["segment"])) for s in segments[is_lost]]
    entries = tuple((Table.SEGMENTS, key) for key in segment_keys(lost))
    purge = replace(purge, dropped=(*purge.dropped, *entries))
    left = replace(contents, rows=rows, segments=segments[~is_lost])
    return Reconciled(left, purge, orphans, lost, hurt)


def in_parts(changes: Changes) -> tuple[Changes, ...]:
    """Return the same as several transactions of a bounded size; none for no change."""
    return tuple(part for part in _parts(changes) if part.items)


def _parts(changes: Changes) -> Iterator[Changes]:
    """Rows first: while their segment is named, what is left of them is believed."""
    for at in range(0, len(changes.rows), _ROWS_AT_ONCE):
        yield Changes(rows=changes.rows[at : at + _ROWS_AT_ONCE])
    for at in range(0, len(changes.dropped_rows), _ROWS_AT_ONCE):
        yield Changes(dropped_rows=changes.dropped_rows[at : at + _ROWS_AT_ONCE])
    yield Changes(dropped=changes.dropped)


def _names(directories: np.ndarray | np.uint8, segments: np.ndarray) -> np.ndarray:
    """Return u64: directory and number as one."""
    return np.uint64(directories) << np.uint64(32) | segments


def _without(rows: np.ndarray, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sealed copies of the rows that lose a class but their anchor, and where they are."""
    at = np.flatnonzero(gone.any(axis=1) & ~gone[:, 0])
    mended = rows[at]
    for name in _PLACE:
        mended[name][gone[at]] = 0
    seal_rows(mended)
    return mended, at


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

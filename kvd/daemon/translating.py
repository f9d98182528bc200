"""The core's words for disk and catalog as columns of these rooms, and what a catalog held, back.

Pure; numpy by column. What is done for each item is a digest at most.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kvd.catalog.contract import Changes, Contents, Table
from kvd.core.disk_effects import (
    Commit,
    LaneName,
    RowColumns,
    RowKeys,
    SegmentRecord,
    StripColumns,
)
from kvd.core.disk_events import Recovered
from kvd.disk.contract import Names, Places
from kvd.format.keyspaces import pack_keyspace
from kvd.format.records import SEGMENT_KEY_BYTES, empty_segments, seal_segments
from kvd.format.rows import ROW, ROW_KEY, lane_of, lane_starts, put_lane, seal_rows
from kvd.identity import Keyspace, chunk_key
from kvd.limits import CHUNK_KEY_BYTES, DIGEST_BYTES
from kvd.shape import cell_grid
from kvd.table import table_bytes
from kvd.types import PlaneClass, SegmentState

_NO_DIGEST = bytes(DIGEST_BYTES)

# ---- strips ----


def places_of(strips: StripColumns, address_of: Callable[[int], int]) -> Places:
    """Return where pieces lie; `address_of` gives the address of a slab in this process."""
    slabs, which = np.unique(strips.slabs, return_inverse=True)
    begins = np.array([address_of(slab) for slab in slabs.tolist()], np.uint64)
    return Places(
        strips.directories,
        strips.segments,
        strips.epochs,
        strips.disk_offsets,
        strips.sizes,
        begins[which] + strips.offsets,
    )


def names_of(strips: StripColumns, *, whole: bool) -> Names:
    """Return what the roots of `whole` strips bind, or of pieces.

    A piece that does not hold all of its strip's table says nothing of cells: readers check them.
    """
    cells = np.array([name.cells for name in strips.names], np.uint32)[strips.name_of]
    checked = strips.begins == 0
    assert not whole or checked.all()
    if not whole:
        checked &= table_bytes(cells.astype(np.int64)) <= strips.sizes
    return Names(
        _chunk_keys(strips, checked),
        tuple(name.lane for name in strips.names),
        strips.name_of,
        strips.classes,
        strips.generations,
        strips.profiles,
        np.where(checked, cells, 0).astype(np.uint32),
        strips.roots,
    )


def _chunk_keys(strips: StripColumns, wanted: np.ndarray) -> np.ndarray:
    """Return u8[n, 16]; zeros where nobody looks, as a digest costs more than all the rest."""
    keys = np.zeros((strips.count, CHUNK_KEY_BYTES), np.uint8)
    keyspaces = [name.keyspace for name in strips.names]
    items = np.flatnonzero(wanted)
    names, chain = strips.name_of[items].tolist(), strips.chain
    made = [
        chunk_key(keyspaces[name], chain[item])
        for name, item in zip(names, items.tolist(), strict=True)
    ]
    keys[items] = np.frombuffer(b"".join(made), np.uint8).reshape(-1, CHUNK_KEY_BYTES)
    return keys


# ---- to the catalog ----


def changes_of(commit: Commit, directories: tuple[bytes, ...]) -> Changes:
    """Return the transaction; it names the data directories, so that none lacks them."""
    removed = [(directory, segment) for directory, segment in commit.removed_segments]
    return Changes(
        _rows_of(commit.rows),
        _segments_of(commit.segments),
        tuple(pack_keyspace(*each) for each in commit.keyspaces),
        _keys_of(commit.dropped, ROW_KEY),
        tuple((Table.SEGMENTS, key) for key in segment_keys(removed)),
        commit.generation,
        directories,
        commit.written,
    )


def segment_keys(segments: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the catalog's keys of segments, each given by directory and number."""
    rows = empty_segments(len(segments))
    if segments:
        rows["directory"], rows["segment"] = zip(*segments, strict=True)
    return [row.tobytes()[:SEGMENT_KEY_BYTES] for row in rows]


def _rows_of(columns: RowColumns) -> np.ndarray:
    rows = _keys_of(columns.keys, ROW)
    rows["parent"] = _digests([parent or _NO_DIGEST for parent in columns.parents])
    rows["generation"], rows["profile"] = columns.generations, columns.profiles
    rows["heat"], rows["root"], rows["epoch"] = columns.heats, columns.roots, columns.epochs
    rows["directory"], rows["segment"] = columns.directories, columns.segments
    rows["page"], rows["pages"] = columns.pages, columns.page_counts
    seal_rows(rows)
    return rows


def _keys_of(keys: RowKeys, dtype: np.dtype) -> np.ndarray:
    """Return rows of ROW or ROW_KEY with nothing but their keys."""
    templates = np.zeros(max(1, len(keys.names)), dtype)
    for place, name in enumerate(keys.names):
        put_lane(templates[place : place + 1], name.keyspace, name.lane)
    rows = templates[keys.name_of]
    rows["chain"] = _digests(keys.chain)
    return rows


def _digests(digests: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), DIGEST_BYTES)


def _segments_of(records: Sequence[SegmentRecord]) -> np.ndarray:
    rows = empty_segments(len(records))
    for row, record in zip(rows, records, strict=True):
        row["directory"], row["segment"] = record.directory, record.segment
        row["plane_class"], row["state"] = record.plane_class, record.state
        row["epoch"] = record.epoch
    seal_segments(rows)
    return rows


# ---- from the catalog ----


def recovered_of(contents: Contents, lost: Sequence[tuple[int, int]] = ()) -> Recovered:
    """Return what a catalog held; every lane of it must be one of its keyspace.

    `lost` are (directory, segment) of its segments without a file.
    """
    meta = contents.meta
    return Recovered(
        meta.generation,
        (meta.written_day, meta.written_bytes),
        contents.keyspaces,
        _columns_of(contents.rows, contents.keyspaces),
        tuple(_record_of(segment) for segment in contents.segments),
        tuple(lost),
        contents.number,
    )


def _record_of(row: np.void) -> SegmentRecord:
    return SegmentRecord(
        int(row["directory"]),
        int(row["segment"]),
        PlaneClass(int(row["plane_class"])),
        SegmentState(int(row["state"])),
        int(row["epoch"]),
    )


def _columns_of(rows: np.ndarray, keyspaces: dict[bytes, tuple[Keyspace, str]]) -> RowColumns:
    starts = lane_starts(rows)
    names = []
    for row in rows[starts]:
        digest, lane = row["keyspace"].tobytes(), lane_of(row)
        cells = cell_grid(keyspaces[digest][0].shape, lane).cell_count
        names.append(LaneName(digest, lane, cells))
    counts = np.diff(np.append(starts, len(rows)))
    name_of = np.repeat(np.arange(len(names), dtype=np.uint32), counts)
    parents = _listed(rows["parent"])
    for row in np.flatnonzero(~rows["parent"].any(axis=1)).tolist():
        parents[row] = b""
    numbers = ("generation", "profile", "heat", "root", "directory", "segment", "epoch", "page")
    return RowColumns(
        RowKeys(tuple(names), name_of, _listed(rows["chain"])),
        parents,
        *(np.ascontiguousarray(rows[name]) for name in (*numbers, "pages")),
    )


def _listed(digests: np.ndarray) -> list[bytes]:
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}").reshape(-1).tolist()

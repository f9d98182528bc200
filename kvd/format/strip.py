"""The head of a strip: its table of cells (docs/format.md, 5.1). Packs and checks bytes only."""

import numpy as np

from kvd.limits import CELL_ALIGN_BYTES, STRIP_BYTES_MAX
from kvd.table import LENGTH_MASK, RAW_FLAG, TABLE_ENTRY, table_bytes


def pack_table(
    offsets: np.ndarray, lengths: np.ndarray, raw: np.ndarray, checksums: np.ndarray
) -> np.ndarray:
    """Return the table of one strip; all columns of one entry per cell, in cell order."""
    assert len(offsets) == len(lengths) == len(raw) == len(checksums)
    assert (offsets % CELL_ALIGN_BYTES == 0).all()
    assert (lengths <= LENGTH_MASK).all()
    table = np.empty(len(offsets), TABLE_ENTRY)
    table["offset"] = offsets
    table["length"] = np.where(raw, lengths | RAW_FLAG, lengths)
    table["checksum"] = checksums
    return table


def parse_table(strip: np.ndarray, cell_count: int, strip_bytes: int) -> np.ndarray | None:
    """Return the table as a view of `strip` (u8), or None when it cannot be one.

    Every entry it returns lies inside `[table end, strip_bytes)`, aligned and in cell order
    without overlap, with no unknown flag set; so a reader may use it without further checks.
    """
    size = table_bytes(cell_count)
    if cell_count <= 0 or size > strip_bytes or len(strip) < size:
        return None
    table = strip[:size].view(TABLE_ENTRY)
    return table if sound_tables(table[None], np.array([strip_bytes]))[0] else None


def sound_tables(tables: np.ndarray, strip_bytes: np.ndarray) -> np.ndarray:
    """Return bool[n]: which of `tables` [n, cells] a reader of strips of that size may use.

    Every entry of a sound one lies inside `[table end, strip_bytes)`, aligned and in cell order
    without overlap, with no unknown flag set.
    """
    begins = np.ascontiguousarray(tables["offset"])
    words = np.ascontiguousarray(tables["length"])
    limits = np.asarray(strip_bytes, np.uint32)
    assert (limits <= STRIP_BYTES_MAX).all(), "ends of cells would wrap"
    ends = begins + (words & LENGTH_MASK)
    sound = begins.max(axis=1) <= limits
    sound &= np.bitwise_or.reduce(words, axis=1) & ~(RAW_FLAG | LENGTH_MASK) == 0
    sound &= np.bitwise_or.reduce(begins, axis=1) % CELL_ALIGN_BYTES == 0
    sound &= (begins[:, 1:] >= ends[:, :-1]).all(axis=1)
    return sound & (begins[:, 0] >= table_bytes(tables.shape[1])) & (ends[:, -1] <= limits)

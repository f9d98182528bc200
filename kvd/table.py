"""The entry of the table at the head of a strip, for who writes strips and who reads them."""

import numpy as np

from kvd.limits import CELL_BYTES_MAX, PAGE_BYTES

RAW_FLAG = np.uint32(1 << 31)
LENGTH_MASK = np.uint32(CELL_BYTES_MAX)
TABLE_ENTRY_BYTES = 16
TABLE_ENTRY = np.dtype([("offset", "<u4"), ("length", "<u4"), ("checksum", "<u8")])
assert TABLE_ENTRY.itemsize == TABLE_ENTRY_BYTES


def table_bytes(cell_count: int) -> int:
    """Return the size of a table; cells start behind it."""
    return cell_count * TABLE_ENTRY_BYTES


def padded(size: int) -> int:
    """Round up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES

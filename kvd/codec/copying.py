"""Whole strips copied and their cells summed into their tables, in one pass over memory.

Callers vouch for addresses and tables. The native kernel is taken when there is one and the
reference is not asked for; both give the same bytes.
"""

import ctypes
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvd.codec.backends import REFERENCE, backend
from kvd.codec.batch import checksum_cells
from kvd.codec.native import LIBRARY_NAME
from kvd.limits import PAGE_BYTES
from kvd.table import LENGTH_MASK, TABLE_ENTRY, table_bytes


@lru_cache(maxsize=1)
def _kernel() -> ctypes._CFuncPtr | None:
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name(LIBRARY_NAME)))
        function = library.kvd_copy_strips
    except (OSError, AttributeError):
        return None
    address, number = ctypes.c_void_p, ctypes.c_uint64
    function.restype, function.argtypes = None, [address, address, address, number, number]
    return function


def copy_strips(
    sources: np.ndarray, targets: np.ndarray, sizes: np.ndarray, cell_count: int
) -> None:
    """Sum the cells of strips into the tables at their heads, and copy the strips.

    Columns are u64[n]: addresses, and sizes in whole pages. The tables of the sources, which are
    written, hold offsets and lengths of `cell_count` cells each, ascending and inside the strip.
    """
    for column in (sources, targets, sizes):
        assert column.dtype == np.uint64 and column.shape == sizes.shape, column
        assert column.flags.c_contiguous
    assert not ((targets | sizes) % np.uint64(PAGE_BYTES)).any()
    assert cell_count > 0 and (sizes >= table_bytes(cell_count)).all()
    kernel = _kernel()
    if kernel is None or backend() == REFERENCE.name:
        _copy_apart(sources.tolist(), targets.tolist(), sizes.tolist(), cell_count)
        return
    addresses = (column.ctypes.data for column in (sources, targets, sizes))
    kernel(*addresses, len(sizes), cell_count)


def _copy_apart(sources: list[int], targets: list[int], sizes: list[int], cells: int) -> None:
    for source, target, size in zip(sources, targets, sizes, strict=True):
        memory = (ctypes.c_uint8 * size).from_address(source)
        strip = np.frombuffer(memory, np.uint8)
        table = strip[: table_bytes(cells)].view(TABLE_ENTRY)
        lengths = np.ascontiguousarray(table["length"] & LENGTH_MASK)
        table["checksum"] = checksum_cells(strip, np.ascontiguousarray(table["offset"]), lengths)
        ctypes.memmove(target, source, size)

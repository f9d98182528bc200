"""Whole strips copied and their cells summed in one pass over memory.

Callers vouch for addresses. The native kernel is taken when there is one and the reference is not
asked for; both give the same bytes and sums.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvd.codec.backends import REFERENCE, backend
from kvd.codec.batch import checksum_cells
from kvd.codec.native import LIBRARY_NAME
from kvd.limits import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class StripCopies:
    """Copies to make: `sources`, `targets` and `sizes` u64[n], and the cells of each strip.

    `offsets` and `lengths` are u32[n, cells], ascending within a strip; targets and sizes are
    whole pages.
    """

    sources: np.ndarray
    targets: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.sizes)
        for column in (self.sources, self.targets, self.sizes):
            assert column.dtype == np.uint64 and column.shape == (count,), column
            assert column.flags.c_contiguous
        for column in (self.offsets, self.lengths):
            assert column.dtype == np.uint32 and column.shape == self.offsets.shape, column
            assert column.flags.c_contiguous and len(column) == count
        assert not ((self.targets | self.sizes) % np.uint64(PAGE_BYTES)).any()
        limits = self.sizes.astype(np.uint32)[:, None]
        assert (limits == self.sizes[:, None]).all() and (self.lengths <= limits).all()
        assert (self.offsets <= limits - self.lengths).all(), "a cell reaches outside of its strip"


@lru_cache(maxsize=1)
def _kernel() -> ctypes._CFuncPtr | None:
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name(LIBRARY_NAME)))
        function = library.kvd_copy_strips
    except (OSError, AttributeError):
        return None
    address, number = ctypes.c_void_p, ctypes.c_uint64
    function.restype = None
    function.argtypes = [address, address, address, number, address, address, number, address]
    return function


def copy_strips(copies: StripCopies) -> np.ndarray:
    """Copy the strips; return u64[n, cells], the XXH3-64 of their cells."""
    kernel = _kernel()
    if kernel is None or backend() == REFERENCE.name:
        return _copied_apart(copies)
    sums = np.zeros(copies.offsets.shape, np.uint64)
    columns = (copies.sources, copies.targets, copies.sizes, copies.offsets, copies.lengths)
    sources, targets, sizes, offsets, lengths = (column.ctypes.data for column in columns)
    strips, cells = copies.offsets.shape
    kernel(sources, targets, sizes, strips, offsets, lengths, cells, sums.ctypes.data)
    return sums


def _copied_apart(copies: StripCopies) -> np.ndarray:
    places = zip(
        copies.targets.tolist(), copies.sources.tolist(), copies.sizes.tolist(), strict=True
    )
    for target, source, size in places:
        ctypes.memmove(target, source, size)
    strings = (copies.sources[:, None] + copies.offsets).reshape(-1)
    return checksum_cells(0, strings, copies.lengths.reshape(-1)).reshape(copies.offsets.shape)

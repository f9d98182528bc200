"""Bytes of one chunk: its three strips with tables, alignment and whole pages, as the codec's are.

Anchor and residual follow from the shape alone; exact depends on the values, so it is told for a
number of bits a value, and as the bound that no values pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvd.codec.layout import EXACT_BLOCK, CellSpec, cell_aligned, cell_bytes_max, cell_geometry
from kvd.codec.profile import (
    PROFILE_DEFAULT,
    CodecProfile,
    cell_specs,
    chunk_bytes_max,
    strip_bytes_max,
)
from kvd.shape import CellGrid
from kvd.table import padded, table_bytes
from kvd.types import CLASS_COUNT, Dtype

# Bits a value of the exact class of BF16, as measured: least, usual, most.
EXACT_BITS = (2.0, 3.0, 4.0)
# FP16 has ten bits of mantissa where BF16 has seven, and no code takes them away.
FP16_BITS_MORE = 3.0
Strips = tuple[int, int, int]  # Anchor, residual, exact; whole pages.


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest strips, each on its own, and the largest sum, which is less than theirs."""

    strips: Strips
    chunk: int


def exact_bits_of(dtype: Dtype) -> tuple[float, float, float]:
    more = FP16_BITS_MORE if dtype == Dtype.FP16 else 0.0
    least, usual, most = (bits + more for bits in EXACT_BITS)
    return least, usual, most


def strips_of(grid: CellGrid, cells: Sequence[Sequence[int]]) -> Strips:
    """Return the strips that hold cells of these lengths, a sequence for each class."""
    table = table_bytes(grid.cell_count)
    anchor, residual, exact = (padded(table + sum(map(cell_aligned, each))) for each in cells)
    return anchor, residual, exact


def coded_strips(
    grid: CellGrid,
    tokens: int,
    exact_bits: float,
    profile: CodecProfile = PROFILE_DEFAULT,
    *,
    first_chunk: bool = False,
) -> Strips:
    """Return the strips of a chunk whose exact class takes so many bits a value."""
    specs, index = cell_specs(profile, grid, tokens, first_chunk)
    counts = np.bincount(index, minlength=len(specs)).tolist()
    sums = [0] * CLASS_COUNT
    for spec, count in zip(specs, counts, strict=True):
        for at, length in enumerate(_cell_lengths(spec, exact_bits)):
            sums[at] += count * cell_aligned(length)
    table = table_bytes(grid.cell_count)
    anchor, residual, exact = (padded(table + size) for size in sums)
    return anchor, residual, exact


def _cell_lengths(spec: CellSpec, exact_bits: float) -> tuple[int, int, int]:
    if cell_bytes_max(spec)[2] == 0:  # Of a dtype that has no code, or too small for one.
        return spec.raw_bytes, 0, 0
    geometry = cell_geometry(spec)
    whole, rest = divmod(geometry.elements, EXACT_BLOCK)
    exact = 2 * geometry.blocks + whole * _ranks(EXACT_BLOCK, exact_bits) + _ranks(rest, exact_bits)
    if geometry.anchor + geometry.residual + exact >= spec.raw_bytes:
        return spec.raw_bytes, 0, 0
    return geometry.anchor, geometry.residual, exact


def _ranks(values: int, bits: float) -> int:
    return -int(-values * bits // 8)


def bound_of(grid: CellGrid, tokens: int, profile: CodecProfile = PROFILE_DEFAULT) -> Bound:
    return Bound(strip_bytes_max(grid, tokens, profile), chunk_bytes_max(grid, tokens, profile))

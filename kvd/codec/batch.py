"""Batches of cells as numpy columns: their form, checked before a backend sees addresses.

Callers vouch for addresses; bytes behind them may be anything and may change meanwhile: a cell is
then of no one moment, or malformed. Pure functions: calls in several threads are independent, and
the native backend runs them without the interpreter's lock.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvd.codec.backends import chosen
from kvd.codec.layout import EXACT, PLANES, CellSpec, cell_aligned, cell_bytes_max
from kvd.types import CLASS_COUNT

assert sys.byteorder == "little", "cells are little endian, and so are kvd's machines"

_SPECS_MAX = 256
_BUFFER_LIMIT = 1 << 32
Buffer = np.ndarray | memoryview | bytearray | bytes


@dataclass(frozen=True, slots=True)
class EncodedCells:
    """Where cells went: `offsets` and `lengths` u32[3, n], `raw` bool[n], `ends` u64[3].

    Offsets count from the begin of each buffer; `ends` are multiples of 8 behind the last cells.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    raw: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True, slots=True)
class CellColumns:
    """Cells to decode: `spec_index` u8[n], addresses of strings u64[n], `lengths` u32[3, n],
    `raw` bool[n]. Residuals and exacts may be None when the asked precision needs none.
    """

    spec_index: np.ndarray
    anchors: np.ndarray
    residuals: np.ndarray | None
    exacts: np.ndarray | None
    lengths: np.ndarray
    raw: np.ndarray

    @property
    def count(self) -> int:
        return len(self.spec_index)


def _check_column(column: np.ndarray, dtype: type, shape: tuple[int, ...], name: str) -> None:
    assert isinstance(column, np.ndarray), (name, type(column))
    assert column.dtype == dtype, (name, column.dtype)
    assert column.shape == shape, (name, column.shape, shape)
    assert column.flags.c_contiguous, name


def _check_specs(specs: Sequence[CellSpec], spec_index: np.ndarray) -> None:
    _check_column(spec_index, np.uint8, (len(spec_index),), "spec_index")
    assert len(specs) <= _SPECS_MAX, len(specs)
    assert spec_index.size == 0 or int(spec_index.max()) < len(specs)


def _check_strides(
    specs: Sequence[CellSpec], spec_index: np.ndarray, token_strides: np.ndarray
) -> None:
    """Tokens may not overlap; a stride does not matter to cells of fewer than two tokens."""
    _check_column(token_strides, np.int64, spec_index.shape, "token_strides")
    if spec_index.size:
        least = [spec.width if spec.tokens > 1 else -(1 << 62) for spec in specs]
        assert (token_strides >= np.array(least, np.int64)[spec_index]).all()


def _as_bytes(buffer: Buffer, *, writable: bool) -> np.ndarray:
    view = np.frombuffer(buffer, np.uint8) if not isinstance(buffer, np.ndarray) else buffer
    assert view.dtype == np.uint8 and view.ndim == 1 and view.flags.c_contiguous
    assert view.flags.writeable or not writable
    return view


def encode_cells(
    specs: Sequence[CellSpec],
    spec_index: np.ndarray,
    sources: np.ndarray,
    token_strides: np.ndarray,
    out: Sequence[Buffer],
    base: Sequence[int],
) -> EncodedCells:
    """Code n cells one after the other into the three `out` buffers (anchor, residual, exact).

    `sources` u64[n] are addresses of element (token 0, channel 0), channels contiguous, tokens
    `token_strides` i64[n] elements apart. Cells start at `base[c]` and then at multiples of 8,
    gaps zero filled; bytes behind `ends` are unspecified up to the bound that each buffer must
    have room for: the sum of the cells' aligned `cell_bytes_max`.
    """
    count = len(spec_index)
    _check_specs(specs, spec_index)
    _check_column(sources, np.uint64, (count,), "sources")
    _check_strides(specs, spec_index, token_strides)
    assert len(out) == len(base) == CLASS_COUNT
    buffers = [_as_bytes(buffer, writable=True) for buffer in out]
    counts = np.bincount(spec_index, minlength=len(specs)).tolist()
    for index, buffer in enumerate(buffers):
        bound = sum(
            number * cell_aligned(cell_bytes_max(spec)[index])
            for spec, number in zip(specs, counts, strict=True)
        )
        assert base[index] >= 0 and base[index] % 8 == 0, base
        assert base[index] + bound <= len(buffer), (index, base[index], bound, len(buffer))
        assert base[index] + bound < _BUFFER_LIMIT, (index, base[index], bound)
    encoded = EncodedCells(
        offsets=np.zeros((CLASS_COUNT, count), np.uint32),
        lengths=np.zeros((CLASS_COUNT, count), np.uint32),
        raw=np.zeros(count, np.bool_),
        ends=np.array(base, np.uint64),
    )
    chosen().encode(specs, spec_index, (sources, token_strides), buffers, encoded)
    assert (encoded.ends >= np.array(base, np.uint64)).all()
    return encoded


def decode_cells(
    specs: Sequence[CellSpec],
    cells: CellColumns,
    targets: np.ndarray,
    token_strides: np.ndarray,
    planes: int,
) -> np.ndarray:
    """Decode n cells from their first `planes` planes (1..8, or EXACT) to the dtype's own bits.

    `targets` u64[n] are addresses of element (token 0, channel 0). Return i64 indices of malformed
    cells, whose targets are then unspecified; no byte outside of strings and targets is touched.
    """
    count = cells.count
    _check_specs(specs, cells.spec_index)
    for name in ("anchors", "residuals", "exacts"):
        column = getattr(cells, name)
        if column is not None:
            _check_column(column, np.uint64, (count,), name)
    _check_column(cells.lengths, np.uint32, (CLASS_COUNT, count), "lengths")
    _check_column(cells.raw, np.bool_, (count,), "raw")
    _check_column(targets, np.uint64, (count,), "targets")
    _check_strides(specs, cells.spec_index, token_strides)
    assert 1 <= planes <= PLANES or planes == EXACT, planes
    assert planes != EXACT or cells.exacts is not None
    assert cells.residuals is not None or all(planes <= s.anchor_planes for s in specs if s.coded)
    if count == 0:
        return np.zeros(0, np.int64)
    malformed = chosen().decode(specs, cells, (targets, token_strides), planes)
    assert malformed.dtype == np.bool_ and malformed.shape == (count,)
    return np.flatnonzero(malformed)


def _checked_ranges(
    data: Buffer | int, offsets: np.ndarray, lengths: np.ndarray
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return (base address, u64 offsets, u32 lengths, bool inside) of byte strings in `data`."""
    assert offsets.ndim == 1 and offsets.dtype.kind == "u", offsets.dtype
    _check_column(lengths, np.uint32, offsets.shape, "lengths")
    wide = np.ascontiguousarray(offsets, np.uint64)
    if isinstance(data, int):
        return data, wide, lengths, np.ones(len(wide), np.bool_)
    view = _as_bytes(data, writable=False)
    size = np.uint64(len(view))
    inside = (wide <= size) & (lengths <= size - np.minimum(wide, size))
    return view.ctypes.data, wide, lengths, inside


def checksum_cells(data: Buffer | int, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return u64[n] XXH3-64 of the byte strings at unsigned `offsets`, of `lengths` u32[n].

    `data` is a buffer, or an address (0: offsets are addresses) whose reach the caller vouches for.
    """
    base, wide, lengths, inside = _checked_ranges(data, offsets, lengths)
    assert inside.all(), "a byte string lies outside of the buffer"
    sums = chosen().checksum(base, wide, lengths)
    assert sums.dtype == np.uint64 and sums.shape == wide.shape
    return sums


def check_cells(
    data: Buffer | int, offsets: np.ndarray, lengths: np.ndarray, expected: np.ndarray
) -> np.ndarray:
    """Return i64 indices of byte strings whose XXH3-64 is not `expected` u64[n].

    Strings that reach outside of a buffer count as wrong and are not read.
    """
    base, wide, lengths, inside = _checked_ranges(data, offsets, lengths)
    _check_column(expected, np.uint64, wide.shape, "expected")
    if inside.all():
        return np.flatnonzero(chosen().checksum(base, wide, lengths) != expected)
    wide, lengths = np.where(inside, wide, 0), np.where(inside, lengths, 0).astype(np.uint32)
    sums = chosen().checksum(base, wide, lengths)
    return np.flatnonzero(~inside | (sums != expected))

"""Batches for the reference: addresses to arrays, one cell after the other."""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from kvd.codec.layout import EXACT, CellSpec, cell_aligned, cell_bytes_max
from kvd.codec.reference import CellStrings, MalformedCell, decode_cell, encode_cell

if TYPE_CHECKING:
    from kvd.codec.batch import CellColumns, EncodedCells

Places = tuple[np.ndarray, np.ndarray]  # Addresses u64[n] and token strides i64[n].


def _memory(address: int, size: int) -> np.ndarray:
    """Return `size` bytes at `address` as u8, not copied; the caller vouches for them."""
    if size == 0:
        return np.zeros(0, np.uint8)
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def _rows(address: int, stride: int, spec: CellSpec) -> np.ndarray:
    """Return the [tokens, width] unsigned view of a cell in the caller's memory."""
    unsigned = np.dtype(f"<u{spec.dtype.size_bytes}")
    if spec.tokens == 0:
        return np.zeros((0, spec.width), unsigned)
    step = stride * unsigned.itemsize if spec.tokens > 1 else unsigned.itemsize * spec.width
    size = (spec.tokens - 1) * step + spec.width * unsigned.itemsize
    flat = _memory(address, size)
    shape, strides = (spec.tokens, spec.width), (step, unsigned.itemsize)
    return np.ndarray(shape, unsigned, flat, strides=strides)


def encode(
    specs: Sequence[CellSpec],
    spec_index: np.ndarray,
    sources: Places,
    buffers: Sequence[np.ndarray],
    encoded: "EncodedCells",
) -> None:
    at = encoded.ends.tolist()
    addresses, strides = sources[0].tolist(), sources[1].tolist()
    for i, index in enumerate(spec_index.tolist()):
        cell = encode_cell(specs[index], _rows(addresses[i], strides[i], specs[index]).copy())
        encoded.raw[i] = cell.raw
        for c, string in enumerate(cell.strings):
            assert len(string) <= cell_bytes_max(specs[index])[c]
            encoded.offsets[c, i], encoded.lengths[c, i] = at[c], len(string)
            end = at[c] + len(string)
            buffers[c][at[c] : end] = np.frombuffer(string, np.uint8)
            at[c] = cell_aligned(end)
            buffers[c][end : at[c]] = 0
    encoded.ends[:] = at


def decode(
    specs: Sequence[CellSpec], cells: "CellColumns", targets: Places, planes: int
) -> np.ndarray:
    malformed = np.zeros(cells.count, np.bool_)
    columns = (cells.anchors, cells.residuals, cells.exacts)
    addresses, strides = targets[0].tolist(), targets[1].tolist()
    for i, index in enumerate(cells.spec_index.tolist()):
        spec, raw = specs[index], bool(cells.raw[i])
        needed = (
            True,
            not raw and planes > spec.anchor_planes,
            not raw and planes == EXACT,
        )
        strings = tuple(
            _memory(int(column[i]), int(cells.lengths[c, i])).tobytes()
            if needed[c] and column is not None
            else b""
            for c, column in enumerate(columns)
        )
        try:
            decoded = decode_cell(spec, CellStrings(raw, strings), planes)
        except MalformedCell:
            malformed[i] = True
            continue
        _rows(addresses[i], strides[i], spec)[:] = decoded
    return malformed


def checksum(base: int, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    places = zip(offsets.tolist(), lengths.tolist(), strict=True)
    sums = [xxhash.xxh3_64_intdigest(_memory(base + at, size)) for at, size in places]
    return np.array(sums, np.uint64)

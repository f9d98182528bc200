"""The plainly correct code in numpy: one cell in, three byte strings out, and back.

The other backend is held to these bytes. Nothing here is fast, and nothing knows of batches.
"""

from dataclasses import dataclass

import numpy as np

from kvd.codec.layout import EXACT, EXACT_BLOCK, PLANES, CellSpec, Grouping, cell_geometry
from kvd.codec.numbers import (
    bit_lengths,
    ceil_ordinals,
    finite,
    nearest,
    ordinals,
    patterns,
    single,
    values,
)

_EDGES = np.arange(257.0)


class MalformedCell(Exception):
    """Bytes that no encoder writes; never leaves the codec."""


@dataclass(frozen=True, slots=True)
class CellStrings:
    raw: bool
    strings: tuple[bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Per group: ordinals and fp32 values of lo and hi, and h."""

    first: np.ndarray
    last: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    step: np.ndarray


def _offset(spec: CellSpec) -> float:
    return 2.0 ** (7 - spec.anchor_planes)


def _group_index(spec: CellSpec) -> np.ndarray:
    """Return [tokens, width] group indices."""
    token = np.arange(spec.tokens)[:, None]
    channel = np.arange(spec.width)[None, :]
    if spec.grouping == Grouping.PER_CHANNEL:
        return token // spec.group * spec.width + channel
    return token * -(-spec.width // spec.group) + channel // spec.group


def _groups(spec: CellSpec, lo_bits: np.ndarray, hi_bits: np.ndarray) -> _Groups | None:
    """Return the groups of patterns lo and hi, or None when no coded cell can have them."""
    if not (finite(spec.dtype, lo_bits).all() and finite(spec.dtype, hi_bits).all()):
        return None
    first, last = ordinals(lo_bits), ordinals(hi_bits)
    if (first > last).any() or ((first == -1) & (last == 0)).any():
        return None
    lo, hi = values(spec.dtype, lo_bits), values(spec.dtype, hi_bits)
    span = single(hi - lo)
    if not np.isfinite(span).all():
        return None
    step = single(single(span / (2**spec.anchor_planes - 1)) / 2 ** (8 - spec.anchor_planes))
    assert ((step > 0) == (first < last)).all()
    return _Groups(first, last, lo, hi, step)


def _edges(spec: CellSpec, groups: _Groups) -> np.ndarray:
    """Return per group the ordinals of its 257 edges, not clipped."""
    beside = single((_EDGES - _offset(spec))[None, :] * groups.step[:, None])
    return ceil_ordinals(spec.dtype, single(groups.lo[:, None] + beside))


def _statistics(spec: CellSpec, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the u16 patterns of smallest and largest ordinal per group, sinks left out."""
    geometry = cell_geometry(spec)
    lowest = np.full(geometry.groups, 1 << 20, np.int32)
    highest = np.full(geometry.groups, -(1 << 20), np.int32)
    index, ordinal = _group_index(spec)[geometry.sinks :], ordinals(bits)[geometry.sinks :]
    np.minimum.at(lowest, index, ordinal)
    np.maximum.at(highest, index, ordinal)
    empty = lowest > highest
    lowest[empty] = highest[empty] = 0
    return patterns(lowest), patterns(highest)


def _codes(
    groups: _Groups, edges: np.ndarray, index: np.ndarray, ordinal: np.ndarray
) -> np.ndarray:
    """Return per element the code c with T[c] <= ordinal < T[c + 1], by bisection."""
    lowest, highest = groups.first[:, None], groups.last[:, None] + 1
    clipped = np.minimum(np.maximum(edges, lowest), highest)
    code = np.zeros(index.shape, np.int32)
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        reached = clipped[index, code + step] <= ordinal
        code = np.where(reached, code + step, code).astype(np.int32)
    return np.where((groups.first == groups.last)[index], 0, code)


def _bins(
    groups: _Groups, edges: np.ndarray, index: np.ndarray, code: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ordinals where every element's bin begins and behind its end."""
    lo, hi = groups.first[index], groups.last[index]
    first = np.maximum(edges[index, code], lo)
    behind = np.minimum(np.maximum(edges[index, code + 1], lo + 1), hi + 1)
    return first, behind


def _planes(code: np.ndarray) -> list[bytes]:
    """Return the eight planes of codes, p7 first."""
    flat = code.reshape(-1).astype(np.uint8)
    return [np.packbits((flat >> i) & 1, bitorder="little").tobytes() for i in range(7, -1, -1)]


def _exact_string(rank: np.ndarray, width: np.ndarray) -> bytes:
    rank, width = rank.reshape(-1), width.reshape(-1)
    lengths, blocks = [], []
    position = np.arange(16)
    for begin in range(0, len(rank), EXACT_BLOCK):
        part = slice(begin, begin + EXACT_BLOCK)
        bits = (rank[part, None] >> position) & 1
        used = bits[position[None, :] < width[part, None]].astype(np.uint8)
        lengths.append(len(used))
        blocks.append(np.packbits(used, bitorder="little").tobytes())
    return np.array(lengths, "<u2").tobytes() + b"".join(blocks)


def encode_cell(spec: CellSpec, cell: np.ndarray) -> CellStrings:
    """Code `cell`, [tokens, width] of the dtype's own unsigned bits."""
    assert cell.shape == (spec.tokens, spec.width), (cell.shape, spec)
    assert cell.dtype.itemsize == spec.dtype.size_bytes and cell.dtype.kind == "u"
    whole = CellStrings(True, (cell.tobytes(), b"", b""))
    geometry = cell_geometry(spec)
    if not spec.coded or not finite(spec.dtype, cell[geometry.sinks :]).all():
        return whole
    groups = _groups(spec, *_statistics(spec, cell))
    if groups is None:
        return whole
    index, ordinal, edges = _group_index(spec), ordinals(cell), _edges(spec, groups)
    code = _codes(groups, edges, index, ordinal)
    code[: geometry.sinks] = 0
    first, behind = _bins(groups, edges, index, code)
    rank, width = ordinal - first, bit_lengths(behind - first - 1)
    rank[: geometry.sinks] = width[: geometry.sinks] = 0
    assert (rank >= 0).all() and (rank >> width == 0).all()
    ends = np.stack([patterns(groups.first), patterns(groups.last)], axis=1)
    metadata = ends.astype("<u2").tobytes()
    planes = _planes(code)
    anchor = metadata + cell[: geometry.sinks].tobytes() + b"".join(planes[: spec.anchor_planes])
    residual = b"".join(planes[spec.anchor_planes :])
    exact = _exact_string(rank, width)
    assert len(anchor) == geometry.anchor and len(residual) == geometry.residual
    if len(anchor) + len(residual) + len(exact) >= spec.raw_bytes:
        return whole
    return CellStrings(False, (anchor, residual, exact))


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise MalformedCell(what)


def _merged_codes(spec: CellSpec, anchor: bytes, residual: bytes, planes: int) -> np.ndarray:
    """Return [tokens, width] codes from their first `planes` planes, the other bits 0."""
    geometry = cell_geometry(spec)
    joined = anchor[geometry.anchor - spec.anchor_planes * geometry.plane :]
    if planes > spec.anchor_planes:
        joined += residual
    code = np.zeros(geometry.elements, np.int32)
    for plane in range(planes):
        part = np.frombuffer(joined, np.uint8, geometry.plane, plane * geometry.plane)
        bit = np.unpackbits(part, count=geometry.elements, bitorder="little")
        code |= bit.astype(np.int32) << (7 - plane)
    return code.reshape(spec.tokens, spec.width)


def _ranks(exact: bytes, width: np.ndarray) -> np.ndarray:
    """Return the rank of every element, or raise MalformedCell."""
    width = width.reshape(-1)
    blocks = -(-len(width) // EXACT_BLOCK)
    _require(len(exact) >= 2 * blocks, "exact bytes end within the block lengths")
    lengths = np.frombuffer(exact, "<u2", blocks).astype(np.int64)
    starts = 2 * blocks + np.concatenate([[0], np.cumsum((lengths + 7) // 8)])
    _require(int(starts[-1]) == len(exact), "exact length differs from its blocks")
    rank = np.zeros(len(width), np.int32)
    position = np.arange(16)
    for block in range(blocks):
        part = slice(block * EXACT_BLOCK, (block + 1) * EXACT_BLOCK)
        _require(int(width[part].sum()) == lengths[block], "block length differs from its widths")
        data = np.frombuffer(exact, np.uint8, int(-(-lengths[block] // 8)), int(starts[block]))
        bits = np.zeros((len(width[part]), 16), np.int32)
        used = position[None, :] < width[part, None]
        bits[used] = np.unpackbits(data, count=int(lengths[block]), bitorder="little")
        rank[part] = (bits << position).sum(axis=1)
    return rank


def _lossy(spec: CellSpec, groups: _Groups, code: np.ndarray, planes: int) -> np.ndarray:
    """Return u16 patterns of what the first `planes` planes know."""
    index = _group_index(spec)
    missing = 8 - planes
    target = (code >> missing << missing).astype(np.float64) + 2.0**missing / 2
    lo, hi, step = groups.lo[index], groups.hi[index], groups.step[index]
    value = single(lo + single((target - _offset(spec)) * step))
    value = np.where(value < lo, lo, value)
    value = np.where(value > hi, hi, value)
    return nearest(spec.dtype, value)


def _exactly(spec: CellSpec, groups: _Groups, code: np.ndarray, exact: bytes) -> np.ndarray:
    """Return u16 patterns of all elements, or raise MalformedCell."""
    sinks = cell_geometry(spec).sinks
    first, behind = _bins(groups, _edges(spec, groups), _group_index(spec), code)
    _require(bool((first < behind)[sinks:].all()), "code of an empty bin")
    width = bit_lengths(np.maximum(behind - first - 1, 0))
    width[:sinks] = 0
    ordinal = first + _ranks(exact, width).reshape(first.shape)
    _require(bool((ordinal < behind)[sinks:].all()), "rank outside of its bin")
    return patterns(ordinal.astype(np.int32))


def decode_cell(spec: CellSpec, cell: CellStrings, planes: int) -> np.ndarray:
    """Return [tokens, width] of the dtype's bits, or raise MalformedCell.

    Strings that `planes` does not need may be anything.
    """
    assert 1 <= planes <= PLANES or planes == EXACT
    anchor, residual, exact = cell.strings
    if cell.raw:
        _require(len(anchor) == spec.raw_bytes, "raw cell of another length")
        unsigned = f"<u{spec.dtype.size_bytes}"
        return np.frombuffer(anchor, unsigned).reshape(spec.tokens, spec.width)
    _require(spec.coded, "coded cell of a raw dtype")
    geometry = cell_geometry(spec)
    _require(len(anchor) == geometry.anchor, "anchor of another length")
    if planes > spec.anchor_planes:
        _require(len(residual) == geometry.residual, "residual of another length")
    metadata = np.frombuffer(anchor, "<u2", 2 * geometry.groups).reshape(-1, 2)
    groups = _groups(spec, metadata[:, 0].copy(), metadata[:, 1].copy())
    _require(groups is not None, "lo and hi of no coded group")
    code = _merged_codes(spec, anchor, residual, min(planes, PLANES))
    if planes == EXACT:
        out = _exactly(spec, groups, code, exact)
    else:
        out = _lossy(spec, groups, code, planes)
    out = out.astype(np.uint16)
    kept = np.frombuffer(anchor, "<u2", geometry.sinks * spec.width, 4 * geometry.groups)
    out[: geometry.sinks] = kept.reshape(geometry.sinks, spec.width)
    return out

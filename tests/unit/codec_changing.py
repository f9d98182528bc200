"""Cells whose memory changes between two looks of the code at it, in a process of its own.

The change is forced: what the code writes first, the sinks, lies upon what it looks at twice. To be
run as `python -m tests.unit.codec_changing decode|encode BACKEND`.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterator
from itertools import product

import numpy as np

from kvd.codec import (
    EXACT,
    CellColumns,
    CellSpec,
    Grouping,
    available,
    cell_bytes_max,
    decode_cells,
    encode_cells,
    use_backend,
)
from kvd.codec.layout import cell_aligned
from kvd.types import Dtype
from tests.unit.test_codec_cells import CODED, INFINITY, Coded, in_order, random_bits

PAGE = mmap.PAGESIZE
FILL = 0xA5
WIDTHS = (128, 120)  # The second is not for wide instructions.


def main(what: str, backend: str) -> None:
    count = {"decode": decode_all, "encode": encode_all}[what](backend)
    print(f"{count} cells")


# A reader's exact strings: the first token lies upon the lengths of the blocks.


def decode_all(backend: str) -> int:
    use_backend(backend)
    count = 0
    for dtype, grouping, width in product(CODED, Grouping, WIDTHS):
        spec = CellSpec(dtype, 64, width, grouping, 1)
        assert decoded(spec, None, 0), spec
        blocks = range(-(-64 * width // 1024))
        for block, bits in product(blocks, (0, 16383, 16384, 16385, 0xFFFF)):
            assert not decoded(spec, block, bits), (spec, block, bits)
            count += 1
    return count


def decoded(spec: CellSpec, block: int | None, bits: int) -> bool:
    """Decode a cell whose `block` says another length, `bits`, once its sink is written.

    The exact string ends where nothing can be read; the tokens behind the sink lie beyond.
    """
    coded = Coded([spec], [random_bits(np.random.default_rng(1), spec.dtype, (64, spec.width))])
    anchor, residual, exact = (np.frombuffer(coded.string(c, 0), np.uint8).copy() for c in range(3))
    after = exact[: 2 * spec.width].copy()
    if block is not None:
        after.view(np.uint16)[block] = bits
    groups = 4 * spec.width if spec.grouping == Grouping.PER_CHANNEL else 4 * 64
    anchor[groups : groups + 2 * spec.width] = after
    pages = -(-len(exact) // PAGE)
    stride = (pages + 2) * PAGE // 2
    memory = mmap.mmap(-1, 64 * 2 * stride + pages * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    begin, fence = pages * PAGE - len(exact), whole.ctypes.data + pages * PAGE
    whole[begin : pages * PAGE] = exact
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(fence), PAGE, 0) == 0
    place = np.array([whole.ctypes.data + begin], np.uint64)
    columns = CellColumns(
        np.zeros(1, np.uint8),
        np.array([anchor.ctypes.data], np.uint64),
        np.array([residual.ctypes.data], np.uint64),
        place,
        coded.encoded.lengths,
        np.zeros(1, np.bool_),
    )
    return not decode_cells([spec], columns, place, np.array([stride], np.int64), EXACT).size


# A writer's values: the second token lies where the sinks are kept.


def encode_all(backend: str) -> int:
    raw = [
        encoded_raw(backend, spec, scale, bits)
        for spec in encoded_specs()
        for scale in ((1.0, 1e-33) if spec.dtype == Dtype.BF16 else (1.0,))
        for bits in changes(spec.dtype)
    ]
    assert any(raw) and not all(raw)
    return len(raw)


def encoded_specs() -> Iterator[CellSpec]:
    for dtype in CODED:
        for grouping in Grouping:
            yield CellSpec(dtype, 16, 1024, grouping, 1)
            yield CellSpec(dtype, 16, 1000, grouping, 1)
            yield CellSpec(dtype, 64, 128, grouping, 1)
            yield CellSpec(dtype, 64, 128, grouping, 1, 8)
            yield CellSpec(dtype, 64, 16, grouping, 1, 4, 16)


def changes(dtype: Dtype) -> tuple[int, ...]:
    infinity = INFINITY[dtype]
    largest, small = infinity - 1, 1
    positive = (0, small, largest, infinity, infinity + 1, 0x7FFF)
    return positive + tuple(0x8000 | bits for bits in positive)


def encoded_raw(backend: str, spec: CellSpec, scale: float, bits: int) -> bool:
    """Encode a cell whose second token becomes `bits`; assert that what comes out is a cell."""
    use_backend(backend)
    cell = random_bits(np.random.default_rng(2), spec.dtype, (spec.tokens, spec.width))
    if spec.dtype == Dtype.BF16:
        value = (cell.astype(np.uint32) << 16).view(np.float32) * np.float32(scale)
        cell = (value.view(np.uint32) >> 16).astype(np.uint16)
    cell[2::3, ::2] = cell[1, ::2]  # Ends of groups that the change does not touch.
    cell[0] = bits
    rooms = [cell_aligned(size) for size in cell_bytes_max(spec)]
    groups = 4 * spec.width * -(-spec.tokens // spec.group)
    if spec.grouping == Grouping.PER_TOKEN:
        groups = 4 * spec.tokens * -(-spec.width // spec.group)
    guard, stride = 4096, (rooms[0] + 3 * 4096) // 2
    memory = np.full(2 * stride * (spec.tokens + 1) + guard, FILL, np.uint8)
    # Token 0, the anchor's room with token 1 in it, the other tokens.
    begin = 2 * stride + guard - groups
    anchor = memory[begin : begin + rooms[0]]
    source = memory[guard:].view(np.uint16)
    for token in range(spec.tokens):
        source[token * stride : token * stride + spec.width] = cell[token]
    others = [np.full(room + 2 * guard, FILL, np.uint8) for room in rooms[1:]]
    out = [anchor, *(other[guard : len(other) - guard] for other in others)]
    addresses = np.array([source.ctypes.data], np.uint64)
    strides, index = np.array([stride], np.int64), np.zeros(1, np.uint8)
    encoded = encode_cells([spec], index, addresses, strides, out, (0, 0, 0))
    for other in others:
        assert (other[:guard] == FILL).all() and (other[-guard:] == FILL).all(), spec
    for begins, ends in ((guard + 2 * spec.width, begin), (begin + len(anchor), 4 * stride)):
        assert (memory[begins:ends] == FILL).all(), spec
    assert_cell(spec, out, encoded.lengths, encoded.raw)
    return bool(encoded.raw[0])


def assert_cell(
    spec: CellSpec, out: list[np.ndarray], lengths: np.ndarray, raw: np.ndarray
) -> None:
    """Every backend must read the cell, and read the same."""
    places = [np.array([buffer.ctypes.data], np.uint64) for buffer in out]
    columns = CellColumns(np.zeros(1, np.uint8), *places, lengths, raw)
    results = []
    for name in available():
        use_backend(name)
        got = np.zeros((spec.tokens, spec.width), np.uint16)
        target, stride = np.array([got.ctypes.data], np.uint64), np.array([spec.width], np.int64)
        assert not decode_cells([spec], columns, target, stride, EXACT).size, (name, spec)
        results.append(in_order(got))
    assert all(np.array_equal(result, results[0]) for result in results), spec


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Bytes that are no cells: refused alike by every backend, nothing read or written outside."""

import ctypes
import mmap
from dataclasses import dataclass

import numpy as np
import pytest

from kvd.codec import (
    EXACT,
    CellColumns,
    CellSpec,
    Grouping,
    cell_geometry,
    decode_cells,
)
from kvd.types import Dtype
from tests.unit.test_codec_cells import (
    BACKENDS,
    CODED,
    INFINITY,
    Coded,
    backend_in_use,
    random_bits,
)

PAGE = mmap.PAGESIZE
GUARD = 64


class Fenced:
    """Memory whose end is followed by a page that nobody may touch."""

    def __init__(self, size: int) -> None:
        pages = -(-size // PAGE)
        self._map = mmap.mmap(-1, (pages + 1) * PAGE)
        self._whole = np.frombuffer(self._map, np.uint8)
        fence = self._whole.ctypes.data + pages * PAGE
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(fence), PAGE, 0) == 0
        self._last = pages * PAGE

    def put(self, data: bytes) -> int:
        """Return the address of `data`, laid so that it ends at the fence."""
        self._whole[self._last - len(data) : self._last] = np.frombuffer(data, np.uint8)
        return self._whole.ctypes.data + self._last - len(data)


@dataclass(frozen=True)
class Strings:
    raw: bool
    strings: tuple[bytes, bytes, bytes]


FENCES = [Fenced(1 << 17) for _ in range(3)]


def decode_fenced(spec: CellSpec, cell: Strings, planes: int) -> tuple[bool, np.ndarray]:
    """Decode one cell laid at the fences; assert that guards around the target stay."""
    places = [
        np.array([fence.put(s)], np.uint64) for fence, s in zip(FENCES, cell.strings, strict=True)
    ]
    lengths = np.array([[len(s)] for s in cell.strings], np.uint32)
    columns = CellColumns(np.zeros(1, np.uint8), *places, lengths, np.array([cell.raw]))
    stride = spec.width + 16
    unsigned = np.dtype(f"u{spec.dtype.size_bytes}")
    room = np.full((spec.tokens + 2, stride), 0x5A, unsigned)
    inner = room[1 : spec.tokens + 1, 8 : 8 + spec.width]
    malformed = decode_cells(
        [spec],
        columns,
        np.array([room[1:, 8:].ctypes.data], np.uint64),
        np.array([stride], np.int64),
        planes,
    )
    got = inner.copy()
    inner[:] = 0x5A
    assert (room == 0x5A).all(), "wrote outside of the target"
    return malformed.size == 0, got


def assert_alike(spec: CellSpec, cell: Strings, planes: int) -> bool:
    """Return whether the cell is accepted; assert that every backend says and gives the same."""
    results = []
    for name in BACKENDS:
        with backend_in_use(name):
            results.append(decode_fenced(spec, cell, planes))
    for accepted, got in results:
        assert accepted == results[0][0], (spec, planes, BACKENDS, [r[0] for r in results])
        if accepted:
            assert np.array_equal(got, results[0][1]), (spec, planes)
    return results[0][0]


def coded_strings(spec: CellSpec, cell: np.ndarray) -> Strings:
    coded = Coded([spec], [cell])
    strings = tuple(coded.string(c, 0) for c in range(3))
    return Strings(bool(coded.encoded.raw[0]), strings)


SPECS = [
    CellSpec(dtype, tokens, width, grouping, sinks, anchor)
    for dtype in CODED
    for tokens, width in ((64, 64), (17, 48), (5, 7), (40, 80))
    for grouping in Grouping
    for sinks, anchor in ((0, 4), (4, 4), (2, 6))
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_strings_at_the_end_of_memory(spec: CellSpec) -> None:
    rng = np.random.default_rng(1)
    cell = random_bits(rng, spec.dtype, (spec.tokens, spec.width))
    strings = coded_strings(spec, cell)
    for planes in (*range(1, 9), EXACT):
        assert assert_alike(spec, strings, planes)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_damaged_cells(spec: CellSpec) -> None:
    rng = np.random.default_rng(2)
    cell = random_bits(rng, spec.dtype, (spec.tokens, spec.width))
    whole = coded_strings(spec, cell)
    outcomes = []
    for _ in range(25):
        strings = [bytearray(s) for s in whole.strings]
        for _ in range(int(rng.integers(1, 4))):
            victim = strings[int(rng.integers(0, 3))]
            if victim:
                victim[int(rng.integers(0, len(victim)))] ^= 1 << int(rng.integers(0, 8))
        damaged = Strings(whole.raw, tuple(bytes(s) for s in strings))
        outcomes += [assert_alike(spec, damaged, planes) for planes in (EXACT, 8, 4)]
    assert any(outcomes) and (whole.raw or not all(outcomes))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_noise(spec: CellSpec) -> None:
    rng = np.random.default_rng(3)
    geometry = cell_geometry(spec)
    for kind in range(12):
        exact = rng.integers(0, 256, 2 * geometry.elements, np.uint8)
        lengths = exact[: 2 * geometry.blocks].view(np.uint16)
        if kind % 2:
            lengths[:] = rng.integers(0, 16385, geometry.blocks)
        total = 2 * geometry.blocks + int(((lengths.astype(int) + 7) // 8).sum())
        strings = [
            rng.integers(0, 256, geometry.anchor, np.uint8),
            rng.integers(0, 256, geometry.residual, np.uint8),
            np.resize(exact, total),
        ]
        if kind % 3:  # Plausible groups, so that the planes are reached.
            ends = np.sort(rng.integers(0, INFINITY[spec.dtype], (geometry.groups, 2)), axis=1)
            strings[0][: 4 * geometry.groups] = ends.astype("<u2").reshape(-1).view(np.uint8)
        cell = Strings(False, tuple(s.tobytes() for s in strings))
        for planes in (1, 4, 8, EXACT):
            assert_alike(spec, cell, planes)


@pytest.mark.parametrize("grouping", Grouping)
def test_codes_beyond_both_ends_and_empty_bins(grouping: Grouping) -> None:
    spec = CellSpec(Dtype.BF16, 64, 64, grouping)
    geometry = cell_geometry(spec)
    for ends in ((0x3F80, 0x3F88), (0xBF80, 0x3F80), (0x8000, 0x3F80), (0x3F80, 0x3F80)):
        for code in range(256):
            planes = b"".join(
                bytes([0xFF if code >> i & 1 else 0]) * geometry.plane for i in range(7, -1, -1)
            )
            metadata = np.array(ends * geometry.groups, "<u2").tobytes()
            cut = 4 * geometry.plane
            exact = bytes(2 * geometry.blocks)
            cell = Strings(False, (metadata + planes[:cut], planes[cut:], exact))
            assert_alike(spec, cell, EXACT)
            assert assert_alike(spec, cell, 8)


@pytest.mark.parametrize("anchor", [1, 4, 8])
@pytest.mark.parametrize("lo", [0x8000, 0, 0x3F80, 0xBF80])
def test_codes_of_constant_groups(lo: int, anchor: int) -> None:
    """All mean lo, but those whose edge is +0 where lo is -0: their bins are empty."""
    spec = CellSpec(Dtype.BF16, 16, 16, Grouping.PER_TOKEN, 0, anchor)
    geometry = cell_geometry(spec)
    for code in range(256):
        planes = b"".join(
            bytes([0xFF * (code >> i & 1)]) * geometry.plane for i in range(7, -1, -1)
        )
        metadata = np.array((lo, lo) * geometry.groups, "<u2").tobytes()
        cut = anchor * geometry.plane
        strings = (metadata + planes[:cut], planes[cut:], bytes(2 * geometry.blocks))
        empty = lo == 0x8000 and code >= 2.0 ** (7 - anchor)
        assert assert_alike(spec, Strings(False, strings), EXACT) != empty, code


@pytest.mark.parametrize("grouping", Grouping)
@pytest.mark.parametrize("dtype", CODED)
def test_ends_of_no_group(grouping: Grouping, dtype: Dtype) -> None:
    spec = CellSpec(dtype, 64, 64, grouping)
    whole = coded_strings(spec, random_bits(np.random.default_rng(4), dtype, (64, 64)))
    infinity = INFINITY[dtype]
    wrong = [(0, infinity), (infinity | 0x8000, 0), (infinity | 1, infinity | 1), (0x8000, 0)]
    wrong += [(1, 0), (0, 0x8000), (0x8000, 0x8001)]
    if dtype == Dtype.BF16:
        wrong.append((0xFF7F, 0x7F7F))
    for ends in wrong:
        anchor = np.array(ends, "<u2").tobytes() + whole.strings[0][4:]
        cell = Strings(False, (anchor, *whole.strings[1:]))
        assert not assert_alike(spec, cell, EXACT)
        assert not assert_alike(spec, cell, 4)


@pytest.mark.parametrize("grouping", Grouping)
def test_wrong_lengths_and_flags(grouping: Grouping) -> None:
    spec = CellSpec(Dtype.BF16, 64, 64, grouping)
    whole = coded_strings(spec, random_bits(np.random.default_rng(5), Dtype.BF16, (64, 64)))
    for c in range(3):
        for change in (b"", whole.strings[c][:-1], whole.strings[c] + b"\0", bytes(1), bytes(9)):
            strings = list(whole.strings)
            strings[c] = change
            cell = Strings(False, tuple(strings))
            assert not assert_alike(spec, cell, EXACT)
            assert assert_alike(spec, cell, 4) == (c > 0)
            assert assert_alike(spec, cell, 8) == (c > 1)
    assert not assert_alike(spec, Strings(True, whole.strings), EXACT)
    other = CellSpec(Dtype.FP32, 64, 64, grouping)
    assert not assert_alike(other, Strings(False, (bytes(64 * 64 * 4), b"", b"")), 4)
    assert assert_alike(other, Strings(True, (bytes(64 * 64 * 4), b"", b"")), 4)


def test_one_malformed_cell_among_many() -> None:
    rng = np.random.default_rng(6)
    spec = CellSpec(Dtype.BF16, 64, 64, Grouping.PER_TOKEN)
    cells = [random_bits(rng, Dtype.BF16, (64, 64)) for _ in range(5)]
    for name in BACKENDS:
        with backend_in_use(name):
            coded = Coded([spec] * 5, cells)
            at = int(coded.encoded.offsets[2, 3])
            coded.out[2][at] ^= 1
            targets = [np.zeros_like(cell) for cell in cells]
            places = np.array([target.ctypes.data for target in targets], np.uint64)
            strides = np.full(5, 64, np.int64)
            wrong = decode_cells(coded.specs, coded.columns(), places, strides, EXACT)
            assert wrong.tolist() == [3]
            for i in (0, 1, 2, 4):
                assert np.array_equal(targets[i], cells[i])

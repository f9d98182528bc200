"""Cells on every backend: exact round trips, lossy planes by formula, identical bytes."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from kvd.codec import (
    EXACT,
    CellColumns,
    CellSpec,
    EncodedCells,
    Grouping,
    available,
    backend,
    cell_bytes_max,
    cell_geometry,
    decode_cells,
    encode_cells,
    native,
    use_backend,
)
from kvd.types import Dtype

BACKENDS = available()
CODED = (Dtype.BF16, Dtype.FP16)
INFINITY = {Dtype.BF16: 0x7F80, Dtype.FP16: 0x7C00}


@contextmanager
def backend_in_use(name: str) -> Iterator[None]:
    before = backend()
    use_backend(name)
    try:
        yield
    finally:
        use_backend(before)


class Coded:
    """Cells coded on one backend, with the buffers that keep their strings alive."""

    def __init__(self, specs: list[CellSpec], cells: list[np.ndarray]) -> None:
        self.specs = specs
        self.sources = [np.ascontiguousarray(cell) for cell in cells]
        self.spec_index = np.arange(len(specs), dtype=np.uint8)
        sizes = np.array([cell_bytes_max(spec) for spec in specs]).reshape(-1, 3)
        self.base = (16 * len(specs), 8, 0)
        rooms = ((sizes + 7) // 8 * 8).sum(axis=0) + np.array(self.base)
        self.out = [np.full(room, 0xAA, np.uint8) for room in rooms]
        addresses = np.array([cell.ctypes.data for cell in self.sources], np.uint64)
        strides = np.array([spec.width for spec in specs], np.int64)
        self.encoded = encode_cells(specs, self.spec_index, addresses, strides, self.out, self.base)

    def string(self, plane_class: int, i: int) -> bytes:
        begin = int(self.encoded.offsets[plane_class, i])
        return self.out[plane_class][
            begin : begin + int(self.encoded.lengths[plane_class, i])
        ].tobytes()

    def strip(self, plane_class: int) -> bytes:
        begin, end = self.base[plane_class], int(self.encoded.ends[plane_class])
        return self.out[plane_class][begin:end].tobytes()

    def columns(self) -> CellColumns:
        return columns_of(self.spec_index, self.out, self.encoded)


def columns_of(spec_index: np.ndarray, out: list[np.ndarray], encoded: EncodedCells) -> CellColumns:
    strings = [
        encoded.offsets[c].astype(np.uint64) + np.uint64(out[c].ctypes.data) for c in range(3)
    ]
    return CellColumns(spec_index, *strings, encoded.lengths, encoded.raw)


def decoded(coded: Coded, planes: int) -> list[np.ndarray]:
    targets = [np.full_like(cell, 0x55) for cell in coded.sources]
    addresses = np.array([target.ctypes.data for target in targets], np.uint64)
    strides = np.array([spec.width for spec in coded.specs], np.int64)
    malformed = decode_cells(coded.specs, coded.columns(), addresses, strides, planes)
    assert malformed.tolist() == []
    return targets


def assert_round_trip(specs: list[CellSpec], cells: list[np.ndarray]) -> Coded:
    """Code on every backend; assert identical strips and exact values; return the first."""
    results = []
    for name in BACKENDS:
        with backend_in_use(name):
            coded = Coded(specs, cells)
            for target, cell in zip(decoded(coded, EXACT), cells, strict=True):
                assert np.array_equal(target, cell), name
            lossy = {planes: decoded(coded, planes) for planes in (1, 3, 4, 8)}
        results.append((coded, lossy))
    first, first_lossy = results[0]
    for coded, lossy in results[1:]:
        for c in range(3):
            assert coded.strip(c) == first.strip(c)
        assert np.array_equal(coded.encoded.offsets, first.encoded.offsets)
        assert np.array_equal(coded.encoded.lengths, first.encoded.lengths)
        assert np.array_equal(coded.encoded.raw, first.encoded.raw)
        for planes, cells_of in lossy.items():
            for a, b in zip(cells_of, first_lossy[planes], strict=True):
                assert np.array_equal(a, b), planes
    return first


def random_bits(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, int]) -> np.ndarray:
    """Return normal values with a scale per channel, as the dtype's bits."""
    value = rng.standard_normal(shape) * np.exp(0.3 * rng.standard_normal(shape[1]))
    return to_bits(dtype, value)


def to_bits(dtype: Dtype, value: np.ndarray) -> np.ndarray:
    """Return u16 bits of values; BF16 by truncation."""
    if dtype == Dtype.FP16:
        return value.astype(np.float16).view(np.uint16)
    return (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def to_values(dtype: Dtype, bits: np.ndarray) -> np.ndarray:
    if dtype == Dtype.FP16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def in_order(bits: np.ndarray) -> np.ndarray:
    signed = bits.astype(np.int32)
    return np.where(signed < 0x8000, signed, -1 - (signed & 0x7FFF))


def test_native_loads_where_a_compiler_is() -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    assert BACKENDS == ("native", "portable", "reference"), native.load().problem


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("grouping", Grouping)
@pytest.mark.parametrize("order", ["sorted", "shuffled", "all"])
def test_every_pattern_survives(dtype: Dtype, grouping: Grouping, order: str) -> None:
    rng = np.random.default_rng(7)
    patterns = np.arange(65536, dtype=np.uint16)
    if order == "sorted":
        patterns = patterns[np.argsort(in_order(patterns), kind="stable")]
    if order == "shuffled":
        rng.shuffle(patterns)
    if order != "all":
        patterns = patterns[(patterns & INFINITY[dtype]) != INFINITY[dtype]]
    shape = (len(patterns) // 128, 128)
    cell = patterns[: shape[0] * shape[1]].reshape(shape)
    if grouping == Grouping.PER_CHANNEL and order == "sorted":
        cell = np.ascontiguousarray(patterns[: cell.size].reshape(128, -1).T)
        cell = cell[: shape[0] // 64 * 64]
    spec = CellSpec(dtype, *cell.shape, grouping)
    coded = assert_round_trip([spec], [cell])
    small = [CellSpec(dtype, 64, 128, grouping)] * (shape[0] // 64)
    assert_round_trip(small, np.split(cell[: len(small) * 64], len(small)))
    if order == "all":
        assert coded.encoded.raw.all()
    if order == "sorted":
        assert not coded.encoded.raw.any()


def named_cells(dtype: Dtype, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    one = int(to_bits(dtype, np.array([1.0]))[0])
    zeros = np.where(rng.random(shape) < 0.5, 0, 0x8000).astype(np.uint16)
    zeros_and_one = zeros.copy()
    zeros_and_one[:, 0] = zeros_and_one[0, :] = one
    finite = INFINITY[dtype] - 1
    huge = np.where(rng.random(shape) < 0.5, finite, finite - 200).astype(np.uint16)
    exponents = rng.integers(0, INFINITY[dtype], shape) | rng.integers(0, 2, shape) << 15
    cells = {
        "normal": random_bits(rng, dtype, shape),
        "subnormal": (rng.integers(0, 0x80, shape) | rng.integers(0, 2, shape) << 15),
        "narrow": one + rng.integers(0, 4, shape),
        "constant": np.full(shape, one),
        "constant -0": np.full(shape, 0x8000),
        "zeros": np.zeros(shape),
        "mixed zeros": zeros,
        "mixed zeros and one": zeros_and_one,
        "-0 and up": np.where(rng.random(shape) < 0.3, 0x8000, one),
        "huge": huge,
        "huge of both signs": huge | rng.integers(0, 2, shape) << 15,
        "all exponents": exponents,
        "sparse": np.where(rng.random(shape) < 0.95, 0, random_bits(rng, dtype, shape)),
    }
    return {name: cell.astype(np.uint16) for name, cell in cells.items()}


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("grouping", Grouping)
@pytest.mark.parametrize("sinks", [0, 4])
def test_named_cells_survive(dtype: Dtype, grouping: Grouping, sinks: int) -> None:
    for shape in ((64, 64), (65, 80)):
        cells = named_cells(dtype, shape)
        spec = CellSpec(dtype, *shape, grouping, sinks)
        coded = assert_round_trip([spec] * len(cells), list(cells.values()))
        raw = dict(zip(cells, coded.encoded.raw.tolist(), strict=True))
        assert raw["mixed zeros"]
        assert not any(raw[name] for name in ("constant", "constant -0", "narrow", "zeros"))
        if dtype == Dtype.BF16:
            assert raw["huge of both signs"] and not raw["normal"]


@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 5, 63, 64, 65, 129])
@pytest.mark.parametrize("width", [1, 7, 16, 64, 80, 128, 192])
def test_shapes_survive(tokens: int, width: int) -> None:
    rng = np.random.default_rng(tokens * 1000 + width)
    specs = [
        CellSpec(dtype, tokens, width, grouping, sinks, anchor)
        for dtype in CODED
        for grouping in Grouping
        for sinks in (0, 4)
        for anchor in (4, 3)
    ]
    cells = [random_bits(rng, spec.dtype, (tokens, width)) for spec in specs]
    coded = assert_round_trip(specs, cells)
    if tokens == 0:
        assert coded.encoded.lengths.sum() == 0 and coded.encoded.raw.all()


@pytest.mark.parametrize("anchor", range(1, 9))
@pytest.mark.parametrize("group", [1, 16, 24, 32, 64, 100])
def test_widths_of_anchor_and_group_survive(anchor: int, group: int) -> None:
    rng = np.random.default_rng(anchor)
    specs = [
        CellSpec(dtype, 70, 96, grouping, 2, anchor, group)
        for dtype in CODED
        for grouping in Grouping
    ]
    assert_round_trip(specs, [random_bits(rng, spec.dtype, (70, 96)) for spec in specs])


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.FP8_E4M3, Dtype.FP8_E5M2, Dtype.INT8])
def test_other_dtypes_are_raw(dtype: Dtype) -> None:
    rng = np.random.default_rng(1)
    unsigned = np.dtype(f"u{dtype.size_bytes}")
    cell = rng.integers(0, 256, (5, 12 * dtype.size_bytes), np.uint8).view(unsigned)
    spec = CellSpec(dtype, 5, 12, Grouping.PER_TOKEN, 4)
    coded = assert_round_trip([spec], [cell])
    assert coded.encoded.raw.all() and coded.string(0, 0) == cell.tobytes()
    assert not spec.coded and cell_bytes_max(spec) == (cell.nbytes, 0, 0)


@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("special", ["nan", "infinity", "-infinity"])
def test_not_finite_costs_one_cell(dtype: Dtype, special: str) -> None:
    infinity = INFINITY[dtype]
    bits = {"nan": infinity | 1, "infinity": infinity, "-infinity": infinity | 0x8000}[special]
    rng = np.random.default_rng(5)
    cells = [random_bits(rng, dtype, (64, 64)) for _ in range(4)]
    cells[1][63, 63] = bits
    cells[2][0, 0] = bits
    for grouping in Grouping:
        plain, sinks = CellSpec(dtype, 64, 64, grouping), CellSpec(dtype, 64, 64, grouping, 4)
        coded = assert_round_trip([plain] * 4, cells)
        assert coded.encoded.raw.tolist() == [False, True, True, False]
        assert coded.string(0, 1) == cells[1].tobytes()
        coded = assert_round_trip([sinks] * 4, cells)
        assert coded.encoded.raw.tolist() == [False, True, False, False]


def test_strings_lie_in_order_at_multiples_of_eight() -> None:
    rng = np.random.default_rng(2)
    specs = [CellSpec(Dtype.BF16, 9, 33, Grouping.PER_TOKEN)] * 5
    coded = assert_round_trip(specs, [random_bits(rng, Dtype.BF16, (9, 33)) for _ in specs])
    encoded = coded.encoded
    for c in range(3):
        at = coded.base[c]
        for i in range(5):
            assert encoded.offsets[c, i] == at
            end = at + int(encoded.lengths[c, i])
            at = (end + 7) // 8 * 8
            assert not coded.out[c][end:at].any()
        assert encoded.ends[c] == at
        assert (coded.out[c][: coded.base[c]] == 0xAA).all()
    geometry = cell_geometry(specs[0])
    assert encoded.lengths[0].tolist() == [geometry.anchor] * 5
    assert encoded.lengths[1].tolist() == [geometry.residual] * 5


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("grouping", Grouping)
def test_strided_values_and_a_subset(name: str, grouping: Grouping) -> None:
    rng = np.random.default_rng(4)
    block = random_bits(rng, Dtype.BF16, (64, 3 * 64)).reshape(64, 3, 64)
    spec = CellSpec(Dtype.BF16, 64, 64, grouping, 4)
    heads = np.array([block[:, head].ctypes.data for head in range(3)], np.uint64)
    strides, spec_index = np.full(3, 3 * 64, np.int64), np.zeros(3, np.uint8)
    with backend_in_use(name):
        out = [np.zeros(48 + 3 * 8192, np.uint8) for _ in range(3)]
        encoded = encode_cells([spec], spec_index, heads, strides, out, (48, 48, 48))
        cells = columns_of(spec_index, out, encoded)
        picked = np.array([2, 0])
        part = CellColumns(
            spec_index[picked],
            cells.anchors[picked],
            cells.residuals[picked],
            cells.exacts[picked],
            np.ascontiguousarray(cells.lengths[:, picked]),
            cells.raw[picked],
        )
        target = np.full((64, 5, 64), 0x5555, np.uint16)
        places = np.array([target[:, 4].ctypes.data, target[:, 1].ctypes.data], np.uint64)
        wide = np.full(2, 5 * 64, np.int64)
        assert decode_cells([spec], part, places, wide, EXACT).tolist() == []
        assert np.array_equal(target[:, 4], block[:, 2])
        assert np.array_equal(target[:, 1], block[:, 0])
        assert (target[:, [0, 2, 3]] == 0x5555).all()
        anchors_only = replace(part, residuals=None, exacts=None)
        assert decode_cells([spec], anchors_only, places, wide, 4).tolist() == []


def expected_lossy(spec: CellSpec, cell: np.ndarray, planes: int) -> np.ndarray:
    """Quantise by the formula of the code, group by group, in float32; no sinks."""
    value = to_values(spec.dtype, cell)
    out = np.empty_like(cell)
    along_tokens = spec.grouping == Grouping.PER_CHANNEL
    rows = value.T if along_tokens else value
    for row in range(rows.shape[0]):
        for begin in range(0, rows.shape[1], spec.group):
            x = rows[row, begin : begin + spec.group].astype(np.float32)
            lo, hi = x.min(), x.max()
            h = (hi - lo) / np.float32(15) / np.float32(16)
            edges = lo + (np.arange(257, dtype=np.float32) - np.float32(8)) * h
            code = np.searchsorted(edges[:256], x, side="right") - 1
            m = 8 - planes
            t = (code >> m << m).astype(np.float32) + np.float32(2**m / 2)
            y = np.clip(lo + (t - np.float32(8)) * h, lo, hi).astype(np.float32)
            if spec.dtype == Dtype.FP16:
                bits = y.astype(np.float16).view(np.uint16)
            else:
                wide = y.view(np.uint32).astype(np.uint64)
                low, high = wide & 0xFFFF, wide >> 16
                up = (low > 0x8000) | ((low == 0x8000) & (high % 2 == 1))
                bits = (high + up).astype(np.uint16)
            if along_tokens:
                out[begin : begin + spec.group, row] = bits
            else:
                out[row, begin : begin + spec.group] = bits
    return out


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("grouping", Grouping)
def test_lossy_planes_follow_the_formula(name: str, dtype: Dtype, grouping: Grouping) -> None:
    rng = np.random.default_rng(11)
    cell = random_bits(rng, dtype, (64, 64))
    spec = CellSpec(dtype, 64, 64, grouping)
    with backend_in_use(name):
        coded = Coded([spec], [cell])
        for planes in range(1, 9):
            [got] = decoded(coded, planes)
            assert np.array_equal(got, expected_lossy(spec, cell, planes)), planes


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", CODED)
@pytest.mark.parametrize("anchor", [2, 3, 4, 5])
def test_the_anchor_keeps_both_ends(name: str, dtype: Dtype, anchor: int) -> None:
    rng = np.random.default_rng(12)
    cell = random_bits(rng, dtype, (64, 64))
    spec = CellSpec(dtype, 64, 64, Grouping.PER_CHANNEL, 0, anchor)
    with backend_in_use(name):
        [got] = decoded(Coded([spec], [cell]), anchor)
    value, kept = to_values(dtype, cell), to_values(dtype, got)
    assert np.array_equal(kept.min(axis=0), value.min(axis=0))
    assert np.array_equal(kept.max(axis=0), value.max(axis=0))
    span = value.max(axis=0) - value.min(axis=0)
    error = np.abs(kept - value)
    assert (error <= 0.51 * span / (2**anchor - 1) + np.abs(value) / 128).all()


@pytest.mark.parametrize("name", BACKENDS)
def test_sinks_are_kept_apart(name: str) -> None:
    rng = np.random.default_rng(13)
    cell = random_bits(rng, Dtype.BF16, (64, 64))
    cell[:4] = to_bits(Dtype.BF16, rng.standard_normal((4, 64)) * 1e6)
    for grouping in Grouping:
        spec = CellSpec(Dtype.BF16, 64, 64, grouping, 4)
        with backend_in_use(name):
            coded = Coded([spec], [cell])
            [got] = decoded(coded, 2)
        assert np.array_equal(got[:4], cell[:4])
        assert np.abs(to_values(Dtype.BF16, got[4:])).max() < 1000
        geometry = cell_geometry(spec)
        begin = 4 * geometry.groups
        assert coded.string(0, 0)[begin : begin + 512] == cell[:4].tobytes()
        if grouping == Grouping.PER_TOKEN:
            assert coded.string(0, 0)[: 4 * 4] == bytes(16)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "reference"])
def test_batches_larger_than_caches(name: str) -> None:
    rng = np.random.default_rng(14)
    count = 2100  # Of 8 KiB: more than what is written past the caches.
    some = np.stack([random_bits(rng, Dtype.BF16, (64, 64)) for _ in range(20)])
    specs = [CellSpec(Dtype.BF16, 64, 64, grouping, 4) for grouping in Grouping]
    spec_index = (np.arange(count) % 2).astype(np.uint8)
    picked = np.arange(count) % 20
    sources = (some.ctypes.data + picked * some.strides[0]).astype(np.uint64)
    strides = np.full(count, 64, np.int64)
    out = [np.zeros(count * 8192, np.uint8) for _ in range(3)]
    with backend_in_use(name):
        encoded = encode_cells(specs, spec_index, sources, strides, out, (0, 0, 0))
        cells = columns_of(spec_index, out, encoded)
        room = np.zeros(count * 4096 + 64, np.uint16)
        for shift in (0, 1, 8, 16):
            begin = (-room.ctypes.data % 32) // 2 + shift
            target = room[begin : begin + count * 4096].reshape(count, 64, 64)
            target[:] = 0
            places = (target.ctypes.data + np.arange(count) * 8192).astype(np.uint64)
            assert decode_cells(specs, cells, places, strides, EXACT).size == 0
            assert np.array_equal(target, some[picked])
        assert decode_cells(specs, cells, places, strides, 3).size == 0
        large = target.copy()
        first = CellColumns(
            spec_index[:40],
            *(column[:40] for column in (cells.anchors, cells.residuals, cells.exacts)),
            np.ascontiguousarray(cells.lengths[:, :40]),
            cells.raw[:40],
        )
        target[:40] = 0
        assert decode_cells(specs, first, places[:40], strides[:40], 3).size == 0
        assert np.array_equal(target, large)

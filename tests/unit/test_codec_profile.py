"""Profiles, bounds of strips, checksums of cells, and the choice of a backend."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from kvd.codec import (
    PROFILE_DEFAULT,
    CellSpec,
    Grouping,
    backend,
    backends,
    cell_bytes_max,
    cell_specs,
    check_cells,
    checksum_cells,
    chunk_bytes_max,
    encode_cells,
    native,
    profile_by_id,
    strip_bytes_max,
)
from kvd.errors import ErrorKind, KvdError
from kvd.limits import PAGE_BYTES
from kvd.shape import BlockShape, KvGroup, TensorShape, cell_grid
from kvd.types import Dtype, Lane, Role
from tests.unit.test_codec_cells import BACKENDS, Coded, backend_in_use, random_bits

GRID = cell_grid(BlockShape.of_attention(3, 2, 64, Dtype.BF16), Lane())
SMALL = (3, 6, 64)


def mixed_grid():
    tensors = (
        TensorShape(Role.K, 2, 64, Dtype.BF16),
        TensorShape(Role.V, 2, 80, Dtype.FP16),
        TensorShape(Role.LATENT, 1, 576, Dtype.BF16),
        TensorShape(Role.STATE, 1, 8, Dtype.FP32),
    )
    return cell_grid(BlockShape((KvGroup(2, tensors),)), Lane())


def test_specs_of_a_grid() -> None:
    specs, spec_index = cell_specs(PROFILE_DEFAULT, GRID, 64, True)
    assert spec_index.tolist() == [0, 1] * 6 and len(specs) == 2
    assert specs[0] == CellSpec(Dtype.BF16, 64, 64, Grouping.PER_CHANNEL, 4, 4, 64)
    assert specs[1] == CellSpec(Dtype.BF16, 64, 64, Grouping.PER_TOKEN, 4, 4, 128)
    later, _ = cell_specs(PROFILE_DEFAULT, GRID, 64, False)
    assert [spec.sinks for spec in later] == [0, 0]
    specs, spec_index = cell_specs(PROFILE_DEFAULT, mixed_grid(), 64, False)
    assert spec_index.tolist() == [0, 1, 2, 3, 0, 1] * 2
    assert [spec.grouping for spec in specs] == [0, 1, 1, 1]


def test_profiles_by_id() -> None:
    assert profile_by_id(1) is PROFILE_DEFAULT
    with pytest.raises(KvdError) as caught:
        profile_by_id(77)
    assert caught.value.kind == ErrorKind.INCOMPATIBLE and "77" in caught.value.message


def strips_used(grid, tokens: int, first_chunk: bool, seed: int, noise: float) -> list[int]:
    """Code a chunk of random values and return the padded sizes of its strips."""
    rng = np.random.default_rng(seed)
    specs, spec_index = cell_specs(PROFILE_DEFAULT, grid, tokens, first_chunk)
    sources = []
    for index in spec_index.tolist():
        spec = specs[index]
        if rng.random() < noise or not spec.coded:
            size = (spec.tokens, spec.width * spec.dtype.size_bytes)
            sources.append(rng.integers(0, 256, size, np.uint8))
        else:
            sources.append(random_bits(rng, spec.dtype, (spec.tokens, spec.width)))
    table = 16 * grid.cell_count
    out = [np.zeros(room, np.uint8) for room in strip_bytes_max(grid, tokens, PROFILE_DEFAULT)]
    addresses = np.array([source.ctypes.data for source in sources], np.uint64)
    strides = np.array([specs[index].width for index in spec_index], np.int64)
    encoded = encode_cells(specs, spec_index, addresses, strides, out, (table,) * 3)
    return [-(-int(end) // PAGE_BYTES) * PAGE_BYTES for end in encoded.ends]


@pytest.mark.parametrize("name", ["mixed", "plain"])
@pytest.mark.parametrize("tokens", SMALL)
def test_bounds_hold(name: str, tokens: int) -> None:
    grid = mixed_grid() if name == "mixed" else GRID
    most = strip_bytes_max(grid, tokens, PROFILE_DEFAULT)
    joint = chunk_bytes_max(grid, tokens, PROFILE_DEFAULT)
    assert joint % PAGE_BYTES == 0 and joint <= sum(most)
    for first_chunk in (False, True):
        for seed, noise in enumerate((0.0, 0.3, 1.0)):
            used = strips_used(grid, tokens, first_chunk, seed, noise)
            assert all(u <= m for u, m in zip(used, most, strict=True))
            assert sum(used) <= joint


def test_joint_bound_is_about_raw() -> None:
    grid = cell_grid(BlockShape.of_attention(30, 3, 64, Dtype.BF16), Lane())
    raw = grid.bytes_per_token() * 64
    assert raw < chunk_bytes_max(grid, 64, PROFILE_DEFAULT) < 1.02 * raw
    assert sum(strip_bytes_max(grid, 64, PROFILE_DEFAULT)) > 1.4 * raw


@pytest.mark.parametrize("grouping", Grouping)
def test_a_cell_is_never_larger_than_raw(grouping: Grouping) -> None:
    rng = np.random.default_rng(8)
    for tokens, width in ((1, 1), (2, 3), (64, 64), (33, 16)):
        spec = CellSpec(Dtype.BF16, tokens, width, grouping)
        cells = [
            (rng.integers(0, 0x7F80, (tokens, width)) >> int(rng.integers(0, 12))).astype(np.uint16)
            for _ in range(20)
        ]
        coded = Coded([spec] * 20, cells)
        sizes = coded.encoded.lengths.sum(axis=0)
        assert (sizes <= spec.raw_bytes).all()
        assert (coded.encoded.raw == (sizes == spec.raw_bytes)).all()
        assert (coded.encoded.lengths.max(axis=1) <= cell_bytes_max(spec)).all()


@pytest.mark.parametrize("name", BACKENDS)
def test_checksums(name: str) -> None:
    rng = np.random.default_rng(9)
    data = rng.integers(0, 256, 20_000, np.uint8)
    lengths = np.array([0, 1, 7, 16, 17, 128, 129, 240, 241, 1024, 1025, 5000], np.uint32)
    offsets = rng.integers(0, 15_000, len(lengths)).astype(np.uint32)
    expected = np.array(
        [
            xxhash.xxh3_64_intdigest(data[o : o + n].tobytes())
            for o, n in zip(offsets.tolist(), lengths.tolist(), strict=True)
        ],
        np.uint64,
    )
    with backend_in_use(name):
        assert np.array_equal(checksum_cells(data, offsets, lengths), expected)
        assert np.array_equal(checksum_cells(bytes(data), offsets, lengths), expected)
        places = offsets.astype(np.uint64) + np.uint64(data.ctypes.data)
        assert np.array_equal(checksum_cells(0, places, lengths), expected)
        assert check_cells(data, offsets, lengths, expected).size == 0
        wrong = expected.copy()
        wrong[5] ^= np.uint64(1)
        assert check_cells(data, offsets, lengths, wrong).tolist() == [5]
        outside = np.array([0, 19_999, 20_001, 2**64 - 4], np.uint64)
        sizes = np.array([20_000, 2, 0, 8], np.uint32)
        sums = np.array([xxhash.xxh3_64_intdigest(data.tobytes()), 0, 0, 0], np.uint64)
        assert check_cells(data, outside, sizes, sums).tolist() == [1, 2, 3]


def test_a_missing_library_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend()
    before = list(backends._in_use)
    missing = native.Loaded(None, "kvd_kernels.so does not exist")
    monkeypatch.setattr(native, "load", lambda: missing)
    backends._in_use.clear()
    try:
        assert backends.available() == ("reference",)
        with pytest.warns(RuntimeWarning, match="kvd_kernels.so does not exist"):
            assert backend() == "reference"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert backend() == "reference"
    finally:
        backends._in_use[:] = before


def test_calls_that_do_not_fit_are_bugs() -> None:
    rng = np.random.default_rng(10)
    cell = random_bits(rng, Dtype.BF16, (64, 64))
    spec = CellSpec(Dtype.BF16, 64, 64, Grouping.PER_TOKEN)
    arguments = (np.zeros(1, np.uint8), np.array([cell.ctypes.data], np.uint64))
    out = [np.zeros(8192, np.uint8) for _ in range(3)]
    narrow = np.array([63], np.int64)
    with pytest.raises(AssertionError):
        encode_cells([spec], *arguments, narrow, out, (0, 0, 0))
    stride = np.array([64], np.int64)
    with pytest.raises(AssertionError):
        encode_cells([spec], *arguments, stride, [out[0][:-8], *out[1:]], (0, 0, 0))
    with pytest.raises(AssertionError):
        encode_cells([spec], *arguments, stride, out, (4, 0, 0))
    with pytest.raises(AssertionError):
        replace(spec, sinks=5)

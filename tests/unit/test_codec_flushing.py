"""Threads that take subnormals for zero, as machine learning code likes to, make the same cells."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from kvd.codec import CellSpec, Grouping
from kvd.codec.numbers import single
from kvd.types import Dtype
from tests.unit.test_codec_cells import CODED, assert_round_trip, named_cells, to_bits

SHAPE = (64, 32)


@contextmanager
def flushing() -> Iterator[ThreadPoolExecutor]:
    """Yield one thread that flushes subnormals, or skip where none can."""
    torch = pytest.importorskip("torch")
    with ThreadPoolExecutor(1) as thread:
        if not thread.submit(torch.set_flush_denormal, True).result():
            pytest.skip("this machine cannot flush")
        assert not thread.submit(smallest_doubled).result().any()
        yield thread
    assert smallest_doubled().all()


def smallest_doubled() -> np.ndarray:
    return np.ones(4, np.uint32).view(np.float32) * np.float32(2)


def tiny_cells() -> list[np.ndarray]:
    """BF16 cells around the smallest normal value, with zeros, subnormals and outliers."""
    rng = np.random.default_rng(1)
    cells = list(named_cells(Dtype.BF16, SHAPE).values())
    for magnitude in np.logspace(-41, -33, 12):
        value = rng.standard_normal(SHAPE) * magnitude * np.exp(rng.standard_normal(SHAPE[1]))
        value[rng.random(SHAPE) < 0.2] = 0.0
        cells.append(to_bits(Dtype.BF16, value))
    for most in (2, 5, 0x20, 0x7F, 0x81, 0x100, 0x400):
        signs = rng.integers(0, 2, SHAPE) << 15
        cells.append((rng.integers(0, most + 1, SHAPE) | signs).astype(np.uint16))
    return cells


def forms() -> Iterator[CellSpec]:
    for dtype in CODED:
        for grouping in Grouping:
            yield CellSpec(dtype, *SHAPE, grouping, 2)
            yield CellSpec(dtype, *SHAPE, grouping, 0, 7, 16)


def strips(spec: CellSpec, cells: list[np.ndarray]) -> tuple[bytes, ...]:
    coded = assert_round_trip([spec] * len(cells), cells)
    return tuple(coded.strip(c) for c in range(3))


@pytest.mark.parametrize("spec", list(forms()), ids=str)
def test_cells_are_coded_and_read_alike(spec: CellSpec) -> None:
    if spec.dtype == Dtype.BF16:
        cells = tiny_cells()
    else:
        cells = list(named_cells(spec.dtype, SHAPE).values())
    whole = strips(spec, cells)
    with flushing() as thread:
        assert thread.submit(strips, spec, cells).result() == whole


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_an_operation_in_f64_is_the_one_of_fp32(name: str) -> None:
    """Over all exponents, close ones, and what becomes subnormal, a tie or too large."""
    operate, rng = getattr(np, name), np.random.default_rng(2)
    sizes = rng.integers(0, 0x7F800000, (3, 1 << 17))
    sizes[0, : 1 << 16] >>= rng.integers(0, 23, 1 << 16)  # Subnormal, or nearly so.
    sizes[1] = np.where(rng.random(1 << 17) < 0.5, sizes[0] ^ rng.integers(0, 1 << 26), sizes[1])
    sizes[1] = np.where(sizes[1] < 0x7F800000, sizes[1], 0x3F800000)
    sizes[2] &= 0x7F8F0000  # Few bits.
    patterns = (sizes | rng.integers(0, 2, sizes.shape) << 31).astype(np.uint32)
    for first, second in ((0, 1), (0, 2), (2, 1), (2, 0)):
        a, b = patterns[first].view(np.float32), patterns[second].view(np.float32)
        with np.errstate(all="ignore"):
            expected = operate(a, b)
            wide = operate(a.astype(np.float64), b.astype(np.float64))
        number = ~np.isnan(expected)
        assert number.mean() > 0.9 and np.array_equal(number, ~np.isnan(wide))
        wide = wide[number]
        made = single(wide)
        assert np.array_equal(made.astype(np.float32).view("u4"), expected[number].view("u4"))
        with flushing() as thread:
            again = thread.submit(single, wide).result()
        assert np.array_equal(again.view(np.uint64), made.view(np.uint64))

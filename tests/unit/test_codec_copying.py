"""Strips copied and summed in one pass, against a plain copy and the plain checksum."""

import numpy as np
import pytest

from kvd.checksum import checksum
from kvd.codec import available, backend, use_backend
from kvd.codec import copying as copying_module
from kvd.codec.copying import StripCopies, copy_strips
from kvd.limits import PAGE_BYTES

SIZES = (PAGE_BYTES, 3 * PAGE_BYTES, 40 * PAGE_BYTES)
CELLS = 7


def _paged(size: int) -> np.ndarray:
    """Return u8[size] that begins on a page."""
    memory = np.zeros(size + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    return memory[begin : begin + size]


def _cells(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and lengths of cells in ascending order, some empty, some at odd ends."""
    edges = np.sort(rng.integers(0, size // 8, 2 * CELLS)) * 8
    begins, ends = edges[0::2], edges[1::2]
    lengths = np.maximum(ends - begins - rng.integers(0, 9, CELLS), 0)
    return begins.astype(np.uint32), lengths.astype(np.uint32)


@pytest.fixture(params=available())
def chosen_backend(request):
    before = backend()
    use_backend(request.param)
    yield request.param
    use_backend(before)


def test_copies_and_sums_as_plain_ones_do(chosen_backend):
    rng = np.random.default_rng(11)
    sources = [rng.integers(0, 256, size, np.uint8) for size in SIZES]
    targets = [_paged(size) for size in SIZES]
    columns = [_cells(size, rng) for size in SIZES]
    copies = StripCopies(
        np.array([s.ctypes.data for s in sources], np.uint64),
        np.array([t.ctypes.data for t in targets], np.uint64),
        np.array(SIZES, np.uint64),
        np.stack([offsets for offsets, _ in columns]),
        np.stack([lengths for _, lengths in columns]),
    )
    sums = copy_strips(copies)
    for source, target, (offsets, lengths), row in zip(
        sources, targets, columns, sums, strict=True
    ):
        assert np.array_equal(source, target)
        strings = [
            source[at : at + n].tobytes()
            for at, n in zip(offsets.tolist(), lengths.tolist(), strict=True)
        ]
        assert row.tolist() == [checksum(string) for string in strings]


def test_no_strips_are_nothing(chosen_backend):
    none, cells = np.zeros(0, np.uint64), np.zeros((0, CELLS), np.uint32)
    assert copy_strips(StripCopies(none, none, none, cells, cells)).shape == (0, CELLS)


def test_a_cell_outside_of_its_strip_is_refused():
    one, size = np.zeros(1, np.uint64), np.array([PAGE_BYTES], np.uint64)
    offsets, lengths = np.full((1, 1), PAGE_BYTES, np.uint32), np.ones((1, 1), np.uint32)
    with pytest.raises(AssertionError, match="outside"):
        StripCopies(one, one, size, offsets, lengths)


def test_the_kernel_is_there_when_the_library_is():
    assert (copying_module._kernel() is not None) == ("native" in available())

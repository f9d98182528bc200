"""Strips copied and summed in one pass, against a plain copy and the plain checksum."""

import numpy as np
import pytest

from kvd.checksum import checksum
from kvd.codec import available, backend, use_backend
from kvd.codec import copying as copying_module
from kvd.codec.copying import copy_strips
from kvd.format.strip import pack_table, parse_table
from kvd.limits import PAGE_BYTES
from kvd.table import TABLE_ENTRY, table_bytes

SIZES = (PAGE_BYTES, 3 * PAGE_BYTES, 40 * PAGE_BYTES)


def _paged(size: int) -> np.ndarray:
    """Return u8[size] that begins on a page."""
    memory = np.zeros(size + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    return memory[begin : begin + size]


def _strip(size: int, cells: int, rng: np.random.Generator) -> np.ndarray:
    """Return a strip of any bytes and cells, some empty, some raw; its table lacks the sums."""
    strip = rng.integers(0, 256, size, np.uint8)
    head = table_bytes(cells)
    edges = head + np.sort(rng.integers(0, (size - head) // 8, 2 * cells)) * 8
    begins, ends = edges[0::2], edges[1::2]
    lengths = np.maximum(ends - begins - rng.integers(0, 9, cells), 0)
    raw = rng.integers(0, 2, cells).astype(bool)
    table = pack_table(
        begins.astype(np.uint32), lengths.astype(np.uint32), raw, np.zeros(cells, np.uint64)
    )
    strip[:head] = table.view(np.uint8)
    return strip


@pytest.fixture(params=available())
def chosen_backend(request):
    before = backend()
    use_backend(request.param)
    yield request.param
    use_backend(before)


@pytest.mark.parametrize("cells", [1, 4, 7, 180])
def test_copies_and_sums_as_plain_ones_do(chosen_backend, cells):
    rng = np.random.default_rng(cells)
    strips = [_strip(size, cells, rng) for size in SIZES]
    before = [strip.copy() for strip in strips]
    targets = [_paged(size) for size in SIZES]
    copy_strips(
        np.array([s.ctypes.data for s in strips], np.uint64),
        np.array([t.ctypes.data for t in targets], np.uint64),
        np.array(SIZES, np.uint64),
        cells,
    )
    for strip, whole, target in zip(strips, before, targets, strict=True):
        assert np.array_equal(strip, target)
        assert np.array_equal(strip[table_bytes(cells) :], whole[table_bytes(cells) :])
        table = parse_table(target, cells, len(target))
        ours = whole[: table_bytes(cells)].view(TABLE_ENTRY)
        assert table is not None
        assert np.array_equal(table["offset"], ours["offset"])
        assert np.array_equal(table["length"], ours["length"])
        mask = (1 << 28) - 1
        sums = [
            checksum(whole[at : at + (length & mask)].tobytes())
            for at, length in zip(ours["offset"].tolist(), ours["length"].tolist(), strict=True)
        ]
        assert table["checksum"].tolist() == sums


def test_no_strips_are_nothing(chosen_backend):
    none = np.zeros(0, np.uint64)
    copy_strips(none, none, none, 7)


@pytest.mark.parametrize("size", [PAGE_BYTES // 2, 0])
def test_what_is_no_whole_page_is_refused(size):
    one = np.zeros(1, np.uint64)
    with pytest.raises(AssertionError):
        copy_strips(one, one, np.array([size], np.uint64), 7)


def test_the_kernel_is_there_when_the_library_is():
    assert (copying_module._kernel() is not None) == ("native" in available())

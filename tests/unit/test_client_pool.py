"""Buffers of the SDK that are used again: how many are kept, and which."""

import pytest

from kvd.client.mapping import Pool
from kvd.limits import MIB

FITS_MIB = 16  # Beyond twice what is wanted, a buffer is too large for it.


def kept_bytes(pool: Pool) -> int:
    return sum(buffer.size for buffer in pool._kept)


def test_a_buffer_is_used_again():
    pool = Pool()
    first = pool.take(3 * MIB)
    pool.give(first)
    assert pool.take(2 * MIB) is first
    assert pool.take(2 * MIB) is not first


def test_a_buffer_given_back_twice_is_refused_and_kept_once():
    """Kept twice, two would have it at a time, each writing over the other's bytes."""
    pool = Pool()
    first = pool.take(MIB)
    pool.give(first)
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give(first)
    assert pool.take(MIB) is first
    assert pool.take(MIB) is not first


def test_larger_and_larger_requests_leave_no_buffers_behind():
    pool = Pool()
    for size in range(1, 60):
        pool.give(pool.take(size * MIB))
    assert kept_bytes(pool) == 59 * MIB


def test_as_many_are_kept_as_are_out_at_once():
    pool = Pool()
    for size in (1, 9, 4, 17, 12, 17):
        for buffer in [pool.take(size * MIB) for _ in range(3)]:
            pool.give(buffer)
    assert kept_bytes(pool) == 3 * 17 * MIB


def test_a_small_buffer_stays_beside_one_that_is_too_large_for_its_use():
    pool = Pool()
    small = pool.take(MIB)
    pool.give(small)
    large = pool.take((2 + FITS_MIB + 1) * MIB)
    pool.give(large)
    assert pool.take(MIB) is small


def test_what_is_kept_is_bounded():
    pool = Pool(kept_bytes_max=5 * MIB)
    for buffer in [pool.take(2 * MIB) for _ in range(4)]:
        pool.give(buffer)
    assert kept_bytes(pool) == 4 * MIB

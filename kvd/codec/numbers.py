"""Bit patterns, ordinals and fp32 values of the coded dtypes, as numpy arrays; no cells here.

An fp32 value is held in an f64, where fp32's subnormals are normal: so a thread that was told to
take subnormals for zero loses none of them. numpy has no means to tell it otherwise.
"""

import numpy as np

from kvd.types import Dtype

_INFINITY = {Dtype.BF16: 0x7F80, Dtype.FP16: 0x7C00}
_NORMAL_MIN = 2.0**-126  # Of fp32, and of BF16.
_LAST_PLACE, _LAST_BF16_PLACE = 2.0**-149, 2.0**-133  # Of subnormals.
_ROUNDING = 2.0**-97  # Where the last place of f64 is fp32's.


def ordinals(bits: np.ndarray) -> np.ndarray:
    """Return i32 ordinals of u16 patterns: the order of the values, -0 below +0."""
    assert bits.dtype == np.uint16
    signed = bits.astype(np.int32)
    return np.where(signed < 0x8000, signed, -1 - (signed & 0x7FFF))


def patterns(ordinal: np.ndarray) -> np.ndarray:
    """Return u16 patterns of ordinals, the inverse of `ordinals`."""
    assert ordinal.dtype == np.int32
    return np.where(ordinal >= 0, ordinal, 0x8000 | (-1 - ordinal)).astype(np.uint16)


def values(dtype: Dtype, bits: np.ndarray) -> np.ndarray:
    """Return the fp32 values of u16 patterns, exactly, as f64."""
    assert bits.dtype == np.uint16
    if dtype == Dtype.FP16:
        return bits.view(np.float16).astype(np.float64)
    size = bits & 0x7FFF
    normal = (size.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    value = np.where(size < 0x80, size.astype(np.float64) * _LAST_BF16_PLACE, normal)
    return np.where(bits < 0x8000, value, -value)


def _subnormal(value: np.ndarray) -> np.ndarray:
    """Return whether fp32 has no normal value of this size."""
    assert value.dtype == np.float64
    return (np.abs(value) < _NORMAL_MIN) & (value != 0)


def single(value: np.ndarray) -> np.ndarray:
    """Round f64 values to fp32, to nearest even; what is too large becomes infinite.

    A sum, difference, product or quotient of two fp32 values, taken in f64, becomes what fp32 makes
    of it: f64 has more than twice the bits, so that the first rounding does not show.
    """
    small = _subnormal(value)
    with np.errstate(over="ignore", under="ignore"):
        normal = value.astype(np.float32).astype(np.float64)
    if not small.any():
        return normal
    rounded = (np.where(small, np.abs(value), 0) + _ROUNDING) - _ROUNDING
    return np.where(small, np.copysign(rounded, value), normal)


def _single_bits(value: np.ndarray) -> np.ndarray:
    """Return the u32 patterns of fp32 values."""
    small = _subnormal(value)
    zero = np.copysign(0.0, value)
    bits = np.where(small, zero, value).astype(np.float32).view(np.uint32)
    places = np.where(small, np.abs(value), 0) / _LAST_PLACE
    return bits | places.astype(np.uint32)


def finite(dtype: Dtype, bits: np.ndarray) -> np.ndarray:
    assert bits.dtype == np.uint16
    infinity = _INFINITY[dtype]
    return (bits & infinity) != infinity


def nearest(dtype: Dtype, value: np.ndarray) -> np.ndarray:
    """Return the u16 patterns of finite fp32 values rounded to nearest even."""
    if dtype == Dtype.FP16:
        return value.astype(np.float16).view(np.uint16)
    bits = _single_bits(value)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def ceil_ordinals(dtype: Dtype, value: np.ndarray) -> np.ndarray:
    """Return the smallest ordinals at or above fp32 values that are not NaN."""
    if dtype == Dtype.FP16:
        with np.errstate(over="ignore"):
            rounded = value.astype(np.float16)
        below = rounded.astype(np.float64) < value
        return ordinals(rounded.view(np.uint16)) + below
    bits = _single_bits(value)
    truncated = ordinals((bits >> 16).astype(np.uint16))
    inexact_positive = ((bits & 0xFFFF) != 0) & ((bits >> 31) == 0)
    return truncated + inexact_positive


def bit_lengths(number: np.ndarray) -> np.ndarray:
    """Return how many bits each number of 0..65535 needs, 0 for 0."""
    assert number.size == 0 or (number.min() >= 0 and number.max() <= 0xFFFF)
    exponent = np.frexp(number.astype(np.float64))[1]
    return exponent.astype(np.int64)

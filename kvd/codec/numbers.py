"""Bit patterns, ordinals and fp32 values of the coded dtypes, as numpy arrays; no cells here."""

import numpy as np

from kvd.types import Dtype

_INFINITY = {Dtype.BF16: 0x7F80, Dtype.FP16: 0x7C00}


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
    """Return the fp32 values of u16 patterns, exactly."""
    assert bits.dtype == np.uint16
    if dtype == Dtype.FP16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def finite(dtype: Dtype, bits: np.ndarray) -> np.ndarray:
    assert bits.dtype == np.uint16
    infinity = _INFINITY[dtype]
    return (bits & infinity) != infinity


def nearest(dtype: Dtype, value: np.ndarray) -> np.ndarray:
    """Return the u16 patterns of finite fp32 values rounded to nearest even."""
    assert value.dtype == np.float32
    if dtype == Dtype.FP16:
        return value.astype(np.float16).view(np.uint16)
    bits = value.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def ceil_ordinals(dtype: Dtype, value: np.ndarray) -> np.ndarray:
    """Return the smallest ordinals at or above fp32 values that are not NaN."""
    assert value.dtype == np.float32
    if dtype == Dtype.FP16:
        with np.errstate(over="ignore"):
            rounded = value.astype(np.float16)
        below = rounded.astype(np.float32) < value
        return ordinals(rounded.view(np.uint16)) + below
    bits = value.view(np.uint32)
    truncated = ordinals((bits >> 16).astype(np.uint16))
    inexact_positive = ((bits & 0xFFFF) != 0) & ((bits >> 31) == 0)
    return truncated + inexact_positive


def bit_lengths(number: np.ndarray) -> np.ndarray:
    """Return how many bits each number of 0..65535 needs, 0 for 0."""
    assert number.size == 0 or (number.min() >= 0 and number.max() <= 0xFFFF)
    exponent = np.frexp(number.astype(np.float64))[1]
    return exponent.astype(np.int64)

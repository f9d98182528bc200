"""What a strip is worth. Numbers in, numbers out; no table of the core is known here.

Heat combines recency and frequency in one number (LRFU: Lee et al., IEEE ToC 50(12), 2001): the
sum over accesses of 2 ** (t / half life), kept as its logarithm. So it never needs ageing: two
heats compare the same at any later time.
"""

import numpy as np

from kvd.clock import NS_PER_S
from kvd.types import CLASS_COUNT

HALF_LIFE_NS = 600 * NS_PER_S  # Arbitrary until replays of real traces say better.

# What a class adds to a reader that has the classes before it. The anchor starts decoding, the
# residual makes drafts nearly always right, exact is needed once, at verification. Arbitrary
# until measured acceptance calibrates them; only the order matters for correctness of use.
CLASS_GAIN = np.array([1.0, 0.5, 0.25])
assert len(CLASS_GAIN) == CLASS_COUNT


def heat_at(now_ns: int) -> float:
    """Return the heat of one access now, log2."""
    return now_ns / HALF_LIFE_NS


def heat_after(heat: float, now_ns: int) -> float:
    """Return the heat with one more access now."""
    return float(np.logaddexp2(heat, heat_at(now_ns)))


def heats_after(heats: np.ndarray, now_ns: int) -> np.ndarray:
    """Return a column of heats with one more access now, each."""
    return np.logaddexp2(heats, heat_at(now_ns))


def log_density(heats: np.ndarray, classes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return log2 of (value x gain / bytes) of strips; three columns of one length."""
    assert heats.shape == classes.shape == sizes.shape and (sizes > 0).all()
    return heats + np.log2(CLASS_GAIN)[classes] - np.log2(sizes)

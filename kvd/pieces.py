"""The size of the pieces that a strip is read from ssd in: one rule for the core and the SDK."""

import numpy as np

from kvd.limits import PAGE_BYTES, READ_PIECE_BYTES_MIN, READ_PIECES_MAX


def read_piece_bytes(strip_bytes: int | np.ndarray) -> np.ndarray:
    """Return i64: the size of the pieces a strip is read in; the last may be shorter.

    `strip_bytes`: whole pages of one strip, or of many.
    """
    least = -(-np.asarray(strip_bytes, np.int64) // READ_PIECES_MAX)
    return np.maximum(READ_PIECE_BYTES_MIN, -(-least // PAGE_BYTES) * PAGE_BYTES)

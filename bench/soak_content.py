"""What the soak stores: values that follow from keyspace and chain digest, so all can be verified.

No record is kept of what was put; whoever reads a chunk makes its values again and compares.
"""

from collections.abc import Sequence

import numpy as np

from kvd.client import BlockShape, Dtype, Keyspace
from kvd.limits import DIGEST_BYTES

# So large that segments are full before the catalog is, of chunks that only anchors are left of.
LAYERS, HEADS, WIDTH, CHUNK_TOKENS = 4, 4, 64, 64
TENSORS = 2
SHAPE = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
ALL_LAYERS = (0, LAYERS)
ANCHOR_PLANES, CODE_PLANES = 4, 8
_VALUES = LAYERS * TENSORS * HEADS * CHUNK_TOKENS * WIDTH
# Values are between 0.5 and 2 of either sign: sign, the last bit of the exponent and the mantissa
# are free. So no group spans more than 4, in 15 steps of 4 planes or 240 of 8; and what is read
# lies within half a step and half a last place of a number below 2.
_FREE_BITS, _FIXED_BITS = 0x80FF, 0x3F00
_LAST_PLACE = 2**-7
_BOUND = {planes: 4 / (15 << (planes - 4)) / 2 + _LAST_PLACE / 2 for planes in (4, 8)}

Views = list[list[np.ndarray]]


def keyspace_of(trace: int) -> Keyspace:
    """Return the keyspace of a trace's requests."""
    return Keyspace("soak", f"trace-{trace}", SHAPE, chunk_tokens=CHUNK_TOKENS)


def tokens_of(blocks: np.ndarray) -> np.ndarray:
    """Return token ids u32[n * CHUNK_TOKENS]: a block is one chunk here."""
    return (blocks[:, None] * np.uint32(CHUNK_TOKENS) + np.arange(CHUNK_TOKENS)).reshape(-1)


def blank(count: int) -> np.ndarray:
    """Return room for the values of `count` chunks: u16[layers, tensors, heads, tokens, width]."""
    return np.zeros((LAYERS, TENSORS, HEADS, count * CHUNK_TOKENS, WIDTH), np.uint16)


def views_of(values: np.ndarray) -> Views:
    return [list(layer) for layer in values]


def values_of(trace: int, chain: bytes, first: int = 0) -> np.ndarray:
    """Return the values of chunks [first, end of chain), as `blank` has room for them."""
    digests = [chain[at : at + DIGEST_BYTES] for at in range(0, len(chain), DIGEST_BYTES)][first:]
    values = blank(len(digests))
    for number, digest in enumerate(digests):
        begin = number * CHUNK_TOKENS
        values[:, :, :, begin : begin + CHUNK_TOKENS] = _values(trace, digest)
    return values


def wrong_chunks(ours: np.ndarray, theirs: np.ndarray, planes: int | None) -> Sequence[int]:
    """Return the chunks in which values read differ from those put, or with some planes may not.

    `planes` None is for values that were read exactly.
    """
    if planes is None:
        differs = ours != theirs
    else:
        differs = ~(np.abs(_real(ours) - _real(theirs)) <= _BOUND[planes])  # Of NaN too.
    by_token = differs.any(axis=(0, 1, 2, 4))
    return np.flatnonzero(by_token.reshape(-1, CHUNK_TOKENS).any(axis=1)).tolist()


def _values(trace: int, digest: bytes) -> np.ndarray:
    seed = [trace, *np.frombuffer(digest, "<u4").tolist()]
    drawn = np.random.Generator(np.random.SFC64(seed)).bytes(2 * _VALUES)
    bits = np.frombuffer(drawn, "<u2") & np.uint16(_FREE_BITS) | np.uint16(_FIXED_BITS)
    return bits.reshape(LAYERS, TENSORS, HEADS, CHUNK_TOKENS, WIDTH)


def _real(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)

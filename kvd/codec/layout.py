"""The offset code's cells, byte for byte: what one (layer, head, tensor) of a chunk becomes.

Owns the form of a cell and its sizes; must not touch files, strip tables or checksums. Numbers are
little endian; "value" is the real number of a bit pattern; fp32 operations are done in the order
written, rounded to nearest even, never fused, subnormals never flushed.

Cell. `tokens` x `width` values of one dtype. Element e = token * width + channel. A cell has three
byte strings (anchor, residual, exact), and a raw flag and three lengths kept outside of them.

Raw. The flag is set: the anchor bytes are the elements' own bits in element order (1, 2 or 4 bytes
each), residual and exact are empty. All cells of dtypes other than BF16 and FP16 are raw, and so is
a cell of them when an element that is not a sink is NaN or infinite, when a group has lo = -0 and
hi = +0, when a group's fp32 `hi - lo` is not finite, or when the three coded lengths together are
not smaller than the raw length (so a cell of no elements is raw, with three empty strings).

Ordinals. A 16-bit pattern b stands at ordinal b if b < 0x8000, else at -1 - (b & 0x7fff). So -0 is
ordinal -1 and +0 is 0: the order is that of the values with -0 below +0.

Sinks. The first `min(sinks, tokens)` tokens. They are left out of all statistics, their plane bits
are 0 (a decoder ignores them) and they have no rank; their values may be anything, NaN included.

Groups. PER_CHANNEL: `group` consecutive tokens of one channel, the last one shorter when `group`
does not divide `tokens`; index = (token // group) * width + channel. PER_TOKEN: `group` consecutive
channels of one token, the last one shorter; index = token * ceil(width / group) + channel // group.
A group's lo and hi are its elements (sinks left out) of smallest and largest ordinal; a group with
sinks only has lo = hi = +0. A group with lo = hi is constant.

Code, with A = anchor_planes: S = (hi - lo) / (2**A - 1); h = S / 2**(8 - A); offset = 2**(7 - A)
(fp32; 0.5 at A = 8). edge(c) = lo + (c - offset) * h for c = 0..256. ceil(x) is the smallest
ordinal at or above x, where a positive x beyond the largest finite value gives the ordinal of
infinity, x = +0 gives 0, and a negative x above the smallest subnormal or -0 gives -1.
T[c] = min(max(ceil(edge(c)), ordinal(lo)), ordinal(hi) + 1). An element of ordinal o has the one
code c in 0..255 with T[c] <= o < T[c + 1], the rank o - T[c], and the rank's width in bits
bit_length(T[c + 1] - T[c] - 1). In a constant group the code is 0 and the width 0.
A reader takes the bin of any c as first(c) = max(ceil(edge(c)), ordinal(lo)) and
behind(c) = min(max(ceil(edge(c + 1)), ordinal(lo) + 1), ordinal(hi) + 1): the same where
T[c] < T[c + 1]; besides, codes below the first, and any in a constant group not of -0, mean lo.

Plane p_i, i = 7..0: bit i of all codes. Element e is bit e mod 8 (least significant first) of byte
e div 8. A plane has P = ceil(tokens * width / 8) bytes, unused bits 0; the next follows at once.

Anchor bytes: lo, hi (2 bytes each) of all groups by index; then the sinks' own bits in element
order; then p7 .. p(8 - A).
Residual bytes: p(7 - A) .. p0; empty at A = 8.
Exact bytes: elements are cut into B = ceil(tokens * width / 1024) blocks of 1,024 in element order
(sinks count), the last one shorter. First B u16: per block, the sum of its rank widths in bits (at
most 16,384). Then per block ceil(bits / 8) bytes: its ranks in element order, each in its width,
least significant bit first, the first in the lowest bits of the first byte; unused bits 0.

Reading k planes, k = 1..8, m = 8 - k: t = (c >> m << m) + 2**m / 2, y = lo + (t - offset) * h in
fp32; y < lo becomes lo and y > hi becomes hi (comparisons of values, so a -0 may read as +0); then
y is rounded to nearest even into the dtype. A sink and a raw cell are their own bits.
Reading exactly: ordinal first(c) + rank, the rank's width being bit_length(behind - first - 1).

Malformed, whatever else the bytes say: a length of a string that is read other than the one that
follows from spec and flag (for exact: from its block lengths); a coded cell of a raw dtype; a group
whose lo or hi is not finite, whose ordinals are out of order, that has lo = -0 and hi = +0, or
whose `hi - lo` is not finite; and, reading exactly, an ordinal not below behind(c) (so every
element with behind <= first) or a block whose widths do not sum to its stated length. Strings that
the asked precision does not need are not looked at.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from kvd.limits import CELL_ALIGN_BYTES
from kvd.types import Dtype

EXACT = 16  # As a number of planes: all that there is.
PLANES = 8
EXACT_BLOCK = 1024
SINKS_MAX = 4
CODED_DTYPES = frozenset((Dtype.BF16, Dtype.FP16))
_CELL_BYTES_LIMIT = 1 << 31


class Grouping(IntEnum):
    """Which values share one lo and hi."""

    PER_CHANNEL = 0
    PER_TOKEN = 1


GROUP_DEFAULT = {Grouping.PER_CHANNEL: 64, Grouping.PER_TOKEN: 128}


@dataclass(frozen=True, slots=True)
class CellSpec:
    """What a cell holds and how it is coded; `group` 0 means the default of the grouping."""

    dtype: Dtype
    tokens: int
    width: int
    grouping: Grouping
    sinks: int = 0
    anchor_planes: int = 4
    group: int = 0

    def __post_init__(self) -> None:
        if self.group == 0:
            object.__setattr__(self, "group", GROUP_DEFAULT[self.grouping])
        assert self.tokens >= 0 and self.width >= 1 and self.group >= 1, self
        assert 0 <= self.sinks <= SINKS_MAX, self
        assert 1 <= self.anchor_planes <= PLANES, self
        assert self.raw_bytes < _CELL_BYTES_LIMIT, self

    @property
    def coded(self) -> bool:
        """Whether the dtype has a code; cells of the others are always raw."""
        return self.dtype in CODED_DTYPES

    @property
    def raw_bytes(self) -> int:
        return self.tokens * self.width * self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class CellGeometry:
    """Sizes of a coded cell that follow from its spec, in bytes unless named otherwise."""

    elements: int
    groups: int
    sinks: int
    blocks: int
    plane: int
    anchor: int
    residual: int


@lru_cache(maxsize=1024)
def cell_geometry(spec: CellSpec) -> CellGeometry:
    elements = spec.tokens * spec.width
    if spec.grouping == Grouping.PER_CHANNEL:
        groups = -(-spec.tokens // spec.group) * spec.width
    else:
        groups = spec.tokens * -(-spec.width // spec.group)
    sinks = min(spec.sinks, spec.tokens)
    plane = -(-elements // 8)
    anchor = 4 * groups + 2 * sinks * spec.width + spec.anchor_planes * plane
    residual = (PLANES - spec.anchor_planes) * plane
    blocks = -(-elements // EXACT_BLOCK)
    return CellGeometry(elements, groups, sinks, blocks, plane, anchor, residual)


@lru_cache(maxsize=1024)
def cell_bytes_max(spec: CellSpec) -> tuple[int, int, int]:
    """Return the largest anchor, residual and exact bytes, each on its own (never all together)."""
    if not spec.coded:
        return spec.raw_bytes, 0, 0
    geometry = cell_geometry(spec)
    exact = spec.raw_bytes - 1 - geometry.anchor - geometry.residual
    if exact < 2 * geometry.blocks:  # Coding can never pay: all such cells are raw.
        return spec.raw_bytes, 0, 0
    return max(spec.raw_bytes, geometry.anchor), geometry.residual, exact


def cell_aligned(size: int) -> int:
    """Return size rounded up to where the next cell may start."""
    return -(-size // CELL_ALIGN_BYTES) * CELL_ALIGN_BYTES


@lru_cache(maxsize=1024)
def cell_bytes_max_joint(spec: CellSpec) -> int:
    """Return the largest aligned sum of a cell's three strings: about its raw size."""
    raw = cell_aligned(spec.raw_bytes)
    _, residual, exact = cell_bytes_max(spec)
    if exact == 0:
        return raw
    coded = cell_aligned(cell_geometry(spec).anchor) + cell_aligned(residual) + cell_aligned(exact)
    return max(raw, coded)

"""All that is told of one model's size: by class and case, and what fits a tier."""

from dataclasses import dataclass

from kvd.codec.layout import CODED_DTYPES
from kvd.identity import Keyspace, validate_keyspace
from kvd.shape import CellGrid, cell_grid
from kvd.sizing.chunks import Strips, bound_of, coded_strips, exact_bits_of
from kvd.sizing.models import ModelShape
from kvd.sizing.tiers import dram_chunks, ssd_chunks
from kvd.types import CLASS_COUNT, Lane

CASES = ("least", "usual", "most")  # Of the exact class; then comes the bound.


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. Sizes 0: that tier is not; `sequence_tokens` 0: none are counted."""

    shape: ModelShape
    chunk_tokens: int
    slab_bytes: int
    dram_bytes: int = 0
    ssd_bytes: int = 0
    directories: int = 1
    sequence_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A chunk in the middle of a sequence. Of `bound`, the strips are never all so large at once.

    `first_strips`: of a sequence's first chunk, which keeps its sinks apart.
    """

    name: str
    exact_bits: float
    strips: Strips
    first_strips: Strips
    chunk_bytes: int

    @property
    def room(self) -> Strips:
        """Return what any chunk takes at most."""
        anchor, residual, exact = map(max, self.strips, self.first_strips)
        return anchor, residual, exact


@dataclass(frozen=True, slots=True)
class Fit:
    tier: str
    size_bytes: int
    case: str
    chunks: int
    tokens: int
    sequences: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    grid: CellGrid
    is_coded: bool
    cases: tuple[Case, ...]
    fits: tuple[Fit, ...]


def sizes_of(wish: Wish) -> Sizes:
    """Return all of it; raise INVALID for a shape or a budget that cannot be."""
    shape = wish.shape.block_shape()
    validate_keyspace(Keyspace("sized", "1", shape, chunk_tokens=wish.chunk_tokens))
    grid = cell_grid(shape, Lane())
    cases = tuple(
        _measured(grid, wish.chunk_tokens, name, bits)
        for name, bits in zip(CASES, exact_bits_of(wish.shape.dtype), strict=True)
    )
    bound = bound_of(grid, wish.chunk_tokens)
    cases += (Case("bound", 0, bound.strips, bound.strips, bound.chunk),)
    is_coded = wish.shape.dtype in CODED_DTYPES
    fits = [fit for case in cases[:CLASS_COUNT] for fit in _fits(wish, case)]
    return Sizes(grid, is_coded, cases, tuple(sorted(fits, key=lambda fit: fit.tier)))


def _measured(grid: CellGrid, tokens: int, name: str, bits: float) -> Case:
    strips = coded_strips(grid, tokens, bits)
    first = coded_strips(grid, tokens, bits, first_chunk=True)
    return Case(name, bits, strips, first, sum(strips))


def _fits(wish: Wish, case: Case) -> list[Fit]:
    fits = []
    if wish.dram_bytes:
        count = dram_chunks(wish.dram_bytes, wish.slab_bytes, case.room)
        fits.append(_fit(wish, "dram", wish.dram_bytes, case.name, count))
    if wish.ssd_bytes:
        count = ssd_chunks(wish.ssd_bytes, wish.directories, case.room)
        fits.append(_fit(wish, "ssd", wish.ssd_bytes, case.name, count))
    return fits


def _fit(wish: Wish, tier: str, size_bytes: int, case: str, chunks: int) -> Fit:
    sequences = None
    if wish.sequence_tokens:
        # A tail shorter than a chunk is not stored.
        sequences = chunks // max(wish.sequence_tokens // wish.chunk_tokens, 1)
    return Fit(tier, size_bytes, case, chunks, chunks * wish.chunk_tokens, sequences)

"""Sizes that `kvd-admin size` tells, against chunks really encoded, and what fits a tier."""

import numpy as np
import pytest

from kvd.client.arrays import source_views
from kvd.client.mapping import Pool
from kvd.client.strips import Encoder
from kvd.codec import PROFILE_DEFAULT
from kvd.errors import ErrorKind, KvdError
from kvd.limits import GIB, MIB, PAGE_BYTES
from kvd.shape import cell_grid
from kvd.sizing.chunks import bound_of, coded_strips, exact_bits_of, strips_of
from kvd.sizing.models import MODELS, ModelShape
from kvd.sizing.sizes import Wish, sizes_of
from kvd.sizing.tiers import dram_chunks, ssd_chunks
from kvd.table import LENGTH_MASK, RAW_FLAG, TABLE_ENTRY, table_bytes
from kvd.types import CLASS_COUNT, Dtype, Lane

TOKENS = 64
SHAPES = {
    "attention": ModelShape(3, 2, 64),
    "odd": ModelShape(2, 3, 40),
    "fp16": ModelShape(2, 2, 128, dtype=Dtype.FP16),
    "latent": ModelShape(4, 1, 576, latent=True),
}
NUMPY = {Dtype.BF16: np.uint16, Dtype.FP16: np.float16, Dtype.FP8_E4M3: np.uint8}


def real_like(rng, shape):
    """Return normal values whose channels differ in size and mean, as keys' do."""
    scale = np.exp(rng.normal(0, 0.7, shape[-1]))
    return rng.normal(0, 1, shape) * scale + rng.normal(0, 1, shape[-1])


def chance_bits(rng, shape):
    return rng.integers(0, 1 << 16, shape, np.uint16)


def constant(rng, shape):
    return np.full(shape, 1.5)


def as_dtype(values, dtype):
    if values.dtype == np.uint16:
        return values.view(np.float16) if dtype == Dtype.FP16 else values
    if dtype == Dtype.BF16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(NUMPY[dtype])


class Encoded:
    """Three chunks, the first of which begins its sequence."""

    def __init__(self, model, make, seed=7):
        self.grid = cell_grid(model.block_shape(), Lane())
        rng = np.random.default_rng(seed)
        tensors = [
            [as_dtype(make(rng, (t.heads, 192, t.width)), t.dtype) for t in self.grid.tensors]
            for _ in range(self.grid.layers)
        ]  # fmt: skip
        views, pool = source_views(self.grid, tensors), Pool()
        encoder = Encoder(self.grid, TOKENS, PROFILE_DEFAULT)
        self.prepared = encoder.encode(views, range(3), 0, 64 * MIB, pool)
        assert self.prepared.count == 3

    def sizes(self, chunk):
        return tuple(map(int, self.prepared.sizes[chunk]))

    def table(self, chunk, plane_class):
        """Return lengths of cells, and whether each is raw, from the strip's own table."""
        buffer = self.prepared.buffers[plane_class]
        begin = int(self.prepared.addresses[chunk, plane_class]) - buffer.address
        head = buffer.data[begin : begin + table_bytes(self.grid.cell_count)]
        lengths = head.view(TABLE_ENTRY)["length"]
        return (lengths & LENGTH_MASK).tolist(), (lengths & RAW_FLAG) != 0


# ---- chunks ----


@pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("make", [real_like, chance_bits, constant])
def test_pages_are_those_of_encoded_chunks_and_the_bound_holds(model, make):
    encoded = Encoded(model, make)
    bound = bound_of(encoded.grid, TOKENS)
    for chunk in range(3):
        cells = [encoded.table(chunk, each)[0] for each in range(CLASS_COUNT)]
        sizes = encoded.sizes(chunk)
        assert strips_of(encoded.grid, cells) == sizes
        assert all(size <= most for size, most in zip(sizes, bound.strips, strict=True))
        assert sum(sizes) <= bound.chunk <= sum(bound.strips)


@pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES)
def test_anchor_and_residual_follow_from_the_shape(model):
    encoded = Encoded(model, real_like)
    for chunk in range(3):
        lengths, raw = encoded.table(chunk, 2)
        assert not raw.any()
        told = coded_strips(encoded.grid, TOKENS, 3.0, first_chunk=chunk == 0)
        assert told[:2] == encoded.sizes(chunk)[:2]
    assert encoded.sizes(0)[0] > encoded.sizes(1)[0]  # The sinks.


@pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES)
def test_exact_is_told_for_the_bits_that_it_takes(model):
    encoded = Encoded(model, real_like)
    lengths, _ = encoded.table(1, 2)
    values = TOKENS * encoded.grid.values_per_token()
    blocks = sum(-(-TOKENS * encoded.grid.tensors[t].width // 1024) for _, t in encoded.grid.row)
    blocks *= encoded.grid.layers
    bits = 8 * (sum(lengths) - 2 * blocks) / values
    least, _, most = exact_bits_of(model.dtype)
    assert least <= bits <= most
    told = coded_strips(encoded.grid, TOKENS, bits)[2]
    # A block's ranks end in a whole byte, a cell in whole words.
    slack = blocks + 8 * len(lengths) + PAGE_BYTES
    assert abs(told - encoded.sizes(1)[2]) <= slack


def test_a_dtype_without_a_code_is_kept_as_it_is():
    model = ModelShape(2, 2, 64, dtype=Dtype.FP8_E4M3)
    grid = cell_grid(model.block_shape(), Lane())
    table = 16 * grid.cell_count
    raw = 2 * 2 * 2 * 64 * TOKENS
    whole = -(-(table + raw) // PAGE_BYTES) * PAGE_BYTES
    assert coded_strips(grid, TOKENS, 3.0) == (whole, PAGE_BYTES, PAGE_BYTES)
    assert sum(coded_strips(grid, TOKENS, 3.0)) <= bound_of(grid, TOKENS).chunk
    sizes = sizes_of(Wish(model, TOKENS, 64 * MIB))
    assert not sizes.is_coded and len({case.strips for case in sizes.cases[:3]}) == 1


def test_more_bits_than_the_values_have_are_raw():
    grid = cell_grid(SHAPES["attention"].block_shape(), Lane())
    assert coded_strips(grid, TOKENS, 16.0)[0] > coded_strips(grid, TOKENS, 4.0)[0]
    assert coded_strips(grid, TOKENS, 16.0)[1:] == (PAGE_BYTES, PAGE_BYTES)


# ---- models ----


@pytest.mark.parametrize(
    ("name", "raw_bytes"),
    [("llama-3.1-8b", 131_072), ("llama-3.3-70b", 327_680), ("deepseek-v3", 70_272),
     ("smollm2-135m", 23_040), ("gemma-3-27b", 507_904), ("gpt-oss-20b", 49_152),
     ("qwen2.5-7b", 57_344), ("qwen3-235b-a22b", 192_512)],
)  # fmt: skip
def test_raw_bytes_of_models(name, raw_bytes):
    assert sizes_of(Wish(MODELS[name], TOKENS, 64 * MIB)).grid.bytes_per_token() == raw_bytes


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_source_and_sizes_between_the_measured_ones(name):
    model = MODELS[name]
    assert "/" in model.source and name == name.lower()
    sizes = sizes_of(Wish(model, TOKENS, 64 * MIB))
    values = TOKENS * sizes.grid.values_per_token()
    bits = [8 * case.chunk_bytes / values for case in sizes.cases]
    assert bits == sorted(bits) and 10.3 < bits[0] < bits[2] < 12.9 and 16 <= bits[3] < 16.4


# ---- tiers ----


def test_dram_holds_whole_chunks_of_each_slab():
    strips = (400 * 1024, 300 * 1024, 200 * 1024)
    in_a_slab = 64 * MIB // sum(strips)
    assert dram_chunks(1 * GIB, 64 * MIB, strips) == 16 * in_a_slab
    assert dram_chunks(1 * GIB + 63 * MIB, 64 * MIB, strips) == 16 * in_a_slab
    assert dram_chunks(32 * MIB, 64 * MIB, strips) == 0
    assert dram_chunks(1 * GIB, 64 * MIB, (65 * MIB, PAGE_BYTES, PAGE_BYTES)) == 0


def test_chunks_larger_than_a_slab_lie_in_several():
    # Of 16 slabs each holds one anchor, or one residual, or two exact: five chunks need 13.
    assert dram_chunks(16 * 64 * MIB, 64 * MIB, (40 * MIB, 36 * MIB, 30 * MIB)) == 6


@pytest.mark.parametrize("budget", [256 * MIB, 1 * GIB, 10 * GIB])
@pytest.mark.parametrize("strips", [(417792, 372736, 282624), (5754880, 5263360, 3973120)])
def test_ssd_holds_no_more_than_its_segments(budget, strips):
    from kvd.daemon.budget import Places, divide

    count = ssd_chunks(budget, 1, strips)
    divided = divide(Places((None,), (), budget, 0, True), budget)
    room = divided.segment_bytes - PAGE_BYTES

    def segments(chunks):
        return sum(-(-chunks // (room // strip)) for strip in strips)

    assert segments(count) <= divided.segments_max - 1 < segments(count + 1)
    assert count * sum(strips) < budget


def test_small_chunks_fill_the_catalog_first():
    count = ssd_chunks(10 * GIB, 1, (PAGE_BYTES,) * 3)
    assert count == 10 * GIB // 64 // 370


def test_strips_larger_than_a_segment_stay_in_memory():
    assert ssd_chunks(16 * MIB, 1, (2 * MIB, PAGE_BYTES, PAGE_BYTES)) == 0


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(KvdError) as refused:
        ssd_chunks(2 * MIB, 1, (PAGE_BYTES,) * 3)
    assert refused.value.kind == ErrorKind.INVALID and "are needed" in refused.value.message


def test_sequences_take_whole_chunks():
    wish = Wish(SHAPES["attention"], TOKENS, 64 * MIB, 1 * GIB, 10 * GIB, 1, 200)
    for fit in sizes_of(wish).fits:
        assert fit.tokens == 64 * fit.chunks and fit.sequences == fit.chunks // 3
    tiers = [fit.tier for fit in sizes_of(wish).fits]
    assert tiers == ["dram"] * 3 + ["ssd"] * 3

"""Chunks that every reader must read, by name. Seeded: the same bytes every time."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kvd.codec import PROFILE_DEFAULT, CodecProfile, Grouping, RoleCode
from kvd.codec.numbers import nearest, single
from kvd.shape import BlockShape, HitRule, KvGroup, TensorShape, cell_grid
from kvd.types import Dtype, Lane, Part, Role, Shard, ShardScheme
from tests.golden.writer import Chunk, Written, encode_chunk, lay_out, put_code, write_chunk

BF16, FP16 = Dtype.BF16, Dtype.FP16
K, V = Role.K, Role.V
NAN = {BF16: 0x7FC0, FP16: 0x7E00}
INFINITY = {BF16: 0x7F80, FP16: 0x7C00}
MINUS = 0x8000
WHOLE = Lane()
# Ids of profiles for tests: the upper half is never given out.
TEST_IDS = 1 << 63


def _test_profile(number: int, k: RoleCode, v: RoleCode, sinks: int) -> CodecProfile:
    return CodecProfile(TEST_IDS + number, k, v, v, v, sinks)


_CHANNEL, _TOKEN = Grouping.PER_CHANNEL, Grouping.PER_TOKEN
TEST_PROFILES = {
    profile.id: profile
    for profile in (
        _test_profile(1, RoleCode(_CHANNEL, 1, 16), RoleCode(_TOKEN, 3, 24), 1),
        _test_profile(2, RoleCode(_CHANNEL, 8, 32), RoleCode(_TOKEN, 8, 16), 2),
        _test_profile(3, RoleCode(_TOKEN, 6, 40), RoleCode(_CHANNEL, 2, 7), 0),
        replace(PROFILE_DEFAULT, id=TEST_IDS + 4),
    )
}


@dataclass(frozen=True, slots=True)
class Accepted:
    """A vector: what it covers, its strips, and the values that went in."""

    covers: str
    chunk: Chunk
    written: Written


def attention(layers: int, heads: int, width: int, dtype: Dtype = BF16) -> BlockShape:
    return BlockShape.of_attention(layers, heads, width, dtype)


def generator(name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))


def noise(rng: np.random.Generator, tokens: int, width: int, dtype: Dtype = BF16) -> np.ndarray:
    """Return bits of values like a cache's: channels of different means and spreads."""
    if dtype not in NAN:
        return (
            rng.integers(0, 256, (tokens, width, dtype.size_bytes), np.uint8)
            .view(f"<u{dtype.size_bytes}")[:, :, 0]
            .copy()
        )
    mean = rng.integers(-24, 25, width) / 8
    spread = 2.0 ** rng.integers(-3, 3, width)
    # Sums of integers: the same on every machine, whatever its numpy makes of a normal.
    sums = rng.integers(-512, 513, (tokens, width, 4)).sum(axis=2) / 1024
    return nearest(dtype, single(mean + spread * sums))


def chunk_of(
    name: str, shape: BlockShape, tokens: int, lane: Lane = WHOLE, **changes: object
) -> Chunk:
    """Return a chunk of noise whose key and generation follow from its name."""
    rng = generator(name)
    grid = cell_grid(shape, lane)
    tensors = [grid.tensors[t] for _ in range(grid.layers) for _, t in grid.row]
    cells = tuple(noise(rng, tokens, t.width, t.dtype) for t in tensors)
    key, generation = rng.bytes(16), int(rng.integers(1, 1 << 40))
    chunk = Chunk(shape, lane, PROFILE_DEFAULT, tokens, False, key, generation, cells)
    return replace(chunk, **changes)


def _plain(name: str) -> Accepted:
    chunk = chunk_of(name, attention(2, 2, 16), 16)
    return Accepted("BF16, two layers of two heads, K and V", chunk, write_chunk(chunk))


def _half(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 2, 16, FP16), 24)
    small = chunk.cells[0]
    small[:, :4] = (small[:, :4] & 0x83FF) | np.array([0, 0, 0x8000, 0], np.uint16)
    return Accepted("FP16, with subnormals in K of head 0", chunk, write_chunk(chunk))


def _sinks(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 1, 32), 24, first=True)
    chunk.cells[0][:4] = np.array([[NAN[BF16]], [INFINITY[BF16]], [MINUS], [0x7F7F]], np.uint16)
    chunk.cells[1][1, ::3] = NAN[BF16]
    text = "the first chunk of a sequence: sinks kept, NaN and infinity among them"
    return Accepted(text, chunk, write_chunk(chunk))


def _all_sinks(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 1, 64), 3, first=True)
    return Accepted("fewer tokens than sinks: every cell raw", chunk, write_chunk(chunk))


def _raw_dtypes(name: str) -> Accepted:
    tensors = (
        TensorShape(K, 2, 3, Dtype.FP32), TensorShape(V, 1, 5, Dtype.FP8_E4M3),
        TensorShape(Role.LATENT, 1, 7, Dtype.FP8_E5M2), TensorShape(Role.STATE, 3, 1, Dtype.INT8),
        TensorShape(V, 1, 40, BF16),
    )  # fmt: skip
    shape = BlockShape((KvGroup(1, tensors, HitRule.STATE),))
    chunk = chunk_of(name, shape, 11, first=True)
    text = "dtypes without a code are raw, of odd lengths; tensors of unlike head counts"
    return Accepted(text, chunk, write_chunk(chunk))


def _not_finite(dtype: Dtype) -> Callable[[str], Accepted]:
    def make(name: str) -> Accepted:
        chunk = chunk_of(name, attention(5, 1, 16, dtype), 16)
        k, v = chunk.cells[::2], chunk.cells[1::2]
        k[0][7, 3] = NAN[dtype]
        v[1][0, 0] = MINUS | INFINITY[dtype]
        k[2][:, 5] = np.where(np.arange(16) % 3 == 0, MINUS, 0)
        largest = INFINITY[dtype] - 1
        v[3][2, 4:6] = (largest, MINUS | largest)  # hi - lo overflows in BF16 only.
        v[4][15] = NAN[dtype] | 1
        text = (
            f"{dtype.name} cells that cannot be coded, each beside one that can: NaN, -infinity, "
            "mixed zeros alone in a group, the widest span"
        )
        return Accepted(text, chunk, write_chunk(chunk))

    return make


def _constants(name: str) -> Accepted:
    chunk = chunk_of(name, attention(2, 1, 16), 24)
    k, v = chunk.cells[0], chunk.cells[1]
    k[:, 0], k[:, 1], k[:, 2], k[:, 3] = 0x3F80, MINUS, 0, 0xC2FE
    k[:, 4], k[:, 5] = 1, 0x7F7F
    v[::2], v[1] = 0xBF80, MINUS
    chunk.cells[2][:] = 0x4000
    return Accepted(
        "constant groups, of both zeros too; a constant cell", chunk, write_chunk(chunk)
    )


def _zeros(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 1, 16), 24)
    k, v = chunk.cells
    positive, negative = k & 0x7FFF, k | MINUS
    k[:, :4] = positive[:, :4]
    k[0, :4], k[1, :2] = MINUS, 0  # -0 is lo, +0 beside it or not.
    k[:, 4:8] = negative[:, 4:8]
    k[2, 4:8], k[3, 4:6] = 0, MINUS  # +0 is hi, -0 beside it or not.
    k[4, 8:12], k[5, 8:12] = 0, MINUS  # Both within.
    v[:, 3], v[:, 4] = MINUS, 0
    return Accepted("zeros of both signs at the ends and within groups", chunk, write_chunk(chunk))


def _tails(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 1, 16), 80, first=True)
    text = "tokens that the group of K does not divide; two blocks of ranks, the last one shorter"
    return Accepted(text, chunk, write_chunk(chunk))


def _wide(name: str) -> Accepted:
    tensors = (TensorShape(K, 1, 130, BF16), TensorShape(V, 1, 130, BF16))
    chunk = chunk_of(name, BlockShape((KvGroup(1, tensors),)), 9)
    text = "a width that the group of V does not divide: the last group has two channels"
    return Accepted(text, chunk, write_chunk(chunk))


def _odd(name: str) -> Accepted:
    tensors = (
        TensorShape(K, 1, 13, BF16),
        TensorShape(V, 2, 27, FP16),
        TensorShape(Role.LATENT, 1, 1, BF16),
    )
    chunk = chunk_of(name, BlockShape((KvGroup(1, tensors),)), 21)
    text = "planes whose last byte is not full; a width of one"
    return Accepted(text, chunk, write_chunk(chunk))


def _one_token(name: str) -> Accepted:
    tensors = (TensorShape(K, 1, 24, BF16), TensorShape(V, 1, 96, BF16))
    chunk = chunk_of(name, BlockShape((KvGroup(1, tensors),)), 1)
    return Accepted("one token: K raw, V coded", chunk, write_chunk(chunk))


def _extremes(dtype: Dtype) -> Callable[[str], Accepted]:
    def make(name: str) -> Accepted:
        chunk = chunk_of(name, attention(1, 1, 16, dtype), 48)
        k, v = chunk.cells
        largest = INFINITY[dtype] - 1
        spread = np.arange(48)
        k[:, 0] = (spread * 977) % (largest + 1)  # All exponents, up to the largest value.
        k[:, 1] = MINUS | k[:, 0]
        k[:, 2] = spread  # Subnormals.
        k[:, 3] = np.where(spread % 2, MINUS | spread, spread)
        k[:, 4] = largest - spread % 2  # Two neighbours.
        k[:, 5] = 1 + spread % 3  # Three subnormal ones.
        k[:, 6] = np.where(spread, 0x3C00 + spread, largest)  # One far outlier.
        k[:, 7] = np.where(spread % 5, 1, MINUS)
        half = 0x7E00 if dtype == BF16 else 0x7800
        v[1] = half + np.arange(16) * 7
        v[2] = np.where(np.arange(16) % 2, MINUS | half, half)
        text = f"{dtype.name} at its ends: all exponents, subnormals, neighbours, outliers"
        return Accepted(text, chunk, write_chunk(chunk))

    return make


def _lane(lane: Lane, covers: str) -> Callable[[str], Accepted]:
    tensors = (TensorShape(K, 4, 16, BF16), TensorShape(V, 2, 24, BF16))
    shape = BlockShape((KvGroup(1, tensors[:1]), KvGroup(4, tensors)))

    def make(name: str) -> Accepted:
        chunk = chunk_of(name, shape, 11, lane)
        return Accepted(covers, chunk, write_chunk(chunk))

    return make


def _profile(number: int, covers: str) -> Callable[[str], Accepted]:
    def make(name: str) -> Accepted:
        profile = TEST_PROFILES[TEST_IDS + number]
        chunk = chunk_of(name, attention(1, 1, 50), 19, first=True, profile=profile)
        return Accepted(covers, chunk, write_chunk(chunk))

    return make


def _gaps(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 2, 16), 24)
    written = lay_out(chunk, encode_chunk(chunk), gap=24)
    for strip in written.strips:
        first = strip.begin(0)
        strip.patch(first - 24, b"\xee" * 24)
        strip.patch(strip.end(), b"\xee" * 16)
    return Accepted("gaps between cells, which with the tail hold rubbish", chunk, written)


def _longer(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 1, 16), 24)
    written = write_chunk(chunk)
    for strip in written.strips:
        strip.size += 4096
    return Accepted("strips longer than they had to be", chunk, written)


def _raw_by_choice(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 2, 16), 24)
    strings = encode_chunk(chunk)
    anchors, residuals, exacts = strings.of_class
    for cell in (0, 3):
        assert not strings.raw[cell]
        strings.raw[cell] = True
        anchors[cell], residuals[cell], exacts[cell] = chunk.cells[cell].tobytes(), b"", b""
    return Accepted("raw cells that could have been coded", chunk, lay_out(chunk, strings))


def _set_bits(text: bytes, at: int, bits: int) -> bytes:
    return text[:at] + bytes([text[at] | bits]) + text[at + 1 :]


def _ignored_bits(name: str) -> Accepted:
    """21 x 27 = 567 elements: one bit is unused in a plane, and the sinks use the first 108."""
    chunk = chunk_of(name, attention(1, 1, 27), 21, first=True)
    strings = encode_chunk(chunk)
    assert not any(strings.raw)
    anchors, residuals, exacts = strings.of_class
    for cell, groups in enumerate((27, 21)):
        planes = 4 * groups + 2 * 4 * 27
        for plane in range(4):
            at = planes + 71 * plane
            anchors[cell] = _set_bits(_set_bits(anchors[cell], at + 70, 0x80), at + 13, 0x0F)
            residuals[cell] = _set_bits(
                _set_bits(residuals[cell], 71 * plane, 0xFF), 71 * plane + 70, 0x80
            )
        unused = -int.from_bytes(exacts[cell][:2], "little") % 8
        exacts[cell] = _set_bits(exacts[cell], len(exacts[cell]) - 1, 0xFF << (8 - unused) & 0xFF)
    text = "bits that are ignored are set: behind planes and blocks, and of sinks in planes"
    return Accepted(text, chunk, lay_out(chunk, strings))


def _raw_bits(name: str) -> Accepted:
    chunk = chunk_of(name, attention(1, 1, 16), 24)
    chunk.cells[0][0, 0] = NAN[BF16]
    strings = encode_chunk(chunk)
    assert strings.raw == [True, False]
    strings.of_class[1][0], strings.of_class[2][0] = b"\xee" * 5, b"\xee" * 300
    written = lay_out(chunk, strings)
    for strip in written.strips[1:]:
        for cell, raw in enumerate((False, True)):
            text = strings.of_class[strip.plane_class][cell]
            strip.patch_entry(cell, strip.begin(cell), len(text) | raw << 31)
    text = "residual and exact of a raw cell not empty, their raw bits unlike the anchor's"
    return Accepted(text, chunk, written)


def _low_codes(name: str) -> Accepted:
    """Channel 0 is constant, channel 1 has its minimum in tokens 0 to 3: no ranks there."""
    chunk = chunk_of(name, attention(1, 1, 16), 24)
    k = chunk.cells[0]
    k[:, 0] = 0x3F80
    k[:, 1] = np.where(np.arange(24) < 4, 0x3F80, 0x4000 + np.arange(24))
    strings = encode_chunk(chunk)
    assert not strings.raw[0]
    for token in range(24):
        put_code(chunk, strings, 0, 16 * token, 0xFF - token)
    for token in range(4):
        put_code(chunk, strings, 0, 16 * token + 1, token)
    text = "codes that no encoder writes and all readers read: any in a constant group, below lo's"
    return Accepted(text, chunk, lay_out(chunk, strings))


ACCEPTED: dict[str, Callable[[str], Accepted]] = {
    "plain": _plain,
    "half": _half,
    "sinks": _sinks,
    "all-sinks": _all_sinks,
    "raw-dtypes": _raw_dtypes,
    "not-finite-bf16": _not_finite(BF16),
    "not-finite-fp16": _not_finite(FP16),
    "constants": _constants,
    "zeros": _zeros,
    "tails": _tails,
    "wide": _wide,
    "odd": _odd,
    "one-token": _one_token,
    "extremes-bf16": _extremes(BF16),
    "extremes-fp16": _extremes(FP16),
    "lane-heads": _lane(Lane(1, Shard(ShardScheme.HEADS, 1, 2)), "heads 1 of 2, kv group 1"),
    "lane-layers": _lane(Lane(1, Shard(ShardScheme.LAYERS, 3, 4)), "layers 3 of 4, kv group 1"),
    "lane-part": _lane(
        Lane(0, Shard(), Part(bytes(range(8)), 0xABCD)), "kv group 0, a part of a head profile"
    ),
    "profile-narrow": _profile(1, "1 and 3 anchor planes, groups of 16 and 24, one sink"),
    "profile-whole": _profile(2, "8 anchor planes: residuals empty"),
    "profile-swapped": _profile(3, "K per token, V per channel; 6 and 2 anchor planes, no sinks"),
    "gaps": _gaps,
    "longer": _longer,
    "raw-by-choice": _raw_by_choice,
    "ignored-bits": _ignored_bits,
    "raw-bits": _raw_bits,
    "low-codes": _low_codes,
}


def make(name: str) -> Accepted:
    """Return the vector of a name."""
    return ACCEPTED[name](name)

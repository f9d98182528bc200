"""A second decoder and verifier of chunks, written from docs/format.md alone; knows nothing of kvd.

One element after the other, in plain Python. Sections and rules in comments are the document's.
"""

import bisect
import hashlib
import math
import struct
from collections.abc import Iterator

import numpy as np
import xxhash

CLASSES = ("anchor", "residual", "exact")
NUMBERS_OF_NAMES = {  # Section 3.
    "role": {"K": 1, "V": 2, "LATENT": 3, "STATE": 4},
    "dtype": {"BF16": 1, "FP16": 2, "FP32": 3, "FP8_E4M3": 4, "FP8_E5M2": 5, "INT8": 6},
    "hit_rule": {"ALL": 0, "TRAILING": 1, "STATE": 2},
    "shard_scheme": {"REPLICATED": 0, "HEADS": 1, "LAYERS": 2},
}
BYTES_OF_DTYPE = {"BF16": 2, "FP16": 2, "FP32": 4, "FP8_E4M3": 1, "FP8_E5M2": 1, "INT8": 1}
PROFILES = {  # Section 5.3: grouping, group, anchor planes by role; sinks.
    1: {
        "K": ("per channel", 64, 4),
        "V": ("per token", 128, 4),
        "LATENT": ("per token", 128, 4),
        "STATE": ("per token", 128, 4),
        "sinks": 4,
    }
}


class Refused(Exception):
    """Bytes that must be refused; `rule` is the number in section 9."""

    def __init__(self, rule: int, what: str) -> None:
        super().__init__(f"rule {rule}: {what}")
        self.rule = rule


def need(holds: bool, rule: int, what: str) -> None:
    if not holds:
        raise Refused(rule, what)


# Section 6: identity.


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _shape_bytes(groups: list[dict]) -> bytes:
    out = _number(len(groups))
    for group in groups:
        out += _number(group["layers"]) + _number(NUMBERS_OF_NAMES["hit_rule"][group["hit_rule"]])
        out += _number(group["trailing_chunks"]) + _number(len(group["tensors"]))
        for tensor in group["tensors"]:
            out += _number(NUMBERS_OF_NAMES["role"][tensor["role"]])
            out += _number(tensor["heads"]) + _number(tensor["width"])
            out += _number(NUMBERS_OF_NAMES["dtype"][tensor["dtype"]])
    return out


def keyspace_digest(tenant: str, keyspace: dict) -> bytes:
    state = hashlib.blake2b(digest_size=32, person=b"kvd.keyspace.v0")
    parts = [tenant.encode(), keyspace["model"].encode(), keyspace["weight_revision"].encode()]
    parts.append(_shape_bytes(keyspace["shape"]))
    parts += [keyspace[n].encode() for n in ("tokenizer", "chain", "layout", "rope", "adapter")]
    parts.append(_number(keyspace["chunk_tokens"]))
    for part in parts:
        state.update(_number(len(part)) + part)
    return state.digest()


def chain_digest(before: bytes, tokens: list[int], extras: bytes = b"") -> bytes:
    text = before + b"".join(map(_number, tokens)) + extras
    return hashlib.blake2b(text, digest_size=32, person=b"kvd.chain.v0").digest()


def chunk_key(keyspace: bytes, chain: bytes) -> bytes:
    return hashlib.blake2b(keyspace + chain, digest_size=16).digest()


# Section 8.1: the numbers of a dtype by ordinal.


class Numbers:
    """BF16 or FP16: values in order, searched instead of computed."""

    def __init__(self, exponent_bits: int, fraction_bits: int) -> None:
        self.fraction_bits = fraction_bits
        self.bias = (1 << (exponent_bits - 1)) - 1
        self.infinity = ((1 << exponent_bits) - 1) << fraction_bits
        positive = [self._positive(b) for b in range(self.infinity)] + [math.inf]
        self.ascending = [-value for value in reversed(positive)] + positive
        self.zero_at = len(positive)

    def _positive(self, pattern: int) -> float:
        exponent, fraction = divmod(pattern, 1 << self.fraction_bits)
        if exponent == 0:
            return math.ldexp(fraction, 1 - self.bias - self.fraction_bits)
        hidden = fraction + (1 << self.fraction_bits)
        return math.ldexp(hidden, exponent - self.bias - self.fraction_bits)

    def finite(self, pattern: int) -> bool:
        return pattern % 0x8000 < self.infinity

    def value(self, ordinal: int) -> float:
        return self.ascending[self.zero_at + ordinal]

    def at(self, x: float) -> int:
        """Return the smallest ordinal whose value is not below x."""
        if x == 0:
            return -1 if math.copysign(1, x) < 0 else 0
        return bisect.bisect_left(self.ascending, x) - self.zero_at

    def nearest(self, y: float) -> int:
        """Return the ordinal of y rounded to nearest even."""
        above = self.at(y)
        if self.value(above) == y:
            return above
        below = above - 1
        up, down = self.value(above) - y, y - self.value(below)
        if up == down:
            return above if pattern_of(above) % 2 == 0 else below
        return above if up < down else below


NUMBERS = {"BF16": Numbers(8, 7), "FP16": Numbers(5, 10)}


def ordinal_of(pattern: int) -> int:
    return pattern if pattern < 0x8000 else -1 - (pattern - 0x8000)


def pattern_of(ordinal: int) -> int:
    return ordinal if ordinal >= 0 else 0x8000 - 1 - ordinal


# Sections 8.2 to 8.5: one group.


class Group:
    """What lo and hi say about every code."""

    def __init__(self, numbers: Numbers, lo: int, hi: int, anchor_planes: int) -> None:
        need(numbers.finite(lo) and numbers.finite(hi), 14, "lo or hi is not finite")
        self.numbers, self.lo, self.hi = numbers, ordinal_of(lo), ordinal_of(hi)
        need(self.lo <= self.hi, 15, "lo above hi")
        need((lo, hi) != (0x8000, 0x0000), 16, "lo = -0 and hi = +0")
        self.low = np.float32(numbers.value(self.lo))
        self.high = np.float32(numbers.value(self.hi))
        span = self.high - self.low
        need(bool(np.isfinite(span)), 17, "hi - lo is not finite")
        large = span / np.float32(2**anchor_planes - 1)
        self.h = large / np.float32(2 ** (8 - anchor_planes))
        self.o = np.float32(2.0 ** (7 - anchor_planes))
        self._bins: dict[int, tuple[int, int]] = {}

    def _point(self, t: float) -> np.float32:
        return self.low + (np.float32(t) - self.o) * self.h

    def _edge_at(self, c: int) -> int:
        return self.numbers.at(float(self._point(c)))

    def bin(self, c: int) -> tuple[int, int]:
        """Return first and behind of a code."""
        if c not in self._bins:
            first = max(self._edge_at(c), self.lo)
            behind = min(max(self._edge_at(c + 1), self.lo + 1), self.hi + 1)
            self._bins[c] = first, behind
        return self._bins[c]

    def middle(self, c: int, k: int) -> float:
        """Return what the first k planes of a code stand for."""
        unit = 2 ** (8 - k)
        y = self._point(c // unit * unit + unit / 2)
        if y < self.low:
            y = self.low
        if y > self.high:
            y = self.high
        return float(y)


# Section 5.1: the strip.


class Strip:
    """A strip whose table holds; strings are taken from it by cell number."""

    def __init__(self, known: dict, name: str, data: bytes, cell_count: int) -> None:
        self.name, self.data = name, data
        self.entries = []
        need(len(data) >= 16 * cell_count, 2, "shorter than its table")
        free_from = 16 * cell_count
        for offset, word, checksum in struct.iter_unpack("<IIQ", data[: 16 * cell_count]):
            need(word >> 28 & 7 == 0, 3, "reserved bits")
            length, raw = word % (1 << 28), bool(word >> 31)
            need(offset % 8 == 0, 4, "misaligned")
            need(offset >= free_from, 5, "begins before it may")
            free_from = offset + length
            need(free_from <= len(data), 6, "ends outside")
            self.entries.append((offset, length, raw, checksum))
        names = root_names(known, CLASSES.index(name))
        root = xxhash.xxh3_64_intdigest(names + data[: 16 * cell_count])
        need(root == int(known["strips"][name]["root"], 16), 7, "another root")

    def raw(self, cell: int) -> bool:
        return self.entries[cell][2]

    def string(self, cell: int) -> bytes:
        offset, length, _, checksum = self.entries[cell]
        text = self.data[offset : offset + length]
        rule = 8 if self.name == "anchor" else 9
        need(xxhash.xxh3_64_intdigest(text) == checksum, rule, "another checksum")
        return text


def root_names(known: dict, plane_class: int) -> bytes:
    lane = known["lane"]
    return b"".join(
        (
            bytes.fromhex(known["chunk_key"]),
            struct.pack("<I", lane["kv_group"]),
            bytes([NUMBERS_OF_NAMES["shard_scheme"][lane["shard_scheme"]], plane_class]),
            struct.pack("<HHH", lane["shard_index"], lane["shard_count"], lane["part_index"]),
            bytes(4),
            bytes.fromhex(lane["part_profile"]),
            struct.pack("<QQ", known["generation"], known["profile"]),
        )
    )


def tensors_of_cells(known: dict) -> Iterator[dict]:
    """Yield the tensor of every cell, in cell order."""
    lane, group = known["lane"], known["shape"][known["lane"]["kv_group"]]
    layers = group["layers"]
    heads = [tensor["heads"] for tensor in group["tensors"]]
    if lane["shard_scheme"] == "LAYERS":
        layers //= lane["shard_count"]
    if lane["shard_scheme"] == "HEADS":
        heads = [count // lane["shard_count"] for count in heads]
    for _layer in range(layers):
        for head in range(max(heads)):
            for tensor, count in zip(group["tensors"], heads, strict=True):
                if head < count:
                    yield tensor


# Section 5.2: one cell.


class Cell:
    """The code of one cell, and what its strings say."""

    def __init__(self, known: dict, tensor: dict, profile: dict) -> None:
        grouping, self.group, self.anchor_planes = profile[tensor["role"]]
        self.per_channel = grouping == "per channel"
        self.dtype, self.tokens, self.width = tensor["dtype"], known["tokens"], tensor["width"]
        self.sinks = min(profile["sinks"], self.tokens) if known["first_chunk"] else 0
        self.count = self.tokens * self.width
        self.plane_bytes = math.ceil(self.count / 8)

    def group_count(self) -> int:
        if self.per_channel:
            return math.ceil(self.tokens / self.group) * self.width
        return self.tokens * math.ceil(self.width / self.group)

    def group_of(self, element: int) -> int:
        token, channel = divmod(element, self.width)
        if self.per_channel:
            return token // self.group * self.width + channel
        return token * math.ceil(self.width / self.group) + channel // self.group

    def read_raw(self, anchor: bytes) -> list[int]:
        size = BYTES_OF_DTYPE[self.dtype]
        need(len(anchor) == size * self.count, 10, "raw string of another length")
        starts = range(0, len(anchor), size)
        return [int.from_bytes(anchor[at : at + size], "little") for at in starts]

    def read(self, strings: dict[str, bytes], planes: int | str) -> list[int]:
        """Return the patterns of all elements at 1 to 8 planes, or "exact"."""
        need(self.dtype in NUMBERS, 11, "a dtype without a code")
        anchor = strings["anchor"]
        size = self.planes_at() + self.anchor_planes * self.plane_bytes
        need(len(anchor) == size, 12, "anchor string of another length")
        if "residual" in strings:
            size = (8 - self.anchor_planes) * self.plane_bytes
            need(len(strings["residual"]) == size, 13, "residual string of another length")
        groups = self.groups(anchor)
        kept = range(4 * len(groups), self.planes_at(), 2)
        patterns = [int.from_bytes(anchor[at : at + 2], "little") for at in kept]
        known_planes = 8 if planes == "exact" else int(planes)
        codes = self.codes(anchor, strings.get("residual", b""), known_planes)
        pairs = [
            (groups[self.group_of(element)], codes[element])
            for element in range(len(patterns), self.count)
        ]
        if planes == "exact":
            ordinals = self._ordinals(strings["exact"], len(patterns), pairs)
        else:
            nearest = NUMBERS[self.dtype].nearest
            ordinals = (nearest(group.middle(code, known_planes)) for group, code in pairs)
        return patterns + [pattern_of(ordinal) for ordinal in ordinals]

    def planes_at(self) -> int:
        """Return where the planes begin in an anchor string."""
        return 4 * self.group_count() + 2 * self.sinks * self.width

    def groups(self, anchor: bytes) -> list[Group]:
        ends = struct.iter_unpack("<HH", anchor[: 4 * self.group_count()])
        return [Group(NUMBERS[self.dtype], lo, hi, self.anchor_planes) for lo, hi in ends]

    def codes(self, anchor: bytes, residual: bytes, count: int) -> list[int]:
        """Return the codes of all elements from their first `count` planes, other bits zero."""
        planes = anchor[self.planes_at() :] + residual
        codes = [0] * self.count
        for plane in range(count):
            bits = planes[plane * self.plane_bytes :]
            for element in range(self.count):
                codes[element] |= (bits[element // 8] >> element % 8 & 1) << (7 - plane)
        return codes

    def _ordinals(self, exact: bytes, sinks: int, pairs: list[tuple[Group, int]]) -> Iterator[int]:
        blocks = math.ceil(self.count / 1024)
        need(len(exact) >= 2 * blocks, 18, "shorter than its block lengths")
        bits = struct.unpack_from(f"<{blocks}H", exact)
        sizes = [math.ceil(count / 8) for count in bits]
        need(len(exact) == 2 * blocks + sum(sizes), 19, "exact string of another length")
        begin = 2 * blocks
        for block, size in enumerate(sizes):
            ranks = int.from_bytes(exact[begin : begin + size], "little")
            begin += size
            left = bits[block]
            first, last = 1024 * block - sinks, 1024 * (block + 1) - sinks
            for group, code in pairs[max(first, 0) : last]:
                low, behind = group.bin(code)
                need(low < behind, 21, "code of an empty bin")
                width = (behind - low - 1).bit_length()
                need(width <= left, 20, "more rank bits than the block has")
                ordinal, left = low + ranks % (1 << width), left - width
                ranks >>= width
                need(ordinal < behind, 21, "rank outside its bin")
                yield ordinal
            need(left == 0, 20, "fewer rank bits than the block has")


def read_chunk(
    known: dict, strips: dict[str, bytes], planes: int | str, profiles: dict | None = None
) -> list[list[int]]:
    """Return the patterns of every cell at 1 to 8 planes or "exact"; raise Refused.

    `known` is what section 3 says that a reader knows; `profiles` are further ones for tests.
    """
    profile = (PROFILES | (profiles or {})).get(known["profile"])
    need(profile is not None, 1, "profile is not known")
    tensors = list(tensors_of_cells(known))
    cells = [Cell(known, tensor, profile) for tensor in tensors]
    opened = {"anchor": Strip(known, "anchor", strips["anchor"], len(cells))}
    if planes == "exact" or any(planes > cell.anchor_planes for cell in cells):
        opened["residual"] = Strip(known, "residual", strips["residual"], len(cells))
    if planes == "exact":
        opened["exact"] = Strip(known, "exact", strips["exact"], len(cells))
    # Infinite spans are refused, infinite edges are clipped: neither deserves a warning.
    with np.errstate(over="ignore"):
        return [_read_cell(cell, opened, index, planes) for index, cell in enumerate(cells)]


def _read_cell(cell: Cell, opened: dict[str, Strip], index: int, planes: int | str) -> list[int]:
    strings = {name: strip.string(index) for name, strip in opened.items()}
    if opened["anchor"].raw(index):
        return cell.read_raw(strings["anchor"])
    if planes != "exact" and planes <= cell.anchor_planes:
        strings.pop("residual", None)
    return cell.read(strings, planes)

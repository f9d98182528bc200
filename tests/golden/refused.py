"""Chunks that every reader must refuse, by name, each for one reason: a rule of docs/format.md.

Each is a sound chunk with one thing wrong, everything above that thing made anew: a wrong cell has
a right checksum, a wrong table a right root.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.types import Dtype, Lane, Part, PlaneClass, Role, Shard, ShardScheme
from tests.golden.accepted import BF16, TEST_IDS, TEST_PROFILES, attention, chunk_of
from tests.golden.descriptions import lane_description
from tests.golden.writer import (
    ENTRY,
    Chunk,
    Written,
    encode_chunk,
    lay_out,
    put_code,
    write_chunk,
)
from tests.reference.decoder import NUMBERS, Group, ordinal_of

ANCHOR, RESIDUAL, EXACT = PlaneClass
K_CELL, V_CELL = 0, 1
TOKENS, WIDTH = 16, 16


@dataclass(frozen=True, slots=True)
class Refused:
    """A vector: the rule it breaks, its strips, and what a reader knows otherwise than it was."""

    rule: int
    chunk: Chunk
    written: Written
    known: dict = field(default_factory=dict)
    spoils: PlaneClass = ANCHOR  # What needs a class before it can still be read.


Maker = Callable[[str], Refused]


def _coded(name: str, tokens: int = TOKENS) -> Chunk:
    return chunk_of(name, attention(1, 1, WIDTH), tokens)


def _bytes(name: str) -> Chunk:
    """Return a chunk of 4 raw cells of 64 bytes, of which any content can be read."""
    return chunk_of(name, attention(2, 1, 8, Dtype.INT8), 8)


# Rules 1 to 7: names, tables, roots.


def _profile_unknown(name: str) -> Refused:
    profile = replace(TEST_PROFILES[TEST_IDS + 4], id=0xFFFF_FFFF_FFFF_FFFF)
    chunk = chunk_of(name, attention(1, 1, WIDTH), TOKENS, profile=profile)
    return Refused(1, chunk, write_chunk(chunk))


def _table_truncated(name: str) -> Refused:
    """257 cells need a table of 4,112 bytes."""
    tensors = (TensorShape(Role.K, 1, 1, Dtype.INT8),)
    chunk = chunk_of(name, BlockShape((KvGroup(257, tensors),)), 1)
    written = write_chunk(chunk)
    for strip in written.strips:
        strip.size = 4096
    return Refused(2, chunk, written)


def _entry(rule: int, cell: int, plane_class: PlaneClass, offset: int, word: int) -> Maker:
    """Change a table entry: `offset` and `word` are added to what is there."""

    def make(name: str) -> Refused:
        chunk = _bytes(name)
        written = write_chunk(chunk)
        strip = written.strips[plane_class]
        begin = strip.begin(cell) + offset
        length = 64 if plane_class == ANCHOR else 0
        strip.body.extend(bytes(64))
        data = bytes(strip.body[begin : begin + length])
        flagged = length + word if plane_class != ANCHOR else (length | 1 << 31) + word
        strip.patch_entry(cell, begin & 0xFFFF_FFFF, flagged, data if len(data) == length else None)
        if begin < ENTRY * strip.cell_count < begin + length:
            # The string covers entries of the table, but not its own.
            assert begin >= ENTRY * (cell + 1)
        return Refused(rule, chunk, written, spoils=plane_class)

    return make


def _root_table(name: str) -> Refused:
    chunk = _coded(name)
    written = write_chunk(chunk)
    strip = written.strips[ANCHOR]
    strip.patch(8, bytes([strip.body[8] ^ 1]))
    return Refused(7, chunk, written)


def _place(lane: Lane) -> Maker:
    """A reader looks for `lane` and is given the strips of another one."""

    def make(name: str) -> Refused:
        tensors = (TensorShape(Role.K, 2, WIDTH, BF16), TensorShape(Role.V, 2, WIDTH, BF16))
        shape = BlockShape((KvGroup(1, tensors), KvGroup(1, tensors)))
        chunk = chunk_of(name, shape, TOKENS, Lane(0, Shard(ShardScheme.HEADS, 0, 1)))
        return Refused(7, chunk, write_chunk(chunk), {"lane": lane_description(lane)})

    return make


def _known(**known: object) -> Maker:
    def make(name: str) -> Refused:
        chunk = _coded(name)
        return Refused(7, chunk, write_chunk(chunk), dict(known))

    return make


def _root_generation(name: str) -> Refused:
    chunk = _coded(name)
    return Refused(7, chunk, write_chunk(chunk), {"generation": chunk.generation + 1})


def _root_profile(name: str) -> Refused:
    chunk = _coded(name)
    return Refused(7, chunk, write_chunk(chunk), {"profile": TEST_IDS + 4})


def _root_class(name: str) -> Refused:
    """Anchor and residual strips are of the same form here, and in each other's place."""
    chunk = _bytes(name)
    anchor, residual, exact = write_chunk(chunk).strips
    swapped = (replace(residual, plane_class=ANCHOR), replace(anchor, plane_class=RESIDUAL), exact)
    return Refused(7, chunk, Written(swapped))


def _other_put(plane_class: PlaneClass) -> Maker:
    """One strip is of another generation of the same chunk, sound in itself."""

    def make(name: str) -> Refused:
        chunk = _coded(name)
        strips = list(write_chunk(chunk).strips)
        strips[plane_class] = write_chunk(replace(chunk, generation=chunk.generation + 1)).strips[
            plane_class
        ]
        return Refused(7, chunk, Written(tuple(strips)), spoils=plane_class)

    return make


# Rules 8 and 9: checksums.


def _sum(rule: int, plane_class: PlaneClass, cell: int, at: int) -> Maker:
    def make(name: str) -> Refused:
        chunk = _bytes(name) if name == "sum-raw" else _coded(name)
        written = write_chunk(chunk)
        strip = written.strips[plane_class]
        place = strip.begin(cell) + at
        strip.patch(place, bytes([strip.body[place] ^ 0x10]))
        return Refused(rule, chunk, written, spoils=plane_class)

    return make


def _sum_empty(name: str) -> Refused:
    chunk = _bytes(name)
    written = write_chunk(chunk)
    strip = written.strips[RESIDUAL]
    strip.patch(ENTRY + 8, bytes(8))
    strip.rebind()
    return Refused(9, chunk, written, spoils=RESIDUAL)


# Rules 10 to 21: cells.


def _string(rule: int, plane_class: PlaneClass, change: Callable[[bytes], bytes]) -> Maker:
    """Change one string of the V cell, the last one."""

    def make(name: str) -> Refused:
        chunk = _bytes(name) if name.startswith("raw") else _coded(name)
        strings = encode_chunk(chunk)
        texts = strings.of_class[plane_class]
        texts[-1] = change(texts[-1])
        return Refused(rule, chunk, lay_out(chunk, strings), spoils=plane_class)

    return make


def _coded_fp32(name: str) -> Refused:
    chunk = chunk_of(name, attention(1, 1, 4, Dtype.FP32), 8)
    strings = encode_chunk(chunk)
    strings.raw[V_CELL] = False
    return Refused(11, chunk, lay_out(chunk, strings))


def _group(rule: int, lo: int, hi: int) -> Maker:
    """Give the last group of K, a channel, other ends."""

    def make(name: str) -> Refused:
        chunk = _coded(name)
        strings = encode_chunk(chunk)
        text, at = strings.of_class[ANCHOR][K_CELL], 4 * (WIDTH - 1)
        ends = lo.to_bytes(2, "little") + hi.to_bytes(2, "little")
        strings.of_class[ANCHOR][K_CELL] = text[:at] + ends + text[at + 4 :]
        return Refused(rule, chunk, lay_out(chunk, strings))

    return make


@dataclass(frozen=True, slots=True)
class Place:
    """An element of the K cell: its code, how many values share it, where its rank begins."""

    code: int
    values: int
    bit: int

    @property
    def width(self) -> int:
        return (self.values - 1).bit_length()


def _places(chunk: Chunk) -> list[Place]:
    """Return the places of all elements of the K cell's first block."""
    cell = chunk.cells[K_CELL]
    numbers, places, bit = NUMBERS[chunk.grid.tensors[0].dtype.name], [], 0
    groups = []
    for channel in cell.T.tolist():
        ordered = sorted(channel, key=ordinal_of)
        groups.append(Group(numbers, ordered[0], ordered[-1], chunk.profile.k.anchor_planes))
    for row in cell.tolist():
        for group, pattern in zip(groups, row, strict=True):
            ordinal = ordinal_of(pattern)
            bins = ((code, *group.bin(code)) for code in range(256))
            code, first, behind = next(b for b in bins if b[1] <= ordinal < b[2])
            places.append(Place(code, behind - first, bit))
            bit += places[-1].width
    return places


def _exact_code(name: str) -> Refused:
    """An element without a rank gets a code beyond all bins."""
    chunk = _coded(name)
    strings = encode_chunk(chunk)
    element = next(e for e, place in enumerate(_places(chunk)) if place.width == 0)
    put_code(chunk, strings, K_CELL, element, 0xFF)
    return Refused(21, chunk, lay_out(chunk, strings), spoils=EXACT)


def _exact_code_between(name: str) -> Refused:
    """Two neighbours leave most codes between them without a value."""
    chunk = _coded(name)
    chunk.cells[K_CELL][:, 0] = 0x3F80 + np.arange(TOKENS) % 2
    strings = encode_chunk(chunk)
    places = _places(chunk)
    element = next(e for e in range(0, len(places), WIDTH) if places[e].width == 0)
    put_code(chunk, strings, K_CELL, element, 100)
    return Refused(21, chunk, lay_out(chunk, strings), spoils=EXACT)


def _exact_code_zero(name: str) -> Refused:
    """In a constant group of -0 the upper codes have the edge +0, which is above."""
    chunk = _coded(name)
    chunk.cells[K_CELL][:, 0] = 0x8000
    strings = encode_chunk(chunk)
    put_code(chunk, strings, K_CELL, 5 * WIDTH, 0x80)
    return Refused(21, chunk, lay_out(chunk, strings), spoils=EXACT)


def _exact_rank(name: str) -> Refused:
    """A rank of all ones, where the values that share the code are fewer."""
    chunk = _coded(name)
    strings = encode_chunk(chunk)
    place = next(p for p in _places(chunk) if p.values < 1 << p.width)
    text = strings.of_class[EXACT][K_CELL]
    ranks = int.from_bytes(text[2:], "little") | ((1 << place.width) - 1) << place.bit
    strings.of_class[EXACT][K_CELL] = text[:2] + ranks.to_bytes(len(text) - 2, "little")
    return Refused(21, chunk, lay_out(chunk, strings), spoils=EXACT)


def _more_bits(text: bytes) -> bytes:
    """Count one bit more where the last byte has room, else one fewer."""
    bits = int.from_bytes(text[:2], "little")
    bits += 1 if bits % 8 else -1
    assert -(-bits // 8) == len(text) - 2
    return bits.to_bytes(2, "little") + text[2:]


def _bits_moved(name: str) -> Refused:
    """Two blocks whose lengths add up, a byte moved from one to the other."""
    chunk = _coded(name, 80)
    strings = encode_chunk(chunk)
    text = strings.of_class[EXACT][K_CELL]
    first, second = (int.from_bytes(text[at : at + 2], "little") for at in (0, 2))
    head = (first + 8).to_bytes(2, "little") + (second - 8).to_bytes(2, "little")
    strings.of_class[EXACT][K_CELL] = head + text[4:]
    return Refused(20, chunk, lay_out(chunk, strings), spoils=EXACT)


_HEADS = ShardScheme.HEADS
REFUSED: dict[str, Maker] = {
    "profile-unknown": _profile_unknown,
    "table-truncated": _table_truncated,
    "table-bit-28": _entry(3, 1, ANCHOR, 0, 1 << 28),
    "table-bit-29": _entry(3, 3, RESIDUAL, 0, 1 << 29),
    "table-bit-30": _entry(3, 0, EXACT, 0, 1 << 30),
    "table-misaligned": _entry(4, 3, ANCHOR, 4, 0),
    "table-inside": _entry(5, 0, ANCHOR, -8, 0),
    "table-overlap": _entry(5, 2, ANCHOR, -8, 0),
    "table-order": _entry(5, 3, ANCHOR, -128, 0),
    "table-order-empty": _entry(5, 0, RESIDUAL, 8, 0),
    "table-outside": _entry(6, 3, ANCHOR, 4096 - 256 - 32, 0),
    "table-offset-huge": _entry(6, 3, ANCHOR, 0xFFFF_FFF8 - 256, 0),
    "table-length-huge": _entry(6, 3, ANCHOR, 0, (1 << 28) - 1 - 64),
    "root-table": _root_table,
    "root-key": _known(chunk_key="00" * 16),
    "root-kv-group": _place(Lane(1, Shard(_HEADS, 0, 1))),
    "root-shard-scheme": _place(Lane(0, Shard())),
    "root-shard-index": _place(Lane(0, Shard(_HEADS, 1, 2))),
    "root-shard-count": _place(Lane(0, Shard(_HEADS, 0, 2))),
    "root-part-index": _place(Lane(0, Shard(_HEADS, 0, 1), Part(index=1))),
    "root-part-profile": _place(Lane(0, Shard(_HEADS, 0, 1), Part(b"\1" + bytes(7)))),
    "root-class": _root_class,
    "root-generation": _root_generation,
    "root-profile": _root_profile,
    "root-residual": _other_put(RESIDUAL),
    "root-exact": _other_put(EXACT),
    "sum-anchor": _sum(8, ANCHOR, V_CELL, 100),
    "sum-raw": _sum(8, ANCHOR, V_CELL, 63),
    "sum-residual": _sum(9, RESIDUAL, K_CELL, 0),
    "sum-exact": _sum(9, EXACT, K_CELL, 9),
    "sum-empty": _sum_empty,
    "raw-short": _string(10, ANCHOR, lambda text: text[:-1]),
    "raw-long": _string(10, ANCHOR, lambda text: text + b"\0"),
    "coded-fp32": _coded_fp32,
    "anchor-short": _string(12, ANCHOR, lambda text: text[:-1]),
    "anchor-long": _string(12, ANCHOR, lambda text: text + b"\0"),
    "anchor-empty": _string(12, ANCHOR, lambda _: b""),
    "residual-short": _string(13, RESIDUAL, lambda text: text[:-1]),
    "residual-long": _string(13, RESIDUAL, lambda text: text + b"\0"),
    "group-nan": _group(14, 0x7FC0, 0x7FC0),
    "group-infinite": _group(14, 0x3F80, 0x7F80),
    "group-infinite-lo": _group(14, 0xFF80, 0x3F80),
    "group-order": _group(15, 0x3F81, 0x3F80),
    "group-order-zeros": _group(15, 0x0000, 0x8000),
    "group-zeros": _group(16, 0x8000, 0x0000),
    "group-span": _group(17, 0xFF7F, 0x7F7F),
    "exact-empty": _string(18, EXACT, lambda _: b""),
    "exact-short-head": _string(18, EXACT, lambda text: text[:1]),
    "exact-short": _string(19, EXACT, lambda text: text[:-1]),
    "exact-long": _string(19, EXACT, lambda text: text + b"\0"),
    "exact-bits": _string(20, EXACT, _more_bits),
    "exact-bits-huge": _string(20, EXACT, lambda text: b"\xff\xff" + text[2:].ljust(8192, b"\0")),
    "exact-bits-moved": _bits_moved,
    "exact-code": _exact_code,
    "exact-code-between": _exact_code_between,
    "exact-code-zero": _exact_code_zero,
    "exact-rank": _exact_rank,
}


def make(name: str) -> Refused:
    """Return the vector of a name."""
    return REFUSED[name](name)

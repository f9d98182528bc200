"""Chunks written with kvd's own code: values in, three strips with tables and roots out.

Also lays out strings that no encoder makes, for vectors that must be refused.
"""

from dataclasses import dataclass

import numpy as np

from kvd.checksum import checksum, strip_root
from kvd.codec import CodecProfile, cell_bytes_max, cell_specs, encode_cells
from kvd.codec.layout import CellSpec, cell_aligned, cell_geometry
from kvd.format.strip import pack_table
from kvd.shape import BlockShape, CellGrid, cell_grid
from kvd.table import LENGTH_MASK, padded, table_bytes
from kvd.types import CLASS_COUNT, Lane, PlaneClass

ENTRY = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is written and under which names; `cells` [tokens, width] of bits in strip order."""

    shape: BlockShape
    lane: Lane
    profile: CodecProfile
    tokens: int
    first: bool
    key: bytes
    generation: int
    cells: tuple[np.ndarray, ...]

    @property
    def grid(self) -> CellGrid:
        return cell_grid(self.shape, self.lane)

    def specs(self) -> list[CellSpec]:
        """Return the spec of every cell."""
        specs, index = cell_specs(self.profile, self.grid, self.tokens, self.first)
        return [specs[i] for i in index]


@dataclass(slots=True)
class Strings:
    """Per class the string of every cell, and which cells are raw: what `lay_out` takes."""

    of_class: tuple[list[bytes], list[bytes], list[bytes]]
    raw: list[bool]


@dataclass(slots=True)
class Strip:
    """A strip and the names under which its root was made."""

    chunk: Chunk
    plane_class: PlaneClass
    body: bytearray
    cell_count: int
    size: int
    root: int = 0

    def rebind(self) -> None:
        """Make the root anew from the table as it is now."""
        chunk = self.chunk
        self.root = strip_root(
            chunk.key, chunk.lane, self.plane_class, chunk.generation, chunk.profile.id,
            bytes(self.body[: ENTRY * self.cell_count]),
        )  # fmt: skip

    def begin(self, cell: int) -> int:
        return int.from_bytes(self.body[ENTRY * cell : ENTRY * cell + 4], "little")

    def end(self) -> int:
        """Return where the last cell ends."""
        at = ENTRY * (self.cell_count - 1)
        return self.begin(self.cell_count - 1) + (
            int.from_bytes(self.body[at + 4 : at + 8], "little") & int(LENGTH_MASK)
        )

    def patch(self, at: int, data: bytes) -> None:
        """Overwrite bytes, root and checksums staying as they are."""
        assert at + len(data) <= len(self.body)
        self.body[at : at + len(data)] = data

    def patch_entry(self, cell: int, offset: int, word: int, data: bytes | None = None) -> None:
        """Overwrite a table entry (with the checksum of `data` when given), and the root."""
        at = ENTRY * cell
        self.patch(at, offset.to_bytes(4, "little") + word.to_bytes(4, "little"))
        if data is not None:
            self.patch(at + 8, checksum(data).to_bytes(8, "little"))
        self.rebind()


@dataclass(frozen=True, slots=True)
class Written:
    strips: tuple[Strip, Strip, Strip]


def encode_chunk(chunk: Chunk) -> Strings:
    """Return the strings of all cells as kvd's codec makes them."""
    specs = chunk.specs()
    assert len(chunk.cells) == len(specs), (len(chunk.cells), len(specs))
    for spec, cell in zip(specs, chunk.cells, strict=True):
        assert cell.shape == (spec.tokens, spec.width), (cell.shape, spec)
        assert cell.dtype.itemsize == spec.dtype.size_bytes and cell.flags.c_contiguous
    bounds = [cell_bytes_max(spec) for spec in specs]
    rooms = [sum(cell_aligned(bound[c]) for bound in bounds) for c in range(CLASS_COUNT)]
    out = [np.zeros(room, np.uint8) for room in rooms]
    distinct, index = cell_specs(chunk.profile, chunk.grid, chunk.tokens, chunk.first)
    sources = np.array([cell.ctypes.data for cell in chunk.cells], np.uint64)
    strides = np.array([spec.width for spec in specs], np.int64)
    encoded = encode_cells(distinct, index, sources, strides, out, (0,) * CLASS_COUNT)
    places = [zip(encoded.offsets[c], encoded.lengths[c], strict=True) for c in range(CLASS_COUNT)]
    strings = [
        [out[c][at : at + size].tobytes() for at, size in places[c]] for c in range(CLASS_COUNT)
    ]
    return Strings((strings[0], strings[1], strings[2]), [bool(raw) for raw in encoded.raw])


def put_code(chunk: Chunk, strings: Strings, cell: int, element: int, code: int) -> None:
    """Give one element of a coded cell another code, its rank staying as it is."""
    spec = chunk.specs()[cell]
    geometry = cell_geometry(spec)
    first = geometry.anchor - spec.anchor_planes * geometry.plane
    planes = strings.of_class[0][cell][first:] + strings.of_class[1][cell]
    changed = bytearray(planes)
    for plane in range(8):
        at, bit = plane * geometry.plane + element // 8, 1 << element % 8
        changed[at] = changed[at] & ~bit | (bit if code >> (7 - plane) & 1 else 0)
    size = geometry.anchor - first
    strings.of_class[0][cell] = strings.of_class[0][cell][:first] + bytes(changed[:size])
    strings.of_class[1][cell] = bytes(changed[size:])


def lay_out(chunk: Chunk, strings: Strings, gap: int = 0) -> Written:
    """Lay strings out as strips, `gap` further bytes before every cell."""
    return Written(tuple(_strip(chunk, strings, c, gap) for c in PlaneClass))


def _strip(chunk: Chunk, strings: Strings, plane_class: PlaneClass, gap: int) -> Strip:
    texts = strings.of_class[plane_class]
    at, offsets = table_bytes(len(texts)), []
    for text in texts:
        offsets.append(cell_aligned(at) + gap)
        at = offsets[-1] + len(text)
    table = pack_table(
        np.array(offsets, np.uint32),
        np.array([len(text) for text in texts], np.uint32),
        np.array(strings.raw, np.bool_),
        np.array([checksum(text) for text in texts], np.uint64),
    )
    body = bytearray(padded(at))
    body[: table.nbytes] = table.tobytes()
    for offset, text in zip(offsets, texts, strict=True):
        body[offset : offset + len(text)] = text
    strip = Strip(chunk, plane_class, body, len(texts), len(body))
    strip.rebind()
    return strip


def write_chunk(chunk: Chunk) -> Written:
    """Encode a chunk and lay it out as kvd does."""
    return lay_out(chunk, encode_chunk(chunk))

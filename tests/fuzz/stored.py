"""Rows of the table: strips as another client made them, and the cells in them.

A root proves who wrote a strip, not that he wrote what can be read: so roots always fit here.
"""

import struct
from dataclasses import replace
from functools import cache

import numpy as np

from kvd.checksum import checksum, strip_root
from kvd.codec import EXACT, PLANES
from kvd.core.effects import Deliver, LaneColumns
from kvd.daemon.pieces import BrokenStrip, class_pieces
from kvd.disk.carrier import HostCarrier
from kvd.disk.files import OsFiles
from kvd.disk.pieces import Pieces, Roots
from kvd.format.strip import parse_table
from kvd.limits import PAGE_BYTES
from kvd.shape import cell_grid
from kvd.table import LENGTH_MASK, TABLE_ENTRY, table_bytes
from kvd.testing.disk_strips import CELLS, make_strip, names_of
from kvd.types import PlaneClass
from tests.fuzz.parser import Length, Parser
from tests.golden import accepted, kvd_reader
from tests.golden.descriptions import lane_of, shape_of
from tests.golden.test_vectors import ACCEPT, HERE, entry, manifest, strips_of
from tests.reference import decoder
from tests.unit.test_codec_cells import BACKENDS, backend_in_use, random_bits
from tests.unit.test_codec_malformed import SPECS, Strings, assert_alike, coded_strings

# Small ones, of both kinds of cells, both dtypes, several cells and sinks.
VECTORS = ("one-token", "all-sinks", "low-codes", "longer", "raw-dtypes", "lane-part")
NAMES = tuple(plane_class.name.lower() for plane_class in PlaneClass)
STRING_BYTES_MAX = 1 << 14
PIECE_BYTES = 5000
_HEAD = struct.Struct("<BBHHH")  # Spec and raw, planes, length of each string.


@cache
def _joined(name: str) -> bytes:
    return (HERE / ACCEPT / f"{name}.strips.bin").read_bytes()


def _tables(name: str, data: bytes) -> dict[str, tuple[int, int]]:
    """Return where the table of each strip lies in the bytes of all."""
    known = entry(ACCEPT, name)
    cells = cell_grid(shape_of(known["shape"]), lane_of(known["lane"])).cell_count
    size = cells * TABLE_ENTRY.itemsize
    begins = {each: known["strips"][each]["begin"] for each in NAMES}
    return {each: (at, at + size) for each, at in begins.items() if at + size <= len(data)}


def _known(name: str, strips: dict[str, bytes]) -> dict:
    """Return what a reader knows of a chunk, with roots that its tables have."""
    known = entry(ACCEPT, name)
    lane, key = lane_of(known["lane"]), bytes.fromhex(known["chunk_key"])
    cells = cell_grid(shape_of(known["shape"]), lane).cell_count
    places = {
        each: {**known["strips"][each], "root": f"{root:016x}"}
        for c, each in enumerate(NAMES)
        for root in [
            strip_root(
                key, lane, PlaneClass(c), known["generation"], known["profile"],
                strips[each][: cells * TABLE_ENTRY.itemsize],
            )
        ]
    }  # fmt: skip
    return {**known, "strips": places}


def _summed(data: bytes) -> bytes:
    """Return the same with the checksums of all cells that lie inside made to fit."""
    if not data:
        return data
    name = VECTORS[data[0] % len(VECTORS)]
    out = bytearray(data)
    strips = {each: entry(ACCEPT, name)["strips"][each] for each in NAMES}
    for each, (begin, end) in _tables(name, data[1:]).items():
        table = np.frombuffer(out, TABLE_ENTRY, (end - begin) // TABLE_ENTRY.itemsize, 1 + begin)
        strip = data[1:][begin : strips[each]["end"]].ljust(strips[each]["size"], b"\0")
        for cell in table:
            at, length = int(cell["offset"]), int(cell["length"] & LENGTH_MASK)
            if at + length <= len(strip):
                cell["checksum"] = checksum(strip[at : at + length])
    return bytes(out)


def _take_chunk(data: bytes) -> bool:
    """The first byte says which chunk it was. kvd and the reference decoder must say the same."""
    if not data:
        return False
    name = VECTORS[data[0] % len(VECTORS)]
    planes = (EXACT, 4, PLANES)[data[0] // len(VECTORS) % 3]
    strips = strips_of(entry(ACCEPT, name), data[1:])
    strips = {
        each: strip[: entry(ACCEPT, name)["strips"][each]["size"]] for each, strip in strips.items()
    }
    known = _known(name, strips)
    expected = _by_reference(known, strips, planes)
    for backend in BACKENDS:
        with backend_in_use(backend):
            try:
                found = kvd_reader.read_chunk(known, strips, planes, accepted.TEST_PROFILES)
            except kvd_reader.Refusal:
                found = None
        assert found == expected, f"{backend} and the reference decoder differ"
    return expected is not None


def _by_reference(known: dict, strips: dict[str, bytes], planes: int) -> bytes | None:
    profiles = {int(number): each for number, each in manifest(ACCEPT)["profiles"].items()}
    try:
        cells = decoder.read_chunk(known, strips, "exact" if planes == EXACT else planes, profiles)
    except decoder.Refused:
        return None
    sizes = [decoder.BYTES_OF_DTYPE[tensor["dtype"]] for tensor in decoder.tensors_of_cells(known)]
    return b"".join(
        np.array(cell, f"<u{size}").tobytes() for cell, size in zip(cells, sizes, strict=True)
    )


def _chunks() -> list[bytes]:
    readings = len(VECTORS) * np.arange(3)
    return [
        bytes([at + reading]) + _joined(name)
        for at, name in enumerate(VECTORS)
        for reading in readings.tolist()
    ]


# ---- cells ----


def _take_cell(data: bytes) -> bool:
    """Strings laid at the end of memory that may be read; every backend says the same."""
    if len(data) < _HEAD.size:
        return False
    which, planes, *lengths = _HEAD.unpack_from(data)
    strings, at = [], _HEAD.size
    for length in lengths:
        strings.append(data[at : at + length % STRING_BYTES_MAX])
        at += len(strings[-1])
    planes = EXACT if planes % (PLANES + 1) == 0 else planes % (PLANES + 1)
    cell = Strings(bool(which & 0x80), (strings[0], strings[1], strings[2]))
    return assert_alike(_specs()[which % 0x80 % len(_specs())], cell, planes)


def _specs():
    return [spec for spec in SPECS if spec.tokens * spec.width < 1000]


@cache
def _cells() -> tuple[bytes, ...]:
    rng, seeds = np.random.default_rng(1), []
    for number, spec in enumerate(_specs()):
        coded = coded_strings(spec, random_bits(rng, spec.dtype, (spec.tokens, spec.width)))
        lengths = [len(string) for string in coded.strings]
        head = _HEAD.pack(number | coded.raw << 7, 0, *lengths)
        seeds.append(head + b"".join(coded.strings))
    return tuple(seeds)


# ---- strips whose tables a daemon reads ----


def _take_root(data: bytes) -> bool:
    """A strip as the disk's hand, or a daemon that takes dram over, finds it in memory."""
    strip = replace(make_strip(2), data=data)
    if len(data) < table_bytes(CELLS) or len(data) % PAGE_BYTES:
        return False
    memory = np.frombuffer(data, np.uint8)
    pieces = Pieces([], [], [], [len(data)], [memory.ctypes.data])
    carrier = HostCarrier(OsFiles())
    assert Roots(names_of([strip]), carrier).unfit([0], pieces) == []
    other = replace(strip, generation=strip.generation + 1)
    wrong = names_of([other])
    wrong.roots[0] = strip.root
    assert Roots(wrong, carrier).unfit_strips([0], pieces) == [0]
    unfit = Roots(names_of([strip]), carrier).unfit_strips([0], pieces)
    assert (parse_table(memory, CELLS, len(data)) is None) == bool(unfit)
    return not unfit


def _take_delivery(data: bytes) -> bool:
    """Pieces of a strip whose table its writer changed: each byte once, all of them inside."""
    if not 0 < len(data) <= 16 * PAGE_BYTES:
        return False
    sizes = np.array([len(data)], np.uint32)
    none, one = np.zeros(0, np.uint64), np.zeros(1, np.uint64)
    empty = np.zeros(0, np.uint32)
    columns = LaneColumns(
        one, one, (sizes, empty, empty), (one, none, none), (sizes, empty, empty),
        (one, none, none),
    )  # fmt: skip
    for begin, end in ((0, CELLS), (1, 2), (CELLS - 1, 1 << 31)):
        deliver = Deliver(1, 1, (1, 0, 0), (columns,), begin, end, (CELLS,), (1,), 0)
        reached = 0
        try:
            for place, piece in class_pieces(
                deliver, PlaneClass.ANCHOR, lambda slab: memoryview(data), PIECE_BYTES
            ):
                assert place.offset >= reached and 0 < len(piece) <= PIECE_BYTES
                assert bytes(piece) == data[place.offset : place.offset + len(piece)]
                reached = place.offset + len(piece)
        except BrokenStrip:
            return False
        assert table_bytes(CELLS) <= reached <= len(data)
    return True


PARSERS = (
    Parser(
        "disk_strip", _take_root, lambda: [make_strip(2).data, make_strip(4, pages=1).data],
        ("disk/pieces.py:unfit_strips", "disk/pieces.py:unfit", "format/strip.py:sound_tables",
         "disk/files.py:copy_memory"),
        lengths=(Length(0, "<I"), Length(4, "<I")),
    ),
    Parser(
        "delivery", _take_delivery, lambda: [make_strip(2).data, make_strip(4, pages=3).data],
        ("daemon/pieces.py:_find_bands", "daemon/pieces.py:_cut"),
        lengths=(Length(0, "<I"), Length(4, "<I")),
    ),
    Parser(
        "strips", _take_chunk, _chunks,
        ("codec/batch.py:decode_cells", "codec/batch.py:check_cells", "codec/native.py:decode",
         "codec/batch.py:_as_bytes", "format/strip.py:parse_table"),
        mend=_summed, lengths=(Length(1, "<I"), Length(5, "<I")),
        tries=40,
    ),
    Parser(
        "cells", _take_cell, _cells,
        ("codec/batch.py:decode_cells", "codec/native.py:decode", "codec/reference.py:decode_cell",
         "codec/reference.py:_merged_codes", "codec/reference.py:_ranks",
         "codec/reference_batch.py:decode", "codec/reference_batch.py:_memory"),
        tries=60,
    ),
)  # fmt: skip

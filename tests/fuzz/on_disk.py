"""Rows of the table: what lies in data directories, and dram that is kept over a restart."""

import struct
from functools import cache
from pathlib import Path

import numpy as np

from kvd.catalog import loading, scan
from kvd.catalog.contract import Contents
from kvd.checking.holdings import holdings_of, overlapping, unknown_profiles
from kvd.checksum import checksum
from kvd.daemon.handover import Whose, handover_of, left_of
from kvd.disk.canary import MAGIC as CANARY
from kvd.errors import Fault
from kvd.format.handover import FIELDS_BYTES, pack_handover, parse_handover
from kvd.format.keyspaces import pack_keyspace, parse_keyspace
from kvd.format.page import HEAD_BYTES, Refused, seal_page, unseal_page
from kvd.format.records import (
    DIRECTORIES_MAX,
    SEGMENT,
    pack_meta,
    parse_meta,
    parse_segments,
    seal_segments,
    sound_segments,
)
from kvd.format.rows import (
    KEY_BYTES,
    ROW,
    keys_of,
    lane_of,
    lane_starts,
    parse_rows,
    seal_rows,
    sound_rows,
)
from kvd.format.segment import (
    pack_segment_head,
    parse_segment_head,
    parse_segment_name,
    segment_name,
)
from kvd.format.strip import pack_table, parse_table
from kvd.format.superblock import pack_superblock, parse_superblock
from kvd.identity import digest_of_keyspace_bytes
from kvd.limits import PAGE_BYTES
from kvd.shape import validate_shape
from kvd.table import LENGTH_MASK, RAW_FLAG, table_bytes
from kvd.testing.disk_strips import CELLS, make_strip
from kvd.testing.scene import Scene
from tests.fuzz.parser import Length, Parser
from tests.golden.disk_sets import ACCEPTED, Image
from tests.unit.test_core_handover import end, put_three, succeed

_SUM = 16  # Where a page's checksum stands; it does not cover itself.
MINE = Whose(b"/run/kvd", bytes(16))


@cache
def _images() -> tuple[Image, ...]:
    return tuple(make() for make in ACCEPTED.values())


def _files(name: str) -> list[bytes]:
    """Return the first pages of all golden files whose path has a part of that name."""
    found = {
        data[:PAGE_BYTES]
        for image in _images()
        for path, data in image.files.items()
        if name in path.split("/") and any(data[:PAGE_BYTES])
    }
    return sorted(found)


def _records(table: str) -> list[bytes]:
    """Return the values of the golden records of a table; of rows and segments with their keys."""
    found = set()
    for image in _images():
        for record in image.records or ():
            if record is not None and record[0] == table:
                found.add(record[1] + record[2] if table in ("rows", "segments") else record[2])
    return sorted(found)


def summed(data: bytes) -> bytes:
    """Return a page with the checksum that its content has."""
    if len(data) < HEAD_BYTES:
        return data
    return (
        data[:_SUM] + struct.pack("<Q", checksum(data[:_SUM] + data[HEAD_BYTES:]))
        + data[HEAD_BYTES:]
    )  # fmt: skip


def _page(parse, pack):
    """Return a parser of sealed bytes that compares what it took with what is packed again."""

    def take(data: bytes) -> bool:
        found = parse(data)
        if isinstance(found, Refused):
            assert "\n" not in found.message
            return False
        assert pack(found) == data, found
        return True

    return take


def _canary(data: bytes) -> bool:
    return not isinstance(unseal_page(data, CANARY, 16), Refused)


def _segment_name(data: bytes) -> bool:
    name = data.decode("latin-1")
    number = parse_segment_name(name)
    assert number is None or segment_name(number) == name
    return number is not None


def _take_meta(data: bytes) -> bool:
    meta = parse_meta(data)
    if isinstance(meta, Refused):
        return False
    assert len(set(meta.directories)) == len(meta.directories) <= DIRECTORIES_MAX
    assert pack_meta(meta) == data
    return True


def _keyspace(data: bytes) -> bool:
    found = parse_keyspace(digest_of_keyspace_bytes(data), data)
    assert isinstance(parse_keyspace(bytes(32), data), Refused)
    if isinstance(found, Refused):
        return False
    validate_shape(found[0].shape)
    assert pack_keyspace(*found) == (digest_of_keyspace_bytes(data), data)
    return True


# ---- columns ----


def _take_rows(data: bytes) -> bool:
    rows = parse_rows(data)
    if rows is None:
        return False
    sound = rows[sound_rows(rows)]
    again = sound.copy()
    seal_rows(again)
    assert again.tobytes() == sound.tobytes() and keys_of(sound).itemsize == KEY_BYTES
    for at in lane_starts(sound).tolist():
        lane_of(sound[at])
    assert (sound["page"].astype(np.int64) + sound["pages"] <= 1 << 32).all()
    return len(sound) == len(rows) > 0


def _mend_rows(data: bytes, dtype: np.dtype = ROW) -> bytes:
    rows = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype).copy()
    for row in rows:
        row["checksum"] = checksum(row.tobytes()[:-8])
    return rows.tobytes()


def _take_segments(data: bytes) -> bool:
    rows = parse_segments(data)
    if rows is None:
        return False
    sound = rows[sound_segments(rows)]
    again = sound.copy()
    seal_segments(again)
    assert again.tobytes() == sound.tobytes()
    return len(sound) == len(rows) > 0


def _mend_segments(data: bytes) -> bytes:
    return _mend_rows(data, SEGMENT)


def _take_table(data: bytes) -> bool:
    """The last 8 bytes say how many cells there are, and how large the strip is."""
    if len(data) < 8:
        return False
    cells, size = struct.unpack("<II", data[-8:])
    # As callers do: a count of a cell grid, a size of a promise or a row.
    cells, size = cells % (1 << 23), min(size, 0xF000_0000)
    strip = np.frombuffer(data[:-8], np.uint8)
    table = parse_table(strip, cells, size)
    if table is None:
        return False
    lengths, begins = table["length"] & LENGTH_MASK, table["offset"].astype(np.int64)
    assert begins[0] >= table_bytes(cells) and begins[-1] + lengths[-1] <= size
    assert (begins[1:] >= begins[:-1] + lengths[:-1]).all() and not (begins % 8).any()
    again = pack_table(table["offset"], lengths, table["length"] & RAW_FLAG != 0,
                       table["checksum"])  # fmt: skip
    assert again.tobytes() == table.tobytes()
    return True


def _tables() -> list[bytes]:
    strip = make_strip(3).data
    sized = struct.pack("<II", CELLS, len(strip))
    return [strip[: table_bytes(CELLS)] + sized, strip[:400] + sized, bytes(16) + sized]


# ---- the catalog as its scan gives it ----


def _take_entries(data: bytes) -> bool:
    """Look at what a catalog holds as a check does."""
    contents = contents_of(data)
    if contents is None:
        return False
    holdings = holdings_of(contents)
    assert len(holdings.kept) == len(contents.rows) == len(holdings.cells())
    overlapping(holdings.strips)
    unknown_profiles(contents.rows)
    return not contents.refused


def contents_of(data: bytes) -> Contents | None:
    """Return what a loader believes of keys and values as the scan of a catalog gives them."""
    others = b"".join(
        scan.ENTRY.pack(number, len(key), len(value)) + key + value
        for number, key, value in _cut(data)
        if number != _ROWS or len(key + value) != ROW.itemsize
    )
    found = loading._sorted(Path("/catalog"), others)
    if isinstance(found, Fault):
        return None
    rows = {key: key + value for number, key, value in _cut(data) if number == _ROWS}
    whole = [row for _, row in sorted(rows.items()) if len(row) == ROW.itemsize]
    return loading._checked(found, parse_rows(b"".join(whole)))


_ROWS = scan.TABLES.index(b"rows")
_ENTRY = struct.Struct("<BBH")  # Table, length of key, length of value.


def _cut(data: bytes) -> list[tuple[int, bytes, bytes]]:
    found, at = [], 0
    while at + _ENTRY.size <= len(data):
        number, key, value = _ENTRY.unpack_from(data, at)
        begin, at = at + _ENTRY.size, at + _ENTRY.size + key + value
        found.append((number % len(scan.TABLES), data[begin:][:key], data[begin + key : at]))
    return found


def mend_entries(data: bytes) -> bytes:
    mends = {_ROWS: _mend_rows, scan.TABLES.index(b"segments"): _mend_segments}
    out = b""
    for number, key, value in _cut(data):
        whole = key + value
        mended = mends.get(number, bytes)(whole)
        whole = mended if len(mended) == len(whole) else whole
        out += _ENTRY.pack(number, len(key), len(value)) + whole
    return out


def entries() -> list[bytes]:
    names = [name.decode() for name in scan.TABLES]
    return [
        b"".join(
            _ENTRY.pack(names.index(table), len(key), len(value)) + key + value
            for table, key, value in filter(None, image.records)
        )
        for image in _images()
        if image.records
    ]


# ---- dram over a restart ----


@cache
def _left() -> tuple[bytes, bytes, int]:
    """Return what a daemon left, the same of one that had nothing, and the size of its slabs."""
    scene = Scene(4)
    nothing = end(scene)
    scene = Scene(4)
    put_three(scene)
    left = end(scene)
    packed = (_pack(each) for each in (left, nothing))
    return *packed, left.slab_bytes  # type: ignore[return-value]


def _pack(left) -> bytes:
    return pack_handover(
        handover_of(left, MINE, {slab.slab: (1, slab.slab) for slab in left.slabs})
    )


def _take_handover(data: bytes) -> bool:
    """Take it as far as a daemon does: its words, then a core whose invariants are looked at."""
    found = parse_handover(data)
    if isinstance(found, Refused):
        return False
    assert pack_handover(found) == data
    left = left_of(found)
    if isinstance(left, Refused):
        return False
    files = list(left[1].values())
    assert len(set(files)) == len(files), "two slabs are one file"
    if found.slab_bytes == _left()[2]:
        succeed(left[0])
    return True


_COUNTS = HEAD_BYTES + FIELDS_BYTES - 16
PARSERS = (
    Parser(
        "superblock", _page(parse_superblock, pack_superblock), lambda: _files("superblock"),
        ("format/superblock.py:parse_superblock", "format/page.py:unseal_page",
         "format/page.py:unseal"),
        mend=summed, lengths=(Length(HEAD_BYTES + 32, "<Q"),),
    ),
    Parser(
        "segment_head", _page(parse_segment_head, pack_segment_head), lambda: _files("segments"),
        ("format/segment.py:parse_segment_head",),
        mend=summed,
        lengths=(Length(HEAD_BYTES + 16, "<I"), Length(HEAD_BYTES + 32, "<Q")),
    ),
    Parser(
        "canary", _canary, lambda: [seal_page(CANARY, bytes(range(16)))],
        ("format/page.py:unseal_page",), mend=summed,
    ),
    Parser(
        "segment_name", _segment_name, lambda: [b"00000000", b"99999999", b"00000017"],
        ("format/segment.py:parse_segment_name",),
    ),
    Parser(
        "catalog_meta", _take_meta, lambda: _records("meta"), ("format/records.py:parse_meta",),
        mend=summed, lengths=(Length(HEAD_BYTES + 20, "<I"),),
    ),
    Parser(
        "catalog_keyspace", _keyspace, lambda: _records("keyspaces"),
        ("format/keyspaces.py:parse_keyspace", "format/keyspaces.py:_split",
         "format/keyspaces.py:_read_field", "format/keyspaces.py:_read_shape"),
        lengths=(Length(0, "<I"),),
    ),
    Parser(
        "catalog_rows", _take_rows, lambda: _records("rows"),
        ("format/rows.py:parse_rows", "format/rows.py:sound_rows", "format/rows.py:sound_lanes",
         "format/rows.py:lane_of", "format/rows.py:keys_of", "format/rows.py:lane_starts",
         "format/rows.py:_checksums"),
        mend=_mend_rows,
    ),
    Parser(
        "catalog_segments", _take_segments, lambda: _records("segments"),
        ("format/records.py:parse_segments", "format/records.py:sound_segments",
         "format/records.py:_checksums"),
        mend=_mend_segments,
    ),
    Parser(
        "catalog_entries", _take_entries, entries,
        ("catalog/loading.py:_entries", "catalog/loading.py:_sorted"), mend=mend_entries,
        tries=60,
    ),
    Parser(
        "strip_table", _take_table, _tables,
        ("format/strip.py:parse_table", "format/strip.py:sound_tables"),
        lengths=(Length(table_bytes(CELLS), "<I"), Length(4, "<I"), Length(0, "<I")),
    ),
    Parser(
        "handover", _take_handover, lambda: list(_left()[:2]),
        ("format/handover.py:parse_handover", "format/handover.py:_split",
         "format/handover.py:_is_text",
         "daemon/handover.py:left_of", "daemon/handover.py:_listed"),
        mend=summed,
        lengths=(
            Length(HEAD_BYTES, "<Q"), Length(HEAD_BYTES + 16, "<Q"), Length(_COUNTS, "<I"),
            Length(_COUNTS + 4, "<I"), Length(_COUNTS + 8, "<I"), Length(_COUNTS + 12, "<I"),
            Length(HEAD_BYTES + FIELDS_BYTES, "<I"),
        ),
        tries=60,
    ),
)  # fmt: skip

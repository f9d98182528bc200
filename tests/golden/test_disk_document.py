"""What docs/format.md says of data directories is what kvd does: structures, names, rules."""

import re
from fnmatch import fnmatch

import numpy as np

from kvd.catalog.contract import DATA_NAME, Table
from kvd.checksum import checksum
from kvd.disk import canary, directories, recognising
from kvd.format import page, records, rows, segment, superblock
from kvd.format.keyspaces import KEYSPACE_BYTES_MAX
from kvd.limits import MIB, PAGE_BYTES
from kvd.types import SegmentState
from tests.golden import document
from tests.golden.disk_refused import REFUSED

TYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "f64": "<f8"}
HEAD = document.tables_of("14.1")


def dtype_of(fields: list[list[str]]) -> np.dtype:
    """Return the structure of a table of fields, whose offsets must follow each other."""
    end, described = 0, []
    for number, (offset, size, kind, name, *_) in enumerate(fields):
        assert int(offset) == end, (name, offset, end)
        end += int(size)
        base, _, count = kind.partition("[")
        code = f"{size}u1" if base == "bytes" else TYPES[base]
        if count:
            code = f"{count.rstrip(']')}{TYPES[base]}"
        # Two pads may have one name.
        described.append((f"{name}.{number}", code))
    dtype = np.dtype(described)
    assert dtype.itemsize == end
    return dtype


def said_of(dtype: np.dtype) -> list[tuple]:
    """Return name, offset and form of each field, whatever number its name has."""
    assert dtype.names and dtype.fields
    return [
        (name.split(".")[0], dtype.fields[name][1], dtype.fields[name][0].subdtype
         or dtype.fields[name][0]) for name in dtype.names
    ]  # fmt: skip


def fields_of(dtype: np.dtype, data: bytes, names: list[str]) -> list[bytes]:
    """Return the bytes of fields, by the document's structure."""
    found = dict(zip([name.split(".")[0] for name in dtype.names], dtype.names, strict=True))
    return [data[dtype.fields[found[n]][1] :][: dtype.fields[found[n]][0].itemsize] for n in names]


def test_head():
    structure = dtype_of(HEAD)
    assert structure.itemsize == page.HEAD_BYTES
    data = page.seal(b"kvdtests", b"body")
    magic, version, zero, sum_of = fields_of(
        structure, data, ["magic", "version", "zero", "checksum"]
    )
    assert magic == b"kvdtests" and zero == bytes(4) and data[structure.itemsize :] == b"body"
    assert int.from_bytes(version, "little") == page.DISK_FORMAT == int(HEAD[1][4].split(",")[0])
    assert int.from_bytes(sum_of, "little") == checksum(data[:16] + data[24:])
    magics = [superblock.MAGIC, segment.MAGIC, canary.MAGIC, records.MAGIC]
    assert HEAD[0][4].split(", ") == [magic.decode() for magic in magics]


def test_superblock():
    structure = dtype_of(HEAD + document.tables_of("14.2"))
    block = superblock.Superblock(b"d" * 16, b"h" * 16, 8 * MIB)
    data = superblock.pack_superblock(block)
    assert structure.itemsize == len(data) == PAGE_BYTES
    directory, home, size = fields_of(structure, data, ["directory", "home", "segment_bytes"])
    assert (directory, home) == (b"d" * 16, b"h" * 16)
    assert int.from_bytes(size, "little") == 8 * MIB
    said = document.tables_of("14.2")[2][4]
    least, power = re.search(r"multiple of 4096, (\d+) to 2\^(\d+)", said).groups()
    assert int(least) == superblock.SEGMENT_BYTES_MIN
    assert 1 << int(power) == superblock.SEGMENT_BYTES_MAX


def test_segment_head():
    structure = dtype_of(HEAD + document.tables_of("14.3"))
    data = segment.pack_segment_head(segment.SegmentHead(b"d" * 16, 77, 5, 2, 8 * MIB))
    assert structure.itemsize == len(data)
    names = ["directory", "segment", "epoch", "plane_class", "segment_bytes"]
    directory, *numbers = fields_of(structure, data, names)
    assert directory == b"d" * 16
    assert [int.from_bytes(number, "little") for number in numbers] == [77, 5, 2, 8 * MIB]
    [name] = re.findall(r"segments/(\d+)", document.section(13))
    assert segment.segment_name(int(name)) == name


def test_meta_record():
    fields = document.tables_of("15.1")
    structure = dtype_of(HEAD + fields[:-1])
    names = [b"a" * 16, b"b" * 16]
    data = records.pack_meta(records.Meta(11, tuple(names), 13, 17))
    said = fields_of(structure, data, ["generation", "written_bytes", "written_day", "count"])
    assert [int.from_bytes(number, "little") for number in said] == [11, 17, 13, 2]
    offset, size, *_ = fields[-1]
    assert int(offset) == structure.itemsize and size == "16 n"
    assert data[structure.itemsize :] == b"".join(names)
    assert f"0 to {records.DIRECTORIES_MAX}" in fields[-2][4]


def test_segment_record():
    structure = dtype_of(document.tables_of("15.2"))
    assert said_of(structure) == said_of(records.SEGMENT)
    pairs = [text.split() for text in document.tables_of("15.2")[4][4].split(", ")]
    states = {word: int(number) for word, number in pairs}
    assert states == {state.name.lower(): int(state) for state in SegmentState}


def test_row():
    structure = dtype_of(document.tables_of("15.3"))
    assert said_of(structure) == said_of(rows.ROW)
    assert f"8 of {structure.itemsize} bytes" in document.section(18)


def test_databases():
    table = document.table("| database | key | value |")
    assert [row[0] for row in table] == ["meta", "keyspaces", "segments", "rows"]
    assert {row[0] for row in table} == {str(name) for name in Table}
    assert f"first {records.SEGMENT_KEY_BYTES} bytes" in table[2][1]
    assert f"first {rows.KEY_BYTES} bytes" in table[3][1]
    assert table[0][1].startswith(records.META_KEY.decode())
    assert f"at most {KEYSPACE_BYTES_MAX // MIB} MiB" in document.section(15)


def test_names_of_files():
    said = document.section(13)
    names = [
        recognising.LOCK_NAME, recognising.SUPERBLOCK_NAME, canary.CANARY_NAME,
        f"{recognising.SEGMENTS_NAME}/", f"{directories.CATALOG_NAME}/{DATA_NAME}",
    ]  # fmt: skip
    for name in names:
        assert re.search(rf"^  {re.escape(name)}", said, re.MULTILINE), name
    assert f"`{recognising.FRESH_NAME}`" in said and "`catalog.new/`" in said


def test_messages():
    said = " ".join(document.section(16).split())
    foreign = page.unseal(b"x" * 100, superblock.MAGIC)
    assert f"`{foreign.message}`" in said
    for version in (page.DISK_FORMAT - 1, page.DISK_FORMAT + 1):
        whole = page.seal(b"kvdtests", b"body")
        other = whole[:8] + version.to_bytes(4, "little") + whole[12:]
        sum_of = checksum(other[:16] + other[24:]).to_bytes(8, "little")
        refused = page.unseal(other[:16] + sum_of + other[24:], b"kvdtests")
        assert f"`{refused.message}`" in said


def test_rules_and_vectors():
    """Each vector is named by its rule, by its own name or by a pattern that no other rule has."""
    rules = document.rules(16)
    assert list(rules) == list(range(1, len(rules) + 1))
    named = {name: number for number, (_, names) in rules.items() for name in names}
    patterns = {name: number for name, number in named.items() if name.endswith("*")}
    for name, entry in REFUSED.items():
        found = {n for pattern, n in patterns.items() if fnmatch(name, pattern)}
        assert {named[name]} if name in named else found == {entry.rule}, name
        assert named.get(name, entry.rule) == entry.rule, name
    assert {name for name in named if not name.endswith("*")} <= REFUSED.keys()
    assert all(any(fnmatch(name, pattern) for name in REFUSED) for pattern in patterns)


def test_every_field_that_may_be_refused_is_spoilt():
    """Each field with other values to be refused has a vector besides its flipped bit."""
    for section, prefix in (("14.2", "superblock"), ("14.3", "head"), ("15.2", "segment"),
                            ("15.3", "row"), ("15.1", "meta")):  # fmt: skip
        sound = [n for n in REFUSED if n.startswith(prefix) and "-bit-" not in n]
        flips = [n for n in REFUSED if n.startswith(f"{prefix}-bit-")]
        fields = document.tables_of(section)
        assert len(flips) >= len(fields)
        assert len(sound) >= sum("refuse" in row[5] for row in fields) - 2

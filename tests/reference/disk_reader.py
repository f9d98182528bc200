"""A second reader of data directories, written from docs/format.md alone; knows nothing of kvd.

Sections and rules in comments are the document's: rules of section 16, strips by the decoder.
"""

import hashlib
import math
import os
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import lmdb
import xxhash

from tests.reference import decoder

CLASSES = decoder.CLASSES
PAGE = 4096
VERSION = 1
FREE = 1
_NAMES = {  # Section 3, by number.
    kind: {number: name for name, number in names.items()}
    for kind, names in decoder.NUMBERS_OF_NAMES.items()
}


class Refused(Exception):
    """A set that must be refused; `rule` is the number in section 16, `reason` as in 14.1."""

    def __init__(self, rule: int, what: str, reason: str = "damaged") -> None:
        super().__init__(f"rule {rule}: {what}")
        self.rule, self.reason = rule, reason


class Bad(Exception):
    """Bytes that are not what they should be, and why."""

    def __init__(self, what: str, reason: str = "damaged") -> None:
        super().__init__(what)
        self.reason = reason


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Bad(what)


# Section 14: pages.


def body(data: bytes, magic: bytes) -> bytes:
    """Return what is behind a head, in the order of 14.1."""
    if len(data) < 25 or data[:8] != magic:
        raise Bad("another magic", "foreign")
    version, zero, checksum = struct.unpack_from("<IIQ", data, 8)
    must(xxhash.xxh3_64_intdigest(data[:16] + data[24:]) == checksum, "checksum")
    if version != VERSION:
        raise Bad(f"version {version}", "older" if version < VERSION else "newer")
    must(zero == 0, "pad")
    return data[24:]


def page(data: bytes, magic: bytes, size: int) -> bytes:
    """Return the fields of a page, `size` bytes of them."""
    must(len(data) == PAGE, "not one page")
    fields = body(data, magic)
    must(not any(fields[size:]), "pad")
    return fields[:size]


@dataclass(frozen=True)
class Superblock:
    directory: bytes
    home: bytes
    segment_bytes: int


def parse_superblock(data: bytes) -> Superblock:
    fields = page(data, b"kvdsuper", 40)
    block = Superblock(fields[:16], fields[16:32], struct.unpack("<Q", fields[32:])[0])
    must(any(block.directory) and any(block.home), "no name")
    must(block.segment_bytes % PAGE == 0, "segment size")
    must(2 * PAGE <= block.segment_bytes <= 1 << 40, "segment size")
    return block


def parse_head(data: bytes, block: Superblock, number: int) -> tuple[int, int]:
    """Return epoch and class of the segment of this number beside a superblock."""
    fields = page(data, b"kvdsegmt", 40)
    segment, epoch, plane_class = struct.unpack_from("<IIB", fields, 16)
    must(not any(fields[25:32]), "pad")
    must(fields[:16] == block.directory and segment == number, "another segment")
    must(struct.unpack_from("<Q", fields, 32)[0] == block.segment_bytes, "segment size")
    must(epoch > 0 and plane_class <= 2, "epoch or class")
    return epoch, plane_class


# Section 15: the catalog.


@dataclass
class Catalog:
    """`segments` by (directory, number): class, state, epoch. `rows` in the order of their keys."""

    directories: list[bytes]
    keyspaces: dict[bytes, dict] = field(default_factory=dict)
    segments: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    rows: list["Row"] = field(default_factory=list)


@dataclass
class Row:
    keyspace: bytes
    lane: dict
    chain: bytes
    parent: bytes
    generation: int
    profile: int
    strips: list[tuple]  # Root, segment, epoch, page, pages, directory.


def parse_meta(data: bytes) -> list[bytes]:
    fields = body(data, b"kvdctlog")
    must(len(fields) >= 24, "short")
    generation, written, count = struct.unpack_from("<QQ4xI", fields)
    must(generation < 1 << 63 and written < 1 << 63, "generation or written bytes")
    names = [fields[at : at + 16] for at in range(24, len(fields), 16)]
    must(count <= 255 and len(fields) == 24 + 16 * count, "count")
    must(all(any(name) for name in names) and len(set(names)) == count, "names")
    return names


def parse_segment(key: bytes, value: bytes, directories: int) -> tuple:
    must((len(key), len(value)) == (8, 16), "size")
    must(xxhash.xxh3_64_intdigest(key + value[:8]) == struct.unpack("<Q", value[8:])[0], "checksum")
    directory, number = key[0], struct.unpack_from("<I", key, 4)[0]
    plane_class, state, pad, epoch = struct.unpack_from("<BBHI", value)
    must(not any(key[1:4]) and pad == 0, "pad")
    must(directory < directories and number < 10**8, "directory or number")
    must(plane_class <= 2 and 1 <= state <= 3 and 0 < epoch < 1 << 31, "class, state or epoch")
    return (directory, number), (plane_class, state, epoch)


def parse_row(key: bytes, value: bytes) -> Row:
    must((len(key), len(value)) == (84, 144), "size")
    must(
        xxhash.xxh3_64_intdigest(key + value[:136]) == struct.unpack("<Q", value[136:])[0],
        "checksum",
    )
    kv_group, scheme, pad, index, count, part = struct.unpack_from("<IBBHHH", key, 32)
    must(pad == 0 and not any(value[131:136]), "pad")
    must(scheme <= 2 and index < count and (scheme != 0 or count == 1), "lane")
    generation, profile, heat = struct.unpack_from("<QQd", value, 32)
    must(0 < generation < (1 << 63) - 1 and not math.isnan(heat), "generation or heat")
    roots = struct.unpack_from("<3Q", value, 56)
    segments, epochs, pages, counts = (
        struct.unpack_from("<3I", value, at) for at in (80, 92, 104, 116)
    )
    strips = list(zip(roots, segments, epochs, pages, counts, value[128:131], strict=True))
    must(all(segment < 10**8 for segment in segments), "segment")
    there = [count > 0 for count in counts]
    must(there[0] and there == sorted(there, reverse=True), "presence")
    for root, segment, epoch, first, count, directory in strips:
        if count:
            must(epoch > 0 and first > 0 and first + count <= 1 << 32, "place")
        else:
            must((root, segment, epoch, first, directory) == (0, 0, 0, 0, 0), "fields of nothing")
    lane = {
        "kv_group": kv_group, "shard_scheme": _NAMES["shard_scheme"][scheme],
        "shard_index": index, "shard_count": count_of_shards(key),
        "part_profile": key[44:52].hex(), "part_index": part,
    }  # fmt: skip
    present = [strip for strip in strips if strip[4]]
    return Row(key[:32], lane, key[52:], value[:32], generation, profile, present)


def count_of_shards(key: bytes) -> int:
    return struct.unpack_from("<H", key, 40)[0]


# Section 6, backwards.


def parse_keyspace(key: bytes, data: bytes) -> dict:
    """Return a keyspace with its tenant."""
    must(len(data) <= 8 << 20, "size")
    digest = hashlib.blake2b(data, digest_size=32, person=b"kvd.keyspace.v0").digest()
    must(digest == key, "digest")
    fields, at = [], 0
    for _ in range(10):
        must(at + 4 <= len(data), "ends early")
        size = int.from_bytes(data[at : at + 4], "little")
        must(at + 4 + size <= len(data), "ends early")
        fields.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    must(at == len(data) and len(fields[9]) == 4, "size")
    try:
        texts = [fields[n].decode() for n in (0, 1, 2, 4, 5, 6, 7, 8)]
    except UnicodeDecodeError:
        raise Bad("no text") from None
    names = "tenant model weight_revision tokenizer chain layout rope adapter"
    found = dict(zip(names.split(), texts, strict=True))
    found["shape"] = parse_shape(fields[3])
    must(all(found[name] for name in ("model", "weight_revision", "chain", "layout")), "empty")
    tokens = int.from_bytes(fields[9], "little")
    must(1 <= tokens <= 65536, "tokens")
    for tensor in (each for group in found["shape"] for each in group["tensors"]):
        size = tokens * tensor["width"] * decoder.BYTES_OF_DTYPE[tensor["dtype"]]
        must(size < 1 << 28, "cell")
    return found | {"chunk_tokens": tokens}


def parse_shape(data: bytes) -> list[dict]:
    must(len(data) % 4 == 0, "words")
    words = list(struct.unpack(f"<{len(data) // 4}I", data))

    def take(least: int, most: int) -> int:
        must(bool(words) and least <= words[0] <= most, "word")
        return words.pop(0)

    groups = []
    for _ in range(take(1, 16)):
        layers, rule, trailing = take(1, 1024), take(0, 0), take(0, (1 << 32) - 1)
        tensors = [
            {
                "role": _NAMES["role"][take(1, 3)], "heads": take(1, 1024),
                "width": take(1, 65536), "dtype": _NAMES["dtype"][take(1, 6)],
            }
            for _ in range(take(1, 8))
        ]  # fmt: skip
        groups.append({
            "layers": layers, "hit_rule": _NAMES["hit_rule"][rule], "trailing_chunks": trailing,
            "tensors": tensors,
        })  # fmt: skip
    must(not words, "words follow")
    return groups


# The whole.


@dataclass
class Chunk:
    """A chunk with the strips that can be read: `known` and `strips` are what the decoder takes."""

    row: Row
    known: dict
    strips: dict[str, bytes]


@dataclass
class Reading:
    """`chunks` by number of the row; `refused` are rules of single records, strips, chunks."""

    chunks: list[Chunk] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)


def read_set(paths: list[Path]) -> Reading:
    """Read all that can be read of a whole set; raise Refused for what is none."""
    blocks = []
    for path in paths:
        try:
            blocks.append(parse_superblock((path / "superblock").read_bytes()))
        except FileNotFoundError:
            raise Refused(3, "no superblock", "missing") from None
        except Bad as bad:
            rule = {"foreign": 1, "older": 2, "newer": 2}.get(bad.reason, 3)
            raise Refused(rule, str(bad), bad.reason) from None
    first = blocks[0]
    if any((b.home, b.segment_bytes) != (first.home, first.segment_bytes) for b in blocks):
        raise Refused(4, "two sets")
    by_name = {block.directory: at for at, block in enumerate(blocks)}
    if first.home not in by_name:
        raise Refused(4, "no home")
    reading = Reading()
    home = paths[by_name[first.home]] / "catalog"
    if not home.exists():
        return reading
    catalog = read_catalog(home, reading)
    if any(name not in by_name for name in catalog.directories):
        raise Refused(5, "a directory is missing")
    order = [by_name[name] for name in catalog.directories]
    Walk([paths[at] for at in order], [blocks[at] for at in order], catalog, reading).run()
    return reading


def read_catalog(path: Path, reading: Reading) -> Catalog:
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    with lmdb.open(str(path), readonly=True, lock=False, max_dbs=8) as environment:
        for name in ("meta", "keyspaces", "segments", "rows"):
            database = environment.open_db(name.encode(), create=False)
            with environment.begin(db=database) as transaction:
                found[name] = list(transaction.cursor())
    metas = dict(found["meta"])
    try:
        must(b"meta" in metas, "no meta record")
        catalog = Catalog(parse_meta(metas[b"meta"]))
    except Bad as bad:
        raise Refused(6, str(bad), bad.reason) from None
    for rule, name, parse, keep in (
        (7, "keyspaces", lambda k, v: (k, parse_keyspace(k, v)), catalog.keyspaces.update),
        (8, "segments", lambda k, v: parse_segment(k, v, len(catalog.directories)),
         catalog.segments.update),
        (9, "rows", parse_row, None),
    ):  # fmt: skip
        for key, value in found[name]:
            try:
                parsed = parse(key, value)
            except Bad:
                reading.refused.append(rule)
                continue
            if keep is None:
                catalog.rows.append(parsed)
            else:
                keep([parsed])
    return catalog


@dataclass
class Walk:
    paths: list[Path]
    blocks: list[Superblock]
    catalog: Catalog
    reading: Reading
    heads: dict = field(default_factory=dict)

    def refuse(self, rule: int) -> None:
        self.reading.refused.append(rule)

    def run(self) -> None:
        rows = [row for row in self.catalog.rows if self._row_can_be(row)]
        taken = self._pages(rows)
        kept: dict[tuple, int] = {}
        chunks = {}
        for row in rows:
            known = self._known(row)
            strips: dict[str, bytes] = {}
            broken = False
            for at in range(len(row.strips)):
                data = self._strip(row, at, taken)
                broken |= data is None or not self._reads(known, CLASSES[at], data)
                if not broken and data is not None:
                    strips[CLASSES[at]] = data
            key = self._key(row, row.chain)
            kept[key], chunks[key] = len(strips), Chunk(row, known, strips)
        self._settle(kept, chunks)

    def _row_can_be(self, row: Row) -> bool:
        keyspace = self.catalog.keyspaces.get(row.keyspace)
        if keyspace is None or not lane_can_be(keyspace["shape"], row.lane):
            self.refuse(10)
            return False
        for at, (_, segment, epoch, _, _, directory) in enumerate(row.strips):
            record = self.catalog.segments.get((directory, segment))
            if record is None or (record[0], record[2]) != (at, epoch):
                self.refuse(11)
                return False
        return True

    def _pages(self, rows: list[Row]) -> dict:
        """Return how many strips name each page."""
        return Counter(
            (directory, segment, number)
            for row in rows
            for _, segment, _, first, count, directory in row.strips
            for number in range(first, first + min(count, 1 << 12))
        )

    def _known(self, row: Row) -> dict:
        keyspace = self.catalog.keyspaces[row.keyspace]
        return {
            "shape": keyspace["shape"], "lane": row.lane, "tokens": keyspace["chunk_tokens"],
            "first_chunk": not any(row.parent), "generation": row.generation,
            "chunk_key": decoder.chunk_key(row.keyspace, row.chain).hex(), "profile": row.profile,
            "strips": {
                name: {"root": f"{strip[0]:016x}"}
                for name, strip in zip(CLASSES, row.strips, strict=False)
            },
        }  # fmt: skip

    def _strip(self, row: Row, at: int, taken: dict) -> bytes | None:
        """Return a strip's bytes, or None where rules 12 to 14 refuse it."""
        _, segment, epoch, first, count, directory = row.strips[at]
        path = self.paths[directory] / "segments" / f"{segment:08d}"
        if self._head(directory, segment, path) != (epoch, at):
            self.refuse(12)
            return None
        pages = range(first, first + min(count, 1 << 12))
        size = min(path.stat().st_size, self.blocks[directory].segment_bytes)
        free = self.catalog.segments[directory, segment][1] == FREE
        if free or any(taken[directory, segment, number] > 1 for number in pages):
            self.refuse(13 if free else 14)
            return None
        if (first + count) * PAGE > size:
            self.refuse(14)
            return None
        with open(path, "rb") as file:
            return os.pread(file.fileno(), count * PAGE, first * PAGE)

    def _head(self, directory: int, segment: int, path: Path) -> tuple[int, int] | None:
        if path not in self.heads:
            try:
                with open(path, "rb") as file:
                    self.heads[path] = parse_head(file.read(PAGE), self.blocks[directory], segment)
            except (Bad, FileNotFoundError):
                self.heads[path] = None
        return self.heads[path]

    def _reads(self, known: dict, name: str, data: bytes) -> bool:
        """Return whether section 9's rules for a strip and its strings' checksums hold."""
        count = len(list(decoder.tensors_of_cells(known)))
        try:
            decoder.need(known["profile"] in decoder.PROFILES, 1, "profile")
            strip = decoder.Strip(known, name, data, count)
            for cell in range(count):
                strip.string(cell)
        except decoder.Refused:
            self.refuse(15)
            return False
        return True

    def _key(self, row: Row, chain: bytes) -> tuple:
        return row.keyspace, tuple(row.lane.values()), chain

    def _settle(self, kept: dict[tuple, int], chunks: dict[tuple, Chunk]) -> None:
        """Rule 16, by walking every chain back to its beginning."""
        before = {}
        for key, chunk in chunks.items():
            parent = self._key(chunk.row, chunk.row.parent)
            before[key] = None if not any(chunk.row.parent) else parent
            there = chunks.get(parent)
            if before[key] and (there is None or len(chunk.row.strips) > len(there.row.strips)):
                self.refuse(16)
        for key, chunk in chunks.items():
            least, at, steps = len(chunk.strips), before[key], 0
            while at is not None and least and steps <= len(chunks):
                least, at, steps = min(least, kept.get(at, 0)), before.get(at), steps + 1
            if steps > len(chunks):
                least = 0
                self.refuse(16)
            if least:
                strips = {name: chunk.strips[name] for name in CLASSES[:least]}
                self.reading.chunks.append(Chunk(chunk.row, chunk.known, strips))


def lane_can_be(shape: list[dict], lane: dict) -> bool:
    """Section 5.1: what a lane of its keyspace's block shape can be."""
    if lane["kv_group"] >= len(shape):
        return False
    group, count = shape[lane["kv_group"]], lane["shard_count"]
    match lane["shard_scheme"]:
        case "LAYERS":
            return group["layers"] % count == 0
        case "HEADS":
            return all(tensor["heads"] % count == 0 for tensor in group["tensors"])
    return True


def values_of(chunk: Chunk) -> list[list[int]]:
    """Return all cells as well as the strips that are there give them."""
    precision = {1: 4, 2: 8, 3: "exact"}[len(chunk.strips)]
    return decoder.read_chunk(chunk.known, chunk.strips, precision)

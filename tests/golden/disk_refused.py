"""Sets that must be refused, by name: one of the accepted, something in it spoilt.

Every field of every structure of sections 14 and 15 has a flipped bit; what else cannot be has a
checksum that fits.
"""

import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache

from kvd.checksum import checksum
from kvd.identity import digest_of_keyspace_bytes
from kvd.limits import PAGE_BYTES
from tests.golden import document
from tests.golden.disk_sets import ACCEPTED, Image, drives, plain

HEAD_BYTES = 24
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
Spoil = Callable[[Image], None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """`left`: what a reader still reads, as `Image.classes`; None when the whole set is refused."""

    rule: int
    base: str
    image: Image
    left: dict[str, int] | None


@dataclass(frozen=True, slots=True)
class Entry:
    rule: int
    base: str
    spoil: Spoil
    left: dict[str, int] | None = field(default=None)


def fit(data: bytes) -> bytes:
    """Return what begins with a head, with a checksum that fits."""
    return data[:16] + U64.pack(checksum(data[:16] + data[HEAD_BYTES:])) + data[HEAD_BYTES:]


def fit_record(data: bytes) -> bytes:
    """Return key and value of a record, with a checksum that fits."""
    return data[:-8] + U64.pack(checksum(data[:-8]))


def put(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


def flipped(data: bytes, offset: int) -> bytes:
    return put(data, offset, bytes([data[offset] ^ 0x10]))


def on_file(path: str, change: Callable[[bytes], bytes]) -> Spoil:
    def spoil(image: Image) -> None:
        image.files[path] = change(image.files[path])

    return spoil


def on_record(database: str, number: int, change: Callable[[bytes], bytes]) -> Spoil:
    """Change the record of this number among those of its database, key and value joined."""

    def spoil(image: Image) -> None:
        assert image.records is not None
        some = [at for at, record in enumerate(image.records) if record and record[0] == database]
        at = some[number]
        _, key, value = image.records[at]  # type: ignore[misc]
        whole = change(key + value)
        image.records[at] = (database, whole[: len(key)], whole[len(key) :])

    return spoil


def both(*spoils: Spoil) -> Spoil:
    def spoil(image: Image) -> None:
        for each in spoils:
            each(image)

    return spoil


def removed(path: str) -> Spoil:
    return lambda image: image.files.pop(path) and None


def without_record(database: str, number: int) -> Spoil:
    def spoil(image: Image) -> None:
        assert image.records is not None
        some = [at for at, record in enumerate(image.records) if record and record[0] == database]
        image.records[some[number]] = None

    return spoil


# ---- the sets that are spoilt: what is left of them ----

_CHAIN = list(plain().classes)
_DRIVES = drives().classes
WHOLE = dict.fromkeys(_CHAIN, 3)
NONE: dict[str, int] = {}


def kept(*classes: int) -> dict[str, int]:
    """Return what is left of `plain`, by classes of its three chunks."""
    return {name: count for name, count in zip(_CHAIN, classes, strict=True) if count}


def _row_of(chunk: int) -> int:
    """Return the number of the row of a chunk of `plain` among the catalog's."""
    order = sorted(_CHAIN, key=lambda name: name.split()[1])
    return order.index(_CHAIN[chunk])


def _row(chunk: int, offset: int, new: bytes) -> Spoil:
    return on_record("rows", _row_of(chunk), lambda data: fit_record(put(data, offset, new)))


def _three(*numbers: int) -> bytes:
    return struct.pack("<3I", *numbers)


ROW = {row[3]: int(row[0]) for row in document.tables_of("15.3")}
SEGMENT = {row[3]: int(row[0]) for row in document.tables_of("15.2")}
LAST = (kept(3, 3, 0), 2)  # What is left without the last chunk, and its number.


def _flips() -> dict[str, Entry]:
    """Return a flipped bit for every field of every structure."""
    head = [int(row[0]) for row in document.tables_of("14.1")]
    out = {}
    for section, name, path, rule, left in (
        ("14.2", "superblock", "a/superblock", 3, None),
        ("14.3", "head", "a/segments/00000002", 12, kept(1, 1, 1)),
    ):
        for offset in head + [int(row[0]) for row in document.tables_of(section)]:
            spoil = on_file(path, lambda data, at=offset: flipped(data, at))
            out[f"{name}-bit-{offset}"] = Entry(rule, "plain", spoil, left)
    out["superblock-magic"] = Entry(1, "plain", out.pop("superblock-bit-0").spoil)
    # The key of the meta record is in front of its value.
    for offset in head + [int(row[0]) for row in document.tables_of("15.1")]:
        spoil = on_record("meta", 0, lambda data, at=offset: flipped(data, at + len(b"meta")))
        out[f"meta-bit-{offset}"] = Entry(6, "plain", spoil)
    for offset in SEGMENT.values():
        spoil = on_record("segments", 1, lambda data, at=offset: flipped(data, at))
        out[f"segment-bit-{offset}"] = Entry(8, "plain", spoil, NONE)
    for offset in ROW.values():
        spoil = on_record("rows", _row_of(2), lambda data, at=offset: flipped(data, at))
        out[f"row-bit-{offset}"] = Entry(9, "plain", spoil, LAST[0])
    return out


def _superblocks() -> dict[str, Entry]:
    def changed(offset: int, new: bytes) -> Spoil:
        return on_file("a/superblock", lambda data: fit(put(data, offset, new)))

    whole = {
        "foreign": (1, on_file("a/superblock", lambda data: fit(b"kvdsegmt" + data[8:]))),
        "older": (2, changed(8, U32.pack(0))),
        "newer": (2, changed(8, U32.pack(2))),
        "pad": (3, changed(12, b"\1")),
        "rest": (3, changed(4095, b"\1")),
        "nameless": (3, changed(24, bytes(16))),
        "homeless": (3, changed(40, bytes(16))),
        "tiny": (3, changed(56, U64.pack(PAGE_BYTES))),
        "odd": (3, changed(56, U64.pack(4 * PAGE_BYTES + 1))),
        "huge": (3, changed(56, U64.pack(1 << 41))),
        "short": (3, on_file("a/superblock", lambda data: data[:-1])),
        "long": (3, on_file("a/superblock", lambda data: data + b"\0")),
        "missing": (3, removed("a/superblock")),
    }
    out = {f"superblock-{name}": Entry(rule, "plain", s) for name, (rule, s) in whole.items()}
    mixed = on_file("b/superblock", lambda data: fit(put(data, 40, bytes(range(101, 117)))))
    sizes = on_file("b/superblock", lambda data: fit(put(data, 56, U64.pack(8 * PAGE_BYTES))))

    def drop(name: str) -> Spoil:
        def spoil(image: Image) -> None:
            image.directories = tuple(each for each in image.directories if each != name)
            image.files = {p: d for p, d in image.files.items() if not p.startswith(name)}

        return spoil

    return out | {
        "set-mixed-home": Entry(4, "drives", mixed),
        "set-mixed-size": Entry(4, "drives", sizes),
        "set-homeless": Entry(4, "drives", drop("a")),
        "set-missing": Entry(5, "drives", drop("b")),
    }


def _metas() -> dict[str, Entry]:
    def changed(offset: int, new: bytes) -> Spoil:
        return on_record("meta", 0, lambda data: data[:4] + fit(put(data[4:], offset, new)))

    def sized(change: Callable[[bytes], bytes]) -> Spoil:
        return on_record("meta", 0, lambda data: data[:4] + fit(change(data[4:])))

    whole = {
        "foreign": changed(0, b"kvdsuper"), "older": changed(8, U32.pack(0)),
        "newer": changed(8, U32.pack(2)), "pad": changed(12, b"\1"),
        "more": changed(44, U32.pack(2)), "nameless": changed(48, bytes(16)),
        "twin": sized(lambda data: put(data, 44, U32.pack(2)) + data[48:64]),
        "many": sized(lambda data: put(data, 44, U32.pack(256)) + b"".join(
            bytes([1 + n // 256, n % 256]) * 8 for n in range(255))),
        "short": sized(lambda data: data[:47]), "long": sized(lambda data: data + b"\0"),
        "missing": without_record("meta", 0),
    }  # fmt: skip
    return {f"meta-{name}": Entry(6, "plain", spoil) for name, spoil in whole.items()}


def _records() -> dict[str, Entry]:
    def segment(offset: int, new: bytes) -> Spoil:
        return on_record("segments", 1, lambda data: fit_record(put(data, offset, new)))

    segments = {
        "key-pad": segment(1, b"\1"), "directory": segment(0, b"\1"),
        "number": segment(4, U32.pack(10**8)), "class": segment(8, b"\3"),
        "state-0": segment(9, b"\0"), "state-4": segment(9, b"\4"), "pad": segment(10, b"\1"),
        "epoch": segment(12, U32.pack(0)),
        "short": on_record("segments", 1, lambda data: fit_record(data[:-1])),
    }  # fmt: skip
    left, number = LAST
    rows = {
        "scheme": _row(number, ROW["shard_scheme"], b"\3"),
        "key-pad": _row(number, ROW["key_zero"], b"\1"),
        "index": _row(number, ROW["shard_index"], b"\1"),
        "count": _row(number, ROW["shard_count"], b"\0"),
        "replicas": _row(number, ROW["shard_count"], b"\2"),
        "generation": _row(number, ROW["generation"], bytes(8)),
        "heat": _row(number, ROW["heat"], struct.pack("<d", float("nan"))),
        "segment": _row(number, ROW["segment"], _three(1, 10**8, 3)),
        "epoch": _row(number, ROW["epoch"], _three(1, 1, 0)),
        "page": _row(number, ROW["page"], _three(3, 0, 3)),
        "end": _row(number, ROW["page"], _three(3, 3, (1 << 32) - 1) + _three(1, 1, 2)),
        "anchorless": _row(number, ROW["pages"], _three(0, 1, 1)),
        "gap": _row(number, ROW["pages"], _three(1, 0, 1)),
        "nothing": _row(number, ROW["pages"], _three(1, 1, 0)),
        "pad": _row(number, ROW["value_zero"], b"\1"),
        "short": on_record("rows", _row_of(number), lambda data: fit_record(data[:-1])),
    }
    out = {f"segment-{name}": Entry(8, "plain", spoil, NONE) for name, spoil in segments.items()}
    return out | {f"row-{name}": Entry(9, "plain", spoil, left) for name, spoil in rows.items()}


def _keyspaces() -> dict[str, Entry]:
    """Keyspaces that cannot be, each with rows that name it by the digest it has."""

    def changed(change: Callable[[bytes], bytes], *, digest: bool = True) -> Spoil:
        def spoil(image: Image) -> None:
            assert image.records is not None
            [(at, data)] = [(i, r[2]) for i, r in enumerate(image.records) if r[0] == "keyspaces"]
            new = change(data)
            key = digest_of_keyspace_bytes(new) if digest else image.records[at][1]
            image.records[at] = ("keyspaces", key, new)
            for number, (database, old, value) in enumerate(image.records):
                if database == "rows":
                    row = fit_record(key + old[32:] + value)
                    image.records[number] = ("rows", row[: len(old)], row[len(old) :])

        return spoil

    # Tenant `demo`, model `tiny`, weight revision `r1`, then the shape: a word each.
    shape = 3 * 4 + len("demotinyr1") + 4

    def word(number: int, value: int) -> Spoil:
        return changed(lambda data: put(data, shape + 4 * number, U32.pack(value)))

    whole = {
        "bit": changed(lambda data: flipped(data, 5), digest=False),
        "short": changed(lambda data: data[:-1]),
        "long": changed(lambda data: data + b"\0"),
        "field": changed(lambda data: data + U32.pack(0)),
        "length": changed(lambda data: put(data, 0, U32.pack((1 << 32) - 1))),
        "text": changed(lambda data: put(data, 4, b"\xff")),
        "groups": word(0, 0), "layers": word(1, 1025), "rule": word(2, 3), "hit": word(2, 1),
        "tensors": word(4, 3), "role": word(5, 5), "state": word(5, 4), "heads": word(6, 0),
        "width": word(7, 65537), "dtype": word(8, 7),
        "model": changed(lambda data: data[:8] + bytes(4) + data[16:]),
        "tokens-none": changed(lambda data: data[:-4] + bytes(4)),
        "tokens": changed(lambda data: data[:-4] + U32.pack(65_537)),
        "cell": changed(lambda data: put(
            data[:-4] + U32.pack(65_536), shape + 4 * 7, U32.pack(65_536)
        )),
    }  # fmt: skip
    return {f"keyspace-{name}": Entry(7, "plain", spoil, NONE) for name, spoil in whole.items()}


def _names() -> dict[str, Entry]:
    """What rows name and is not there, or not so."""
    left, number = LAST
    other = on_record("segments", 1, lambda data: fit_record(put(data, 8, b"\2")))
    epoch = on_record("segments", 1, lambda data: fit_record(put(data, 12, U32.pack(2))))
    return {
        "no-keyspace": Entry(10, "plain", without_record("keyspaces", 0), NONE),
        "no-lane": Entry(10, "plain", _row(number, ROW["kv_group"], b"\1"), left),
        "no-record": Entry(11, "plain", without_record("segments", 1), NONE),
        "no-record-class": Entry(11, "plain", other, NONE),
        "no-record-epoch": Entry(11, "plain", epoch, NONE),
        "no-record-directory": Entry(11, "plain", _row(number, ROW["directory"], b"\0\1\0"), left),
    }


def _heads() -> dict[str, Entry]:
    path = "a/segments/00000002"

    def changed(offset: int, new: bytes) -> Spoil:
        return on_file(
            path, lambda data: fit(put(data[:PAGE_BYTES], offset, new)) + data[PAGE_BYTES:]
        )

    whole = {
        "foreign": changed(0, b"kvdsuper"), "older": changed(8, U32.pack(0)),
        "newer": changed(8, U32.pack(2)), "pad": changed(12, b"\1"),
        "other-directory": changed(24, b"\xff"), "other-number": changed(40, U32.pack(3)),
        "epoch": changed(44, U32.pack(0)), "stale": changed(44, U32.pack(2)),
        "class": changed(48, b"\3"), "other-class": changed(48, b"\2"), "zero": changed(49, b"\1"),
        "size": changed(56, U64.pack(8 * PAGE_BYTES)), "rest": changed(4095, b"\1"),
        "short": on_file(path, lambda data: data[: PAGE_BYTES - 1]),
    }  # fmt: skip
    out = {f"head-{name}": Entry(12, "plain", s, kept(1, 1, 1)) for name, s in whole.items()}
    return out | {"file-missing": Entry(12, "plain", removed(path), kept(1, 1, 1))}


def _strips() -> dict[str, Entry]:
    residuals, number = "a/segments/00000002", 2

    def swap(data: bytes) -> bytes:
        first, second = data[PAGE_BYTES : 2 * PAGE_BYTES], data[2 * PAGE_BYTES : 3 * PAGE_BYTES]
        return data[:PAGE_BYTES] + second + first + data[3 * PAGE_BYTES :]

    at = number * PAGE_BYTES  # The strip of the middle one.
    free = on_record("segments", 1, lambda data: fit_record(put(data, 9, b"\1")))
    pages, beyond = _row(2, ROW["pages"], _three(1, 2, 1)), _row(2, ROW["page"], _three(3, 4, 3))
    far = _row(2, ROW["pages"], _three(1, 1 << 20, 1))
    shared = _row(2, ROW["page"], _three(3, 2, 3))
    cut = on_file(residuals, lambda data: data[: 4 * PAGE_BYTES - 1])
    profile = _row(2, ROW["profile"], U64.pack(77))
    root = _row(1, ROW["root"] + 8, bytes(8))
    table = on_file(residuals, lambda data: flipped(data, at + 3))
    cell = on_file(residuals, lambda data: flipped(data, at + 4 * 16 + 1))
    return {
        "strip-free": Entry(13, "plain", free, kept(1, 1, 1)),
        "strip-outside": Entry(14, "plain", pages, kept(3, 3, 1)),
        "strip-beyond": Entry(14, "plain", both(beyond, far), kept(3, 3, 1)),
        "strip-cut": Entry(14, "plain", cut, kept(3, 3, 1)),
        "strip-shared": Entry(14, "plain", shared, kept(3, 1, 1)),
        "strip-table": Entry(15, "plain", table, kept(3, 1, 1)),
        "strip-cell": Entry(15, "plain", cell, kept(3, 1, 1)),
        "strip-root": Entry(15, "plain", root, kept(3, 1, 1)),
        "strip-swapped": Entry(15, "plain", on_file(residuals, swap), kept(1, 1, 1)),
        "strip-profile": Entry(15, "plain", profile, kept(3, 3, 0)),
    }


def _chains() -> dict[str, Entry]:
    fields = ("root", "segment", "epoch", "page", "pages")
    fewer = both(*(
        _row(0, ROW[name] + (8 if name == "root" else 4), bytes(16 if name == "root" else 8))
        for name in fields
    ))  # fmt: skip
    last = bytes.fromhex(_CHAIN[2].split()[1])
    return {
        "chain-orphan": Entry(16, "plain", without_record("rows", _row_of(0)), NONE),
        "chain-more": Entry(16, "plain", fewer, kept(1, 1, 1)),
        "chain-circle": Entry(16, "plain", _row(0, ROW["parent"], last), NONE),
    }


REFUSED: dict[str, Entry] = {
    name: entry
    for part in (
        _flips, _superblocks, _metas, _keyspaces, _records, _names, _heads, _strips, _chains
    )
    for name, entry in part().items()
}  # fmt: skip


_made = cache(lambda name: ACCEPTED[name]())


def make(name: str) -> Refusal:
    entry = REFUSED[name]
    image = deepcopy(_made(entry.base))
    entry.spoil(image)
    return Refusal(entry.rule, entry.base, image, entry.left)

"""How the checked-in sets of data directories lie in files, and how they become directories.

`python -m tests.golden.disk_files` writes disk/v1 anew; a test compares them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np

from kvd.checksum import checksum
from tests.golden.disk_refused import REFUSED, make
from tests.golden.disk_sets import ACCEPTED, Image
from tests.golden.vectors import HERE, to_json

DISK = HERE / "disk" / "v1"
HOME = "a"  # Of every set here.
DATABASES = ("meta", "keyspaces", "rows", "segments")
_SAME_BYTES = 16  # So many of them end a part of a file.
_MAP_BYTES = 1 << 20


def parts_of(data: bytes, base: bytes = b"") -> list:
    """Return the size of a file and where it differs from `base`, which zeros follow."""
    before = np.frombuffer(base[: len(data)].ljust(len(data), b"\0"), np.uint8)
    parts: list[tuple[int, int]] = []
    for at in np.flatnonzero(np.frombuffer(data, np.uint8) != before).tolist():
        if parts and at - parts[-1][1] < _SAME_BYTES:
            parts[-1] = (parts[-1][0], at + 1)
        else:
            parts.append((at, at + 1))
    return [len(data), [[begin, data[begin:end].hex()] for begin, end in parts]]


def file_of(description: list, base: bytes = b"") -> bytes:
    size, parts = description
    data = bytearray(base[:size].ljust(size, b"\0"))
    for at, text in parts:
        part = bytes.fromhex(text)
        data[at : at + len(part)] = part
    assert len(data) == size
    return bytes(data)


def accept_entry(name: str, image: Image) -> dict:
    return {
        "name": name,
        "covers": image.covers,
        "directories": list(image.directories),
        "files": {path: parts_of(data) for path, data in image.files.items()},
        "catalog": _records(image),
        "chunks": image.classes,
        "values": {key: f"{checksum(values):016x}" for key, values in image.values.items()},
    }


def refuse_entry(name: str) -> dict:
    """Return what differs from the set that was spoilt: files by path, records by number.

    None is one that is not there.
    """
    made = make(name)
    base = ACCEPTED[made.base]()
    files = {
        path: parts_of(made.image.files[path], data) if path in made.image.files else None
        for path, data in base.files.items()
        if made.image.files.get(path) != data
    }
    entry = {"name": name, "rule": made.rule, "base": made.base, "left": made.left}
    if made.image.directories != base.directories:
        entry["directories"] = list(made.image.directories)
    if files:
        entry["files"] = files
    changes = {}
    for number, (old, new) in enumerate(zip(base.records or [], made.image.records, strict=True)):
        if new is None:
            changes[str(number)] = None
        elif new != old:
            (_, key, value), whole = new, old[1] + old[2]
            changes[str(number)] = [len(key), *parts_of(key + value, whole)]
    if changes:
        entry["catalog"] = changes
    return entry


def _records(image: Image) -> list | None:
    if image.records is None:
        return None
    return [[name, key.hex(), value.hex()] for name, key, value in image.records]


@dataclass(frozen=True, slots=True)
class Lying:
    """A set as it lies on disk: whole files by path, and records as the entries have them."""

    directories: list[str]
    files: dict[str, bytes]
    catalog: list | None


def accepted(entry: dict) -> Lying:
    files = {path: file_of(parts) for path, parts in entry["files"].items()}
    return Lying(entry["directories"], files, entry["catalog"])


def refused(entry: dict, base: dict) -> Lying:
    lying = accepted(base)
    files = dict(lying.files)
    for path, parts in entry.get("files", {}).items():
        whole = files.pop(path)
        if parts is not None:
            files[path] = file_of(parts, whole)
    directories = entry.get("directories", lying.directories)
    files = {path: data for path, data in files.items() if path.split("/")[0] in directories}
    records = dict(enumerate(lying.catalog or []))
    for number, change in entry.get("catalog", {}).items():
        database, key, value = records.pop(int(number))
        if change is not None:
            whole = file_of(change[1:], bytes.fromhex(key + value)).hex()
            records[int(number)] = [database, whole[: 2 * change[0]], whole[2 * change[0] :]]
    return Lying(directories, files, list(records.values()))


def put(lying: Lying, root: Path) -> list[Path]:
    """Make the directories of a set below `root`, with a real catalog; return them."""
    for name in lying.directories:
        (root / name / "segments").mkdir(parents=True)
    for path, data in lying.files.items():
        (root / path).write_bytes(data)
    if lying.catalog is not None:
        home = root / HOME / "catalog"
        home.mkdir(parents=True, exist_ok=True)
        with lmdb.open(str(home), map_size=_MAP_BYTES, max_dbs=16, sync=False) as environment:
            databases = {name: environment.open_db(name.encode()) for name in DATABASES}
            with environment.begin(write=True) as transaction:
                for name, key, value in lying.catalog:
                    transaction.put(bytes.fromhex(key), bytes.fromhex(value), db=databases[name])
    return [root / name for name in lying.directories]


def all_files() -> dict[str, bytes]:
    accept = [accept_entry(name, image()) for name, image in ACCEPTED.items()]
    refuse = [refuse_entry(name) for name in REFUSED]
    return {
        "accept.json": to_json({"format": 1, "sets": accept}),
        "refuse.json": to_json({"format": 1, "sets": refuse}),
    }


def load(name: str) -> dict[str, dict]:
    """Return the checked-in entries by name."""
    entries = json.loads((DISK / name).read_text())["sets"]
    return {entry["name"]: entry for entry in entries}


def main() -> None:
    DISK.mkdir(parents=True, exist_ok=True)
    files = all_files()
    for name, data in files.items():
        (DISK / name).write_bytes(data)
    print(f"{len(files)} files, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()

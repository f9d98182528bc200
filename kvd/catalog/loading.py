"""Everything a catalog holds, read by a process of its own and believed only where it is whole.

Reads; what is wrong is left out and named, never mended.
"""

import mmap
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kvd.catalog import scan
from kvd.catalog.contract import DAMAGED_NAME, Changes, Contents, Refusal, Table
from kvd.catalog.looking import Look, damaged, has_data, unread
from kvd.errors import Fault, FaultKind
from kvd.format.keyspaces import parse_keyspace
from kvd.format.page import Refused
from kvd.format.records import (
    META_KEY,
    SEGMENT_KEY_BYTES,
    SEGMENT_VALUE_BYTES,
    Meta,
    parse_meta,
    parse_segments,
    sound_segments,
)
from kvd.format.rows import KEY_BYTES, ROW, VALUE_BYTES, keys_of, lane_starts, sound_rows
from kvd.identity import Keyspace

_ROWS_AT_ONCE = 4096  # As in `sound_rows`.
_Keyspaces = dict[bytes, tuple[Keyspace, str]]


@dataclass(slots=True)
class _Found:
    """What the scan gave, sorted but for the rows."""

    meta: Meta | None = None
    keyspaces: _Keyspaces = field(default_factory=dict)
    segments: list[bytes] = field(default_factory=list)
    dropped: list[tuple[Table, bytes]] = field(default_factory=list)


def load_catalog(path: Path) -> Contents | Fault:
    """Return what the catalog in directory `path` holds; nothing may have it open for writing."""
    with _memory("kvd-rows") as rows_file, _memory("kvd-others") as others_file:
        fault = _scan(path, rows_file.fileno(), others_file.fileno())
        if fault is not None:
            return fault
        others_file.seek(0)
        others = others_file.read()
        rows = _map_rows(rows_file.fileno())
    if not others.endswith(scan.END.pack(scan.NO_TABLE, len(rows))):
        return unread(path, "its scan ended early")
    found = _sorted(path, others[: -scan.END.size])
    if isinstance(found, Fault):
        return found
    return _checked(found, rows)


def _memory(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "r+b")


def _scan(path: Path, rows: int, others: int) -> Fault | None:
    """Have the catalog written to two descriptors."""
    try:
        there = has_data(path)
    except OSError as error:
        return unread(path, str(error.strerror))
    if not there:
        return Fault(FaultKind.GONE, f"the catalog {path} is not there")
    if (path / DAMAGED_NAME).exists():
        return damaged(path, "so it was found when it was last written to")
    look = Look(path, (str(KEY_BYTES), str(VALUE_BYTES), str(rows), str(others)), (rows, others))
    return look.verdict()


def _map_rows(descriptor: int) -> np.ndarray:
    size = os.fstat(descriptor).st_size
    if size < ROW.itemsize:
        return np.empty(0, ROW)
    mapping = mmap.mmap(descriptor, size, mmap.MAP_PRIVATE)
    return np.frombuffer(mapping, ROW, count=size // ROW.itemsize)


# ---- what it gave ----


def _entries(data: bytes) -> Iterator[tuple[Table, bytes, bytes]]:
    at = 0
    while at < len(data):
        number, key_size, value_size = scan.ENTRY.unpack_from(data, at)
        at += scan.ENTRY.size
        key, value = data[at : at + key_size], data[at + key_size : at + key_size + value_size]
        at += key_size + value_size
        yield Table(scan.TABLES[number].decode()), key, value


def _sorted(path: Path, data: bytes) -> _Found | Fault:
    found = _Found()
    for table, key, value in _entries(data):
        match table:
            case Table.META if key == META_KEY:
                meta = parse_meta(value)
                if isinstance(meta, Refused):
                    return Fault(FaultKind.FORMAT, f"the catalog {path} {meta.message}")
                found.meta = meta
            case Table.KEYSPACES:
                keyspace = parse_keyspace(key, value)
                if isinstance(keyspace, Refused):
                    found.dropped.append((table, key))
                else:
                    found.keyspaces[key] = keyspace
            case Table.SEGMENTS if (len(key), len(value)) == (
                SEGMENT_KEY_BYTES,
                SEGMENT_VALUE_BYTES,
            ):
                found.segments.append(key + value)
            case _:
                found.dropped.append((table, key))
    if found.meta is None:
        return damaged(path, "it has no meta record")
    return found


def _checked(found: _Found, rows: np.ndarray) -> Contents:
    """Leave out what is damaged, and what refers to something that is not there."""
    assert found.meta is not None
    segments = parse_segments(b"".join(found.segments))
    assert segments is not None
    good = sound_segments(segments)
    good &= segments["directory"] < len(found.meta.directories)
    bad_segments = [(Table.SEGMENTS, s.tobytes()[:SEGMENT_KEY_BYTES]) for s in segments[~good]]
    segments = segments[good]

    refused: Counter[Refusal] = Counter()
    refused[Refusal.DAMAGED] = len(found.dropped) + len(bad_segments)
    number = int(segments["segment"].max(initial=0))
    dropped = []
    for reason, test in (
        (Refusal.DAMAGED, sound_rows),
        (Refusal.NO_KEYSPACE, lambda some: _of_keyspaces(some, found.keyspaces)),
        (Refusal.NO_SEGMENT, lambda some: _in_segments(some, segments)),
    ):
        good = test(rows)
        if not good.all():
            dropped.append(keys_of(rows[~good]))
            refused[reason] += len(dropped[-1])
            rows = rows[good]
        if reason == Refusal.DAMAGED:
            number = max(number, int(rows["segment"].max(initial=0)))
    purge = Changes(dropped=(*found.dropped, *bad_segments))
    if dropped:
        purge = Changes(dropped=purge.dropped, dropped_rows=np.concatenate(dropped))
    return Contents(found.meta, found.keyspaces, rows, segments, dict(+refused), purge, number)


def _of_keyspaces(rows: np.ndarray, keyspaces: _Keyspaces) -> np.ndarray:
    starts = lane_starts(rows)
    known = [rows["keyspace"][at].tobytes() in keyspaces for at in starts.tolist()]
    return np.repeat(np.array(known, bool), np.diff(np.append(starts, len(rows))))


def _in_segments(rows: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Return bool[n]: every strip of the row lies in a segment of its class and epoch."""
    names = _segment_names(
        segments["directory"], segments["segment"], segments["epoch"], segments["plane_class"]
    )
    order = np.lexsort((names[1], names[0]))
    known = names[:, order]
    good = np.empty(len(rows), bool)
    for at in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[at : at + _ROWS_AT_ONCE]
        good[at : at + _ROWS_AT_ONCE] = _rows_in(some, known)
    return good


def _rows_in(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    classes = np.arange(rows["pages"].shape[1], dtype=np.uint8)
    wanted = _segment_names(rows["directory"], rows["segment"], rows["epoch"], classes)
    absent = rows["pages"] == 0
    if not known.shape[1]:
        return absent.all(axis=1)
    at = np.minimum(np.searchsorted(known[0], wanted[0]), known.shape[1] - 1)
    return ((known[:, at] == wanted).all(axis=0) | absent).all(axis=1)


def _segment_names(
    directories: np.ndarray, segments: np.ndarray, epochs: np.ndarray, classes: np.ndarray
) -> np.ndarray:
    """Return u64[2, ...]: which segment, and what it is now; the first is unique in a catalog."""
    which = (directories.astype(np.uint64) << np.uint64(32)) | segments
    what = (epochs.astype(np.uint64) << np.uint64(8)) | classes
    return np.stack([which, what])

"""kvd and the second reader read the sets alike, refuse them alike, and lose the same by it."""

from pathlib import Path

import numpy as np
import pytest
import xxhash

from kvd.checking.check import Report, Wish, check
from kvd.checking.findings import Kind, Level
from kvd.errors import ErrorKind, KvdError
from kvd.format.rows import lane_of
from tests.golden.disk_files import DISK, accepted, all_files, load, put, refused
from tests.reference import decoder, disk_reader
from tests.unit.check_scene import look_here

ALL_BYTES_MAX = 90_000
ACCEPT, REFUSE = load("accept.json"), load("refuse.json")


@pytest.fixture
def scans_here(monkeypatch):
    look_here(monkeypatch)


def checked(paths) -> Report:
    return check(paths, Wish(), lambda *_: None)


def lying(name: str):
    return refused(REFUSE[name], ACCEPT[REFUSE[name]["base"]])


def name_of(shard: int, chain: bytes) -> str:
    return f"{shard} {chain.hex()}"


def left_by_kvd(report: Report) -> dict[str, int]:
    """Return how many classes each chunk keeps."""
    if report.contents is None:
        return {}
    return {
        name_of(lane_of(row).shard.index, row["chain"].tobytes()): int(kept)
        for row, kept in zip(report.contents.rows, report.kept, strict=True) if kept
    }  # fmt: skip


def left_by_reader(reading: disk_reader.Reading) -> dict[str, int]:
    return {
        name_of(chunk.row.lane["shard_index"], chunk.row.chain): len(chunk.strips)
        for chunk in reading.chunks
    }


def test_sets_are_what_is_made_today():
    files = all_files()
    assert {file.name for file in DISK.iterdir()} == files.keys()
    different = [name for name, data in files.items() if (DISK / name).read_bytes() != data]
    assert not different, "is a change of the format meant? python -m tests.golden.disk_files"
    assert sum(map(len, files.values())) < ALL_BYTES_MAX


@pytest.mark.parametrize("name", ACCEPT)
def test_accepted_sets_are_read_alike(name, tmp_path):
    entry = ACCEPT[name]
    paths = put(accepted(entry), tmp_path)
    reading = disk_reader.read_set(paths)
    assert reading.refused == []
    assert left_by_reader(reading) == entry["chunks"]
    values = {}
    for chunk in reading.chunks:
        cells = disk_reader.values_of(chunk)
        if len(chunk.strips) == len(decoder.CLASSES):
            tensors = decoder.tensors_of_cells(chunk.known)
            sizes = [decoder.BYTES_OF_DTYPE[tensor["dtype"]] for tensor in tensors]
            joined = b"".join(
                np.array(cell, f"<u{size}").tobytes()
                for cell, size in zip(cells, sizes, strict=True)
            )
            key = name_of(chunk.row.lane["shard_index"], chunk.row.chain)
            values[key] = f"{xxhash.xxh3_64_intdigest(joined):016x}"
    assert values == entry["values"]
    report = checked(paths)
    assert report.findings.count(Level.WRONG) == 0
    assert left_by_kvd(report) == entry["chunks"]
    left = sorted(Path(finding.where).name for finding in report.findings.kept)
    crashed = ["00000003", "00000077", "canary", "superblock.new"]
    assert left == (crashed if name == "crashed" else [])
    if name == "crashed":
        repaired = check(paths, Wish(repair=True), lambda *_: None)
        assert left_by_kvd(repaired) == entry["chunks"] and checked(paths).findings.kept == []


KINDS = {
    7: {Kind.ROW}, 8: {Kind.ROW}, 9: {Kind.ROW}, 10: {Kind.ROW}, 11: {Kind.ROW},
    12: {Kind.SEGMENT}, 13: {Kind.STRIP}, 14: {Kind.STRIP, Kind.SEGMENT},
    15: {Kind.STRIP, Kind.CELL, Kind.ROW}, 16: {Kind.CHAIN},
}  # fmt: skip


@pytest.mark.usefixtures("scans_here")
@pytest.mark.parametrize("name", [name for name in REFUSE if REFUSE[name]["rule"] > 6])
def test_what_is_spoilt_is_refused_and_nothing_else(name, tmp_path):
    entry = REFUSE[name]
    paths = put(lying(name), tmp_path)
    reading = disk_reader.read_set(paths)
    assert left_by_reader(reading) == entry["left"]
    assert min(reading.refused) == entry["rule"]
    report = checked(paths)
    assert left_by_kvd(report) == entry["left"]
    # A chunk without its parent is what a condemned chunk may leave; all else is wrong.
    level = Level.LEFT if name == "chain-orphan" else Level.WRONG
    assert report.findings.of(level).keys() & KINDS[entry["rule"]]


WHOLE = [name for name in REFUSE if REFUSE[name]["rule"] <= 6]
REASONS = {"older": "older than the 1", "newer": "newer than the 1", "foreign": "did not make it"}


@pytest.mark.usefixtures("scans_here")
@pytest.mark.parametrize("name", WHOLE)
def test_whole_sets_are_refused(name, tmp_path):
    rule = REFUSE[name]["rule"]
    paths = put(lying(name), tmp_path)
    with pytest.raises(disk_reader.Refused) as refusal:
        disk_reader.read_set(paths)
    assert refusal.value.rule == rule
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    match rule:
        case 3:  # What the rest of the set tells is found wrong, and known.
            assert checked(paths).findings.of(Level.WRONG) == {Kind.SUPERBLOCK: 1}
        case 6:
            report = checked(paths)
            assert report.contents is None
            assert report.findings.of(Level.WRONG) == {Kind.CATALOG: 1}
            said = report.findings.kept[0].what
            assert REASONS.get(refusal.value.reason, "") in said
        case _:
            with pytest.raises(KvdError) as error:
                check(paths, Wish(repair=True), lambda *_: None)
            assert error.value.kind == ErrorKind.INCOMPATIBLE
            assert REASONS.get(refusal.value.reason, "") in error.value.message
            after = {path: path.read_bytes() for path in before if path.name != "lock"}
            assert after == {path: before[path] for path in after}


@pytest.mark.parametrize("rule", [6, 9, 12, 14, 16])
def test_repair_leaves_what_is_left(rule, tmp_path):
    """With the catalog looked at from another process, as always."""
    name = [name for name in REFUSE if REFUSE[name]["rule"] == rule][-1]
    left = REFUSE[name]["left"] or {}
    paths = put(lying(name), tmp_path)
    report = check(paths, Wish(repair=True), lambda *_: None)
    assert report.findings.count(Level.WRONG) and left_by_kvd(report) == left
    again = checked(paths)
    assert again.findings.kept == [] and left_by_kvd(again) == left
    assert left_by_reader(disk_reader.read_set(paths)) == left

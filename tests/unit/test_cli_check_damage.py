"""Bits flipped anywhere, from a seed: each is found and named, or is one that nobody reads."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from kvd.catalog.contract import Contents
from kvd.catalog.loading import load_catalog
from kvd.checking.holdings import holdings_of
from kvd.checking.reading import Places, read_strips
from kvd.checking.verifying import Verdict
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.limits import PAGE_BYTES
from kvd.table import LENGTH_MASK, TABLE_ENTRY, table_bytes
from kvd.testing.disk_strips import CELLS
from tests.unit.check_scene import (
    SEGMENT_BYTES,
    Check,
    flip,
    look_here,
    make_set,
    segment_bytes_of,
    tell,
)
from tests.unit.test_cli_check_repair import WHOLE, classes_of

FLIPS = 30  # Of strips, with each seed.


@pytest.fixture
def check(capsys):
    return Check(capsys)


def cell_at(strip, offset):
    """Return what a byte of a strip belongs to: table, a cell's number, or None."""
    if offset < table_bytes(CELLS):
        return "table"
    table = np.frombuffer(strip.data, TABLE_ENTRY, CELLS)
    for number, entry in enumerate(table):
        begin = int(entry["offset"])
        if begin <= offset < begin + int(entry["length"] & LENGTH_MASK):
            return number
    return None


def expected(part):
    return {"table": Verdict.ROOT, None: Verdict.GOOD}.get(part, Verdict.CELL)


def fallen(made, wrong):
    """Return how many classes each chunk can keep where strips (chunk, class) are wrong."""
    kept = {}
    for chunk, count in WHOLE.items():
        before = kept[chunk - 1] if chunk not in (0, 6) else 3
        own = min((int(c) for at, c in wrong if at == chunk), default=3)
        kept[chunk] = min(before, own, count)
    return {chunk: count for chunk, count in kept.items() if count}


@pytest.mark.parametrize("seed", range(4))
def test_every_bit_of_a_strip_is_looked_at(tmp_path, seed):
    rng = np.random.default_rng(seed)
    made = make_set(tmp_path)
    contents = load_catalog(made.paths[0] / "catalog")
    assert isinstance(contents, Contents)
    holdings = holdings_of(contents)
    strips = holdings.strips
    paths = [made.paths[0] / f"segments/{segment:08d}" for segment in strips.segments]
    places = Places(lambda s: str(paths[s]), lambda _: True)
    placed = {(p.path, p.page): p for p in made.placed.values()}
    for _ in range(FLIPS):
        number = int(rng.integers(len(strips)))
        strip = placed[paths[number], int(strips.pages[number])].strip
        begin = int(strips.pages[number]) * PAGE_BYTES
        # Half of them in tables and at the ends, which random places seldom hit.
        near = (table_bytes(CELLS), len(strip.data))[int(rng.integers(2))]
        offset = int(rng.integers(near)) if rng.integers(2) else near - 1 - int(rng.integers(40))
        flip(paths[number], begin + offset, bit := int(rng.integers(8)))
        verdicts = read_strips(holdings, places, lambda *_: None)
        flip(paths[number], begin + offset, bit)
        part = cell_at(strip, offset)
        found = {int(at): Verdict(verdicts.kinds[at]) for at in np.flatnonzero(verdicts.kinds)}
        assert found == ({number: expected(part)} if part is not None else {})
        if isinstance(part, int):
            assert (verdicts.details[number], verdicts.wrong_cells[number]) == (part, 1)
    assert verdicts.strips == 28


@pytest.mark.parametrize("seed", range(5))
def test_flips_in_segments_are_named_and_cost_what_they_hit(tmp_path, check, seed, monkeypatch):
    look_here(monkeypatch)
    rng = np.random.default_rng(seed)
    made = make_set(tmp_path, 1 + seed % 2)
    paths = sorted({p.path for p in made.placed.values()})
    wrong, named = set(), set()
    for _ in range(6):
        path, offset = paths[int(rng.integers(len(paths)))], int(rng.integers(16 * PAGE_BYTES))
        flip(path, offset, int(rng.integers(8)))
        inside = [p for p in made.placed.values() if p.path == path]
        if offset < PAGE_BYTES:
            wrong |= {(p.chunk, p.strip.plane_class) for p in inside}
            named.add(str(path))
        for p in inside:
            if p.begin <= offset < p.begin + len(p.strip.data):
                part = cell_at(p.strip, offset - p.begin)
                wrong |= {(p.chunk, p.strip.plane_class)} if part is not None else set()
    before = segment_bytes_of(made)
    answer = check.json(made.paths)
    assert answer.code == (1 if wrong else 0)
    assert named <= {f["where"] for f in answer.findings}
    told = {(Path(f["where"].split()[0]), int(f["where"].split()[2])) for f in answer.findings
            if f["kind"] in ("strip", "cell")}  # fmt: skip
    strips = {(p.path, p.page) for c in wrong for p in [made.placed[c]] if str(p.path) not in named}
    assert told == strips
    check(made.paths, "--repair")
    assert classes_of(made) == fallen(made, wrong)
    after = segment_bytes_of(made)
    assert after.items() <= before.items() and {str(p) for p in before.keys() - after} == named
    assert check.json(made.paths).findings == []


@pytest.mark.parametrize("seed", range(4))
def test_flips_in_superblock_and_canary(tmp_path, check, seed, monkeypatch):
    look_here(monkeypatch)
    rng = np.random.default_rng(seed)
    made = make_set(tmp_path)
    files = [made.paths[0] / name for name in ("superblock", "canary")]
    before = [file.read_bytes() for file in files]
    offsets = [int(rng.integers(8, PAGE_BYTES)), int(rng.integers(PAGE_BYTES))]
    for file, offset in zip(files, offsets, strict=True):
        flip(file, offset, int(rng.integers(8)))
    answer = check.json(made.paths, "--repair")
    assert [(f["kind"], f["where"]) for f in answer.findings] == [
        ("superblock", str(files[0])), ("canary", str(files[1])),
    ]  # fmt: skip
    assert files[0].read_bytes() == before[0] and classes_of(made) == WHOLE
    assert check.json(made.paths).findings == []
    flip(files[0], int(rng.integers(8)), int(rng.integers(8)))  # The magic: it may be anybody's.
    changed = files[0].read_bytes()
    assert "kvd did not make it" in check.refused(made.paths, "--repair")
    assert files[0].read_bytes() == changed


@pytest.mark.parametrize("seed", range(9))
def test_flips_in_the_catalog_cost_what_they_hit(tmp_path, check, seed):
    rng = np.random.default_rng(seed)
    made = make_set(tmp_path)
    data = made.paths[0] / "catalog" / "data.mdb"
    used = np.flatnonzero(np.frombuffer(data.read_bytes(), np.uint8))
    pages = np.unique(used // PAGE_BYTES)
    for _ in range(1 + seed % 3):
        # At the heads of pages, where LMDB believes most, or at bytes that say something.
        head = int(rng.choice(pages)) * PAGE_BYTES + int(rng.integers(40))
        flip(data, (head, int(rng.choice(used)))[int(rng.integers(2))], int(rng.integers(8)))
    segments = segment_bytes_of(made)
    answer = check.json(made.paths, "--repair")
    again = check.json(made.paths)
    assert again.code == 0 and again.findings == []
    if answer.report["catalog"] is None:
        assert answer.code == 1 and "catalog" in answer.report["wrong"]
        assert segment_bytes_of(made) == {}
        return
    left = classes_of(made)
    assert left == WHOLE or answer.code == 1
    assert all(left[chunk] <= WHOLE[chunk] for chunk in left)
    assert segment_bytes_of(made).items() <= segments.items()


@pytest.mark.parametrize("size", [0, 100, PAGE_BYTES, 2 * PAGE_BYTES, 3 * PAGE_BYTES + 1])
def test_a_catalog_that_was_cut_off(tmp_path, check, size):
    made = make_set(tmp_path)
    os.truncate(made.paths[0] / "catalog" / "data.mdb", size)
    answer = check.json(made.paths, "--quick")
    assert answer.code == 1 and answer.report["wrong"] == {"catalog": 1}
    assert answer.report["catalog"] is None and "damaged" in answer.findings[0]["what"]


@pytest.mark.parametrize("change", ["rubbish", "missing", "gone"])
def test_without_a_catalog_the_set_begins_anew(tmp_path, check, change):
    made = make_set(tmp_path, 2)
    data = made.paths[0] / "catalog" / "data.mdb"
    match change:
        case "rubbish":
            data.write_bytes(np.random.default_rng(1).bytes(1 << 20))
        case "missing":
            data.unlink()
        case "gone":
            shutil.rmtree(data.parent)
    found = check.json(made.paths)
    assert found.code == 1 and found.report["catalog"] is None
    assert ("catalog", "wrong", "catalog") in tell(found)
    assert "begins anew" in found.findings[0]["repair"]
    lines = check(made.paths).out.splitlines()
    assert lines[-1] == "not whole: --repair would begin the set anew"
    answer = check(made.paths, "--repair")
    assert answer.code == 1 and answer.out.splitlines()[-1] == "repaired: the set begins anew"
    assert not any((path / "catalog").exists() for path in made.paths)
    assert segment_bytes_of(made) == {}
    again = check.json(made.paths)
    assert again.code == 0 and again.findings == []


def test_what_is_left_of_a_removed_catalog_is_removed(tmp_path, check):
    for directory in open_directories([tmp_path / "data"], SEGMENT_BYTES, OsFiles()):
        directory.release()
    (tmp_path / "data" / "catalog").mkdir()
    answer = check.json([tmp_path / "data"], "--repair")
    assert answer.code == 0 and tell(answer) == [("file", "left", "catalog")]
    assert not (tmp_path / "data" / "catalog").exists()

"""What `kvd check` finds wrong in files, and what `--repair` does: never more than it must."""

import errno
import os
import shutil

import lmdb
import pytest

from kvd.catalog.contract import Contents
from kvd.catalog.environment import Environment
from kvd.catalog.loading import load_catalog
from kvd.disk.contract import SegmentPlace
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.disk.heads import make_segment, recycle_segment
from kvd.format.segment import SegmentHead, pack_segment_head, segment_name
from kvd.limits import PAGE_BYTES
from kvd.types import PlaneClass
from tests.unit.check_scene import (
    LENGTHS,
    SEGMENT_BYTES,
    Check,
    flip,
    look_here,
    make_set,
    segment_bytes_of,
    tell,
)


@pytest.fixture
def check(capsys, monkeypatch):
    look_here(monkeypatch)
    return Check(capsys)


def classes_of(made):
    """Return how many classes each chunk has in the catalog, by its generation."""
    contents = load_catalog(made.paths[0] / "catalog")
    assert isinstance(contents, Contents) and not contents.refused
    counts = (contents.rows["pages"] != 0).sum(axis=1).tolist()
    return dict(zip((contents.rows["generation"] - 1000).tolist(), counts, strict=True))


WHOLE = {chunk: 2 if chunk in (5, 9) else 3 for chunk in range(sum(LENGTHS))}


def repaired(made, check, *, level="wrong"):
    """Repair, and see that all is well afterwards.

    Return findings and how many classes each chunk has left.
    """
    answer = check.json(made.paths, "--repair")
    assert answer.code == (1 if level == "wrong" else 0) and answer.report["repaired"]
    assert answer.report[level] and not answer.report["left" if level == "wrong" else "wrong"]
    again = check.json(made.paths)
    assert again.code == 0 and again.findings == [] and again.report["whole"]
    for directory in open_directories(made.paths, SEGMENT_BYTES, OsFiles()):
        directory.release()
    return tell(answer), classes_of(made) if (made.paths[0] / "catalog").exists() else {}


def lost(made, left):
    """Return (before, after) of the chunks that have fewer classes than they had."""
    return {c: (n, left.get(c, 0)) for c, n in WHOLE.items() if left.get(c, 0) != n}


def test_repair_says_what_a_look_says(tmp_path, check):
    made = make_set(tmp_path, 2)
    flip(made.placed[3, 1].path, made.placed[3, 1].begin)
    flip(made.paths[1] / "canary", 7)
    made.placed[9, 0].path.unlink()
    found, answer = check.json(made.paths), check.json(made.paths, "--repair")
    assert len(found.findings) == 3 and not found.report["repaired"]
    assert answer.report == found.report | {"repaired": True}


# ---- strips ----


def test_wrong_strips_cost_their_classes_and_what_stands_on_them(tmp_path, check):
    made = make_set(tmp_path, 2)
    for chunk, plane_class, offset in (
        (0, PlaneClass.EXACT, -60), (2, PlaneClass.RESIDUAL, 17), (3, PlaneClass.EXACT, 48),
        (8, PlaneClass.ANCHOR, 5),
    ):  # fmt: skip
        placed = made.placed[chunk, plane_class]
        flip(placed.path, placed.begin + offset % len(placed.strip.data))
    before = segment_bytes_of(made)
    findings, left = repaired(made, check)
    assert sorted(kind for kind, *_ in findings) == ["cell", "cell", "strip", "strip"]
    assert lost(made, left) == {
        0: (3, 2), 1: (3, 2), 2: (3, 1), 3: (3, 1), 4: (3, 1), 5: (2, 1), 8: (3, 0), 9: (2, 0),
    }  # fmt: skip
    assert segment_bytes_of(made) == before


def test_what_is_said_of_a_strip(tmp_path, check):
    made = make_set(tmp_path)
    placed = made.placed[7, 1]
    flip(placed.path, placed.begin + 48)
    [finding] = check.json(made.paths).findings
    chunk = made.rows["chain"][7, :8].tobytes().hex()
    pages = f"pages {placed.page} to {placed.page + placed.pages - 1}"
    assert finding == {
        "kind": "cell", "level": "wrong", "where": f"{placed.path} {pages}",
        "what": f"the residual strip of chunk {chunk} (generation 1007) has 1 of 3 cells of "
        "another checksum, the first is cell 0",
        "repair": "drops residual, exact of the chunk, and what stands on it",
    }  # fmt: skip
    lines = check(made.paths).out.splitlines()
    assert lines[-1] == "not whole: --repair would drop 0 chunks and leave 3 with fewer classes"
    assert f"  {finding['where']}: {finding['what']}; repair {finding['repair']}" in lines
    lines = check(made.paths, "--repair").out.splitlines()
    assert lines[-1] == "repaired: 0 chunks dropped, 3 left with fewer classes"


def test_two_strips_in_each_others_place_are_both_wrong(tmp_path, check):
    made = make_set(tmp_path)
    a, b = made.placed[0, 2], made.placed[3, 2]
    assert a.pages == b.pages
    for place, strip in ((a, b.strip), (b, a.strip)):
        with open(place.path, "r+b") as file:
            os.pwrite(file.fileno(), strip.data, place.begin)
    answer = check.json(made.paths)
    assert [f["what"].split(") ")[1] for f in answer.findings] == [
        "has a table that does not fit its root"
    ] * 2
    _, left = repaired(made, check)
    assert lost(made, left) == {chunk: (3, 2) for chunk in range(5)}


def test_many_findings_are_counted_and_the_first_ones_told(tmp_path, check, monkeypatch):
    monkeypatch.setattr("kvd.checking.findings.KEPT_OF_A_KIND", 4)
    made = make_set(tmp_path)
    for placed in made.placed.values():
        flip(placed.path, placed.begin)
    answer = check.json(made.paths)
    assert answer.report["wrong"] == {"strip": 28} and len(answer.findings) == 4
    assert answer.report["findings_left_out"] == 24
    assert "  and 24 more: see --json" in check(made.paths).out.splitlines()
    check(made.paths, "--repair")
    assert classes_of(made) == {}


# ---- segments ----


def test_a_missing_segment_costs_the_strips_in_it(tmp_path, check):
    made = make_set(tmp_path, 2)
    path = made.placed[9, 0].path
    path.unlink()
    findings, left = repaired(made, check)
    assert findings == [("segment", "wrong", path.name)]
    gone = {p.chunk for p in made.placed.values() if p.path == path}
    assert gone and lost(made, left) == {chunk: (WHOLE[chunk], 0) for chunk in gone}


def test_a_truncated_segment_keeps_what_is_all_there(tmp_path, check):
    made = make_set(tmp_path)
    headless, short = made.placed[9, 1].path, made.placed[0, 2].path
    cut = made.placed[3, 2]
    os.truncate(headless, 100)
    os.truncate(short, cut.begin + PAGE_BYTES - 1)
    findings, left = repaired(made, check)
    inside = [p for p in made.placed.values() if p.path == short and p.page < cut.page]
    assert len(inside) >= 3 and {("segment", "wrong", p.name) for p in (headless, short)} < {
        *findings
    }
    assert {kind for kind, *_ in findings} == {"segment", "strip"}
    assert not headless.exists() and short.stat().st_size == SEGMENT_BYTES
    gone = {p.chunk for p in made.placed.values() if p.path == headless}
    for chunk in WHOLE:
        kept = 3 if chunk in {p.chunk for p in inside} else 2
        assert left[chunk] == min(WHOLE[chunk], 1 if chunk in gone else kept)


def test_a_segment_that_is_too_long_gets_its_size(tmp_path, check):
    made = make_set(tmp_path)
    path = made.placed[0, 0].path
    with open(path, "ab") as file:
        file.write(b"more")
    findings, left = repaired(made, check)
    assert findings == [("segment", "wrong", path.name)] and left == WHOLE
    assert path.stat().st_size == SEGMENT_BYTES


def put_head(made, path, place):
    """Give the file of a segment another head, sound in itself."""
    [directory] = open_directories(made.paths, SEGMENT_BYTES, OsFiles())
    assert make_segment(OsFiles(), directory, place) is None
    directory.release()
    other = path.with_name(segment_name(place.segment))
    head = other.read_bytes()[:PAGE_BYTES]
    other.unlink()
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), head, 0)


def test_what_is_said_of_segments(tmp_path, check):
    made = make_set(tmp_path)
    first, second, third, fourth, fifth, sixth = sorted({p.path for p in made.placed.values()})
    flip(first, 3)
    flip(second, 4095)
    third.rename(tmp_path / "elsewhere")
    third.symlink_to(tmp_path / "elsewhere")
    fourth.unlink()
    fourth.mkdir()
    (fourth / "below").touch()
    put_head(made, fifth, SegmentPlace(0, 99, 1, PlaneClass.ANCHOR))
    flip(sixth, 44)
    answer = check.json(made.paths)
    assert {f["where"]: f["what"] for f in answer.findings} == {
        str(first): "does not begin with kvdsegmt: kvd did not make it",
        str(second): "is damaged: its checksum does not fit",
        str(third): "is not there", str(fourth): "is not there",
        str(fifth): "its head is another segment's",
        str(sixth): "is damaged: its checksum does not fit",
    }  # fmt: skip
    _, left = repaired(made, check)
    assert left == {} and segment_bytes_of(made) == {}
    assert (tmp_path / "elsewhere").stat().st_size == SEGMENT_BYTES


@pytest.mark.parametrize(
    ("epoch", "plane_class", "said"),
    [
        (2, PlaneClass.RESIDUAL, "is of epoch 2, and the catalog says 1"),
        (1, PlaneClass.EXACT, "is of class exact, and the catalog says residual"),
    ],
)
def test_a_head_that_says_something_else_costs_its_segment(
    tmp_path, check, epoch, plane_class, said
):
    made = make_set(tmp_path)
    path = made.placed[9, 1].path
    [directory] = open_directories(made.paths, SEGMENT_BYTES, OsFiles())
    place = SegmentPlace(0, int(path.name), epoch, plane_class)
    assert recycle_segment(OsFiles(), directory, place) is None
    directory.release()
    [finding] = check.json(made.paths).findings
    assert finding["what"] == said and finding["where"] == str(path)
    findings, left = repaired(made, check)
    assert findings == [("segment", "wrong", path.name)] and not path.exists()
    gone = {p.chunk for p in made.placed.values() if p.path == path}
    assert lost(made, left) == {chunk: (WHOLE[chunk], 1) for chunk in gone}


# ---- everything else that lies about ----


def test_unknown_files_are_removed(tmp_path, check):
    made = make_set(tmp_path, 2)
    segments = made.paths[1] / "segments"
    shutil.copy(made.placed[0, 0].path, segments / "00000077")
    (segments / "00000001.new").touch()
    (segments / "some" / "thing").mkdir(parents=True)
    (made.paths[1] / "superblock.new").write_bytes(b"half")
    (made.paths[0] / "catalog.new").mkdir()
    findings, left = repaired(made, check, level="left")
    assert {(kind, level) for kind, level, _ in findings} == {("file", "left")}
    names = {name for *_, name in findings}
    assert names == {"00000077", "00000001.new", "some", "superblock.new", "catalog.new"}
    assert left == WHOLE


def test_files_of_others_are_told_and_left(tmp_path, check):
    made = make_set(tmp_path)
    (made.paths[0] / "thesis.txt").write_text("mine")
    for flags in ((), ("--repair",), ()):
        answer = check.json(made.paths, *flags)
        assert answer.code == 0
        assert tell(answer) == [("file", "left", "thesis.txt")]
    assert (made.paths[0] / "thesis.txt").read_text() == "mine"


def test_a_wrong_canary_is_written_anew(tmp_path, check):
    made = make_set(tmp_path, 4)
    flipped, short, link, missing = (path / "canary" for path in made.paths)
    flip(flipped, 1000)
    os.truncate(short, 100)
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    missing.unlink()
    findings, left = repaired(made, check, level="left")
    assert findings == [("canary", "left", "canary")] * 4 and left == WHOLE


def test_a_missing_directory_of_segments(tmp_path, check):
    made = make_set(tmp_path)
    shutil.rmtree(made.paths[0] / "segments")
    findings, left = repaired(made, check)
    assert len(findings) == len({p.path for p in made.placed.values()}) and left == {}


# ---- superblocks ----


@pytest.mark.parametrize(("change", "number"), [("flipped", 0), ("long", 1), ("missing", 0)])
def test_a_superblock_is_put_back_as_it_was(tmp_path, check, change, number):
    made = make_set(tmp_path, 2)
    path = made.paths[number] / "superblock"
    before = path.read_bytes()
    match change:
        case "flipped":
            flip(path, 30)
        case "long":
            path.write_bytes(before + b"more")
        case "missing":
            path.unlink()
    findings, left = repaired(made, check)
    assert findings == [("superblock", "wrong", "superblock")] and left == WHOLE
    assert path.read_bytes() == before


def test_a_superblock_that_nothing_tells_is_not_guessed(tmp_path, check):
    made = make_set(tmp_path)
    shutil.rmtree(made.paths[0] / "segments")
    flip(made.paths[0] / "superblock", 30)
    line = check.refused(made.paths, "--repair")
    assert "is damaged" in line and "empty all of them" in line
    made = make_set(tmp_path / "two", 2)
    for path in made.paths:  # Nothing says that they belong together.
        flip(path / "superblock", 30)
    assert "nothing else says for certain" in check.refused(made.paths, "--repair")
    made = make_set(tmp_path / "sizes")  # One segment says another size than all others.
    path = made.placed[0, 0].path
    size = SEGMENT_BYTES * 2
    [directory] = open_directories(made.paths, SEGMENT_BYTES, OsFiles())
    uuid = directory.superblock.directory
    directory.release()
    with open(path, "r+b") as file:
        head = SegmentHead(uuid, int(path.name), 1, PlaneClass.ANCHOR, size)
        os.pwrite(file.fileno(), pack_segment_head(head), 0)
    (made.paths[0] / "superblock").unlink()
    assert "nothing else says for certain" in check.refused(made.paths, "--repair")
    made = make_set(tmp_path / "b")
    path = made.paths[0] / "superblock"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert "kvd did not make it" in check.refused(made.paths, "--repair")


# ---- repairs that do not come to their end ----


def test_files_go_only_after_the_catalog_forgot_them(tmp_path, check, monkeypatch):
    made = make_set(tmp_path)
    path = made.placed[9, 0].path
    flip(path, 100)

    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("kvd.checking.repair._remove", fail)
        line = check.refused(made.paths, "--repair")
        assert os.strerror(errno.EIO) in line and str(path) in line
    findings, _ = repaired(made, check, level="left")
    assert findings == [("file", "left", path.name)]


def test_a_commit_that_fails_costs_no_file(tmp_path, check, monkeypatch):
    made = make_set(tmp_path)
    flip(made.placed[9, 0].path, 100)
    before = segment_bytes_of(made)

    def fail(*arguments):
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("kvd.catalog.environment.Environment.apply", fail)
        line = check.refused(made.paths, "--repair")
        assert "Input/output error" in line and "repair again" in line
    assert segment_bytes_of(made) == before and classes_of(made) == WHOLE
    findings, _ = repaired(made, check)
    assert findings == [("segment", "wrong", made.placed[9, 0].path.name)]


def test_rows_go_before_the_record_of_their_segment(tmp_path, check, monkeypatch):
    """Else a crash in between would cost whole chunks, not classes."""
    made = make_set(tmp_path)
    flip(made.placed[9, 1].path, 100)
    told = []
    real = Environment.apply

    def apply(self, group):
        told.extend(group)
        real(self, group)

    monkeypatch.setattr(Environment, "apply", apply)
    check(made.paths, "--repair")
    assert [(len(each.rows) > 0, len(each.dropped) > 0) for each in told] == [
        (True, False), (False, True)
    ]  # fmt: skip

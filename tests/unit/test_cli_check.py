"""`kvd check` on whole sets and on what it cannot check: what it prints, and how it ends."""

import errno
import fcntl
import os
import shutil
import struct
import sys

import pytest

from kvd.checking import reading
from kvd.checksum import checksum
from kvd.cli import check as verb
from kvd.cli.check_flags import EPILOG
from kvd.cli.main import main
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.limits import PAGE_BYTES
from tests.unit.check_scene import SEGMENT_BYTES, Check, make_set, segment_bytes_of


@pytest.fixture
def check(capsys):
    return Check(capsys)


def allocated(path):
    """Return the blocks of a directory and all in it, as `du` counts them."""
    paths = [path, *(path / name for name in _below(path))]
    return sum(os.lstat(each).st_blocks * 512 for each in paths)


def _below(path):
    return [os.path.join(at, name) for at, *names in os.walk(path) for name in sum(names, [])]


def put_version(path, version):
    """Give a superblock another version, with a checksum that fits."""
    data = bytearray((path / "superblock").read_bytes())
    data[8:12] = struct.pack("<I", version)
    data[16:24] = struct.pack("<Q", checksum(bytes(data[:16] + data[24:])))
    (path / "superblock").write_bytes(data)


# ---- whole sets ----


@pytest.mark.parametrize("count", [1, 2])
def test_a_whole_set_is_whole(tmp_path, check, count):
    made = make_set(tmp_path, count)
    answer = check(made.paths[::-1])
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[-1] == "whole" and "read: 28 strips of 84 cells, 220.0 KiB" in lines
    assert "catalog: 10 chunks, 1 keyspaces, 1.0 MiB" in lines
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["anchor", "2", "10"], ["residual", "2", "10"], ["exact", "2", "8"],
    ]  # fmt: skip


def test_a_set_that_is_new_is_whole(tmp_path, check):
    for directory in open_directories([tmp_path / "data"], SEGMENT_BYTES, OsFiles()):
        directory.release()
    answer = check.json([tmp_path / "data"])
    assert answer.code == 0 and answer.report["whole"] and answer.report["catalog"] is None


def test_json_is_what_the_help_says(tmp_path, check):
    made = make_set(tmp_path, 2)
    report = check.json(made.paths).report
    said = EPILOG.split("--json prints")[1]
    assert sorted(report) == sorted(
        name for line in said.splitlines() if line[:2] == "  " and line[2] != " "
        for name in line[2:20].replace(",", "").split()
    )  # fmt: skip
    for part in ("directories", "segments", "findings"):
        assert isinstance(report[part], list)
    for name in [
        *report["directories"][0], *report["segments"][0], *report["classes"]["anchor"],
        *report["catalog"], *report["read"],
    ]:  # fmt: skip
        assert name in said, name
    assert report["read"] == {"strips": 28, "cells": 84, "bytes": 55 * PAGE_BYTES}
    assert (report["wrong"], report["left"], report["findings_left_out"]) == ({}, {}, 0)


def test_accounts_are_the_sum_of_their_parts(tmp_path, check):
    made = make_set(tmp_path, 2)
    report = check.json(made.paths, "--quick").report
    for path, space in zip(made.paths, report["directories"], strict=True):
        parts = ("segments_bytes", "catalog_bytes", "other_bytes")
        assert sum(space[part] for part in parts) == space["allocated_bytes"] == allocated(path)
    for segment in report["segments"]:
        parts = ("live_bytes", "dead_bytes", "free_bytes")
        assert sum(segment[part] for part in parts) == SEGMENT_BYTES - PAGE_BYTES
    for name, sums in report["classes"].items():
        own = [s for s in report["segments"] if s["class"] == name]
        assert sums["segments"] == len(own)
        for part in ("strips", "live_bytes", "dead_bytes", "free_bytes"):
            assert sums[part] == sum(segment[part] for segment in own)
    assert sum(s["live_bytes"] for s in report["segments"]) == 55 * PAGE_BYTES


def test_quick_reads_no_strips(tmp_path, check):
    made = make_set(tmp_path)
    with open(made.placed[0, 0].path, "r+b") as file:
        os.pwrite(file.fileno(), b"rubbish", made.placed[0, 0].begin)
    answer = check.json(made.paths, "--quick")
    assert answer.code == 0 and answer.report["read"]["strips"] == 0 and answer.report["quick"]
    assert check(made.paths, "--quick").out.splitlines()[-2] == "read: no strips"
    assert check.json(made.paths).code == 1


@pytest.mark.parametrize("size", [PAGE_BYTES, 3 * PAGE_BYTES])
def test_strips_larger_than_the_buffer_are_read_in_parts(tmp_path, check, monkeypatch, size):
    made = make_set(tmp_path)
    monkeypatch.setattr(reading, "BUFFER_BYTES", size)
    answer = check.json(made.paths)
    assert answer.code == 0 and answer.report["read"]["cells"] == 84
    placed = made.placed[1, 1]  # Three pages; its last cell is in the last one.
    with open(placed.path, "r+b") as file:
        os.pwrite(file.fileno(), b"!", placed.begin + 3 * PAGE_BYTES - 100)
    [finding] = check.json(made.paths).findings
    assert "1 of 3 cells" in finding["what"] and "cell 2" in finding["what"]


def test_a_strip_that_cannot_be_read_costs_its_neighbours_nothing(tmp_path, check, monkeypatch):
    made = make_set(tmp_path)
    bad, real = made.placed[2, 0], os.preadv

    def preadv(descriptor, views, offset):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(bad.path):
            end = offset + sum(len(view) for view in views)
            if offset <= bad.begin < end:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, views, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    answer = check.json(made.paths)
    [finding] = answer.findings
    assert answer.code == 1 and finding["kind"] == "strip"
    assert os.strerror(errno.EIO) in finding["what"]
    assert finding["where"] == f"{bad.path} pages {bad.page} to {bad.page + bad.pages - 1}"


class Medium:
    """Fails reads of strips, and of other files of a drive, with one errno."""

    def __init__(self, monkeypatch, under, code):
        self.under, self.code = str(under), code
        self.files, self.left = 0, 10**9  # Reads that other files still give; how often it fails.
        self._preadv = os.preadv
        monkeypatch.setattr(os, "preadv", self.preadv)

    def preadv(self, descriptor, views, offset):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        fails = path.startswith(self.under) and self.left > 0
        if fails and "segments" not in path:
            self.files -= 1
            fails = self.files < 0
        elif fails:
            fails = offset > 0  # Heads were read before it went.
            self.left -= fails
        if fails:
            raise OSError(self.code, os.strerror(self.code))
        return self._preadv(descriptor, views, offset)


# Look at a canary, once before each second look at a strip, and never again.
@pytest.mark.parametrize(
    ("code", "files"),
    [
        (errno.ENOMEM, 10**9), (errno.EIO, 1), (errno.EIO, 2), (errno.ENODATA, 1),
        (errno.EUCLEAN, 10**9),
    ],
    ids=str,
)  # fmt: skip
def test_a_drive_that_could_not_be_read_is_no_damage(tmp_path, check, monkeypatch, code, files):
    made = make_set(tmp_path, 2)
    with monkeypatch.context() as patch:
        Medium(patch, made.paths[1], code).files = files
        said = check.refused(made.paths, "--repair")
        assert os.strerror(code) in said and "nothing was changed" in said
        assert f"{made.paths[1]}/segments/0000" in said
    assert check.json(made.paths).code == 0
    with monkeypatch.context() as patch:
        Medium(patch, made.paths[1], code).files = files
        answer = check.json(made.paths)
    away = [p for p in made.placed.values() if p.path.is_relative_to(made.paths[1])]
    assert answer.code == 1 and answer.report["wrong"] == {"strip": len(away)}
    assert {f["repair"] for f in answer.findings} >= {"changes nothing before it can be read"}
    assert all(os.strerror(code) in f["what"] for f in answer.findings)


def test_what_is_said_of_a_drive_that_could_not_be_read(tmp_path, check, monkeypatch):
    made = make_set(tmp_path)
    Medium(monkeypatch, made.paths[0], errno.ENOMEM)
    lines = check(made.paths).out.splitlines()
    assert lines[-1] == "not whole: --repair changes nothing before 28 strips can be read"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.EIO], ids=str)
def test_a_segment_that_could_not_be_opened_is_no_damage(tmp_path, check, monkeypatch, code):
    made, real = make_set(tmp_path), os.open
    bad = made.placed[0, 0].path
    heads = iter([True])  # Its head is read before.

    def fails(path, *rest, **named):
        if str(path) == str(bad) and not next(heads, False):
            raise OSError(code, os.strerror(code))
        return real(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        said = check.refused(made.paths, "--repair")
    assert os.strerror(code) in said and "nothing was changed" in said and str(bad) in said
    assert check.json(made.paths).code == 0


def test_a_read_that_fails_once_is_no_finding(tmp_path, check, monkeypatch):
    made = make_set(tmp_path, 2)
    medium = Medium(monkeypatch, made.paths[1], errno.EIO)
    medium.files, medium.left = 10**9, 1
    answer = check.json(made.paths, "--repair")
    assert medium.left == 0 and answer.code == 0 and answer.findings == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENODATA], ids=errno.errorcode.get)
def test_what_its_medium_lost_is_dropped(tmp_path, check, monkeypatch, code):
    made = make_set(tmp_path, 2)
    with monkeypatch.context() as patch:
        Medium(patch, made.placed[0, 2].path, code)
        answer = check.json(made.paths, "--repair")
    assert answer.code == 1 and answer.report["repaired"]
    assert all("drops exact of the chunk" in f["repair"] for f in answer.findings)
    assert check.json(made.paths).findings == []


def test_progress_is_for_terminals_only(tmp_path, check, monkeypatch):
    made = make_set(tmp_path)
    assert check.json(made.paths).err == ""
    told = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        "rich.progress.Progress.update", lambda self, task, **said: told.append(said)
    )
    assert check(made.paths, "--json").report["whole"]
    strips = [said for said in told if said["description"] == "strips"]
    done = [said["completed"] for said in strips]
    assert done == sorted(done) and done[-1] == strips[-1]["total"] == 55 * PAGE_BYTES


# ---- what cannot be checked ----


def test_without_data_it_is_a_usage_error(capsys):
    for words in (["check"], ["check", "--data"], ["check", "--data", "a", "--fast"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_what_is_no_data_directory_is_refused_and_left_alone(tmp_path, check):
    (tmp_path / "file").touch()
    for name in ("empty", "foreign", "begun"):
        (tmp_path / name).mkdir()
    (tmp_path / "foreign" / "thesis.txt").touch()
    (tmp_path / "begun" / "segments").mkdir()
    for name, said in (
        ("none", "is not there"), ("file", "is a file"), ("file/below", "is a file"),
        ("empty", "is empty"), ("foreign", "holds no superblock"), ("begun", "holds no superblock"),
    ):  # fmt: skip
        for flags in ((), ("--repair",)):
            line = check.refused([tmp_path / name], *flags)
            assert said in line and str(tmp_path / name) in line
    assert os.listdir(tmp_path / "empty") == [] and not (tmp_path / "none").exists()
    assert os.listdir(tmp_path / "foreign") == ["thesis.txt"]


@pytest.mark.parametrize(("version", "said"), [(0, "older"), (2, "newer"), (7, "newer")])
def test_other_versions_stay_untouched(tmp_path, check, version, said):
    made = make_set(tmp_path)
    put_version(made.paths[0], version)
    before = (made.paths[0] / "superblock").read_bytes()
    line = check.refused(made.paths, "--repair")
    assert said in line and f"format {version}" in line and "stays untouched" in line
    assert (made.paths[0] / "superblock").read_bytes() == before


def test_a_foreign_superblock_stays_untouched(tmp_path, check):
    made = make_set(tmp_path)
    (made.paths[0] / "lock").unlink()
    (made.paths[0] / "superblock").write_bytes(b"somebody else's".ljust(PAGE_BYTES))
    assert "kvd did not make it" in check.refused(made.paths, "--repair")
    assert not (made.paths[0] / "lock").exists()


def test_sets_are_checked_as_a_whole(tmp_path, check):
    made, other = make_set(tmp_path / "a", 2), make_set(tmp_path / "b")
    assert "not made together" in check.refused([*made.paths, *other.paths])
    assert "in another directory" in check.refused(made.paths[1:])
    line = check.refused(made.paths[:1])
    assert "knows 2 data directories" in line and "1 of them" in line
    assert "not apart" in check.refused([made.paths[0], made.paths[0]])
    shutil.copytree(other.paths[0], tmp_path / "copy")
    assert "copied" in check.refused([*other.paths, tmp_path / "copy"])


def test_an_unused_directory_beside_a_set_is_refused(tmp_path, check):
    made = make_set(tmp_path)
    (tmp_path / "fresh").mkdir()
    assert "is empty" in check.refused([*made.paths, tmp_path / "fresh"])


def test_a_directory_in_use_is_refused(tmp_path, check):
    made = make_set(tmp_path, 2)
    lock = os.open(made.paths[1] / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for flags in ((), ("--quick",), ("--repair",)):
        line = check.refused(made.paths, *flags)
        assert "is in use by another kvd" in line and str(made.paths[1]) in line
    os.close(lock)
    assert check.json(made.paths).code == 0
    with open(made.paths[1] / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # It let go.


def test_failures_of_the_system_are_one_line(tmp_path, check, monkeypatch):
    made = make_set(tmp_path)

    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(made.paths[0] / "x"))

    monkeypatch.setattr("kvd.checking.check.account", fail)
    line = check.refused(made.paths)
    assert os.strerror(errno.EIO) in line and str(made.paths[0] / "x") in line


def test_an_interrupt_is_one_line(tmp_path, check, monkeypatch):
    made = make_set(tmp_path)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(verb, "check", interrupt)
    assert "nothing is changed" in check.refused(made.paths)
    assert "repaired so far" in check.refused(made.paths, "--repair")


def test_a_path_that_is_no_text_is_refused_in_text(tmp_path, check):
    assert "is not UTF-8" in check.refused([tmp_path / os.fsdecode(b"\xff\xfe")])
    made = make_set(tmp_path / "größer")
    assert check(made.paths).code == 0
    assert check.json(made.paths).report["directories"][0]["path"] == str(made.paths[0])


def test_a_reader_that_cannot_read_is_no_damage(tmp_path, check, monkeypatch):
    made = make_set(tmp_path)
    monkeypatch.setattr("kvd.catalog.looking.sys.executable", str(tmp_path / "none"))
    assert "nothing was changed" in check.refused(made.paths, "--repair")
    monkeypatch.undo()
    assert check.json(made.paths).code == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
def test_a_segment_that_could_not_be_read_is_no_damage(tmp_path, check, monkeypatch, code):
    made = make_set(tmp_path)
    before = segment_bytes_of(made)

    def fails(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("kvd.checking.files.read_head", fails)
        said = check.refused(made.paths, "--repair")
    assert os.strerror(code) in said and "nothing was changed" in said
    assert "segments/0000" in said
    assert segment_bytes_of(made) == before and check.json(made.paths).code == 0

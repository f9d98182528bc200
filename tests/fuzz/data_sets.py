"""A row of the table: a whole set of data directories as `kvd check` finds it, and repairs it.

An input says what is changed of a set that is good: a byte for the file and whether it is repaired,
then places with the bytes that are put there; none means that the file ends there.
"""

import os
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path

import pytest

from kvd.checking.check import Report, Wish, check
from kvd.checking.findings import Level
from kvd.checking.reading import BUFFER_BYTES, THREADS
from kvd.cli.check_report import as_lines, as_object
from kvd.errors import KvdError
from kvd.limits import MIB, PAGE_BYTES
from tests.fuzz import parser
from tests.fuzz.parser import Parser
from tests.unit.check_scene import look_here, make_set

_EDIT = struct.Struct("<HHB")  # Page, place in it, how many bytes follow.
REPAIR = 0x80


@cache
def _good() -> tuple[tempfile.TemporaryDirectory, tuple[Path, ...], tuple[Path, ...]]:
    """Return a good set, its directories and its files but the catalog's, all relative."""
    home = tempfile.TemporaryDirectory(prefix="kvd-set-", dir=parser.scratch_home)
    root = Path(home.name)
    made = make_set(root, directories=2)
    files = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file()]
    files = [path for path in files if "catalog" not in path.parts]
    return home, tuple(path.relative_to(root) for path in made.paths), tuple(files)


def _take_set(data: bytes) -> bool:
    if not data:
        return False
    good, directories, files = _good()
    with tempfile.TemporaryDirectory(prefix="kvd-set-", dir=parser.scratch_home) as scratch:
        root = Path(scratch) / "set"
        shutil.copytree(good.name, root)
        _edit(root / files[data[0] % REPAIR % len(files)], data[1:])
        paths = [root / each for each in directories]
        report = _check(paths, Wish())
        if data[0] & REPAIR:
            _check(paths, Wish(repair=True))
            again = _check(paths, Wish())
            assert not again.findings.count(Level.WRONG), "what was repaired is wrong still"
        return not report.findings.count(Level.WRONG)


def _check(paths: list[Path], wish: Wish) -> Report:
    """Check, and say what was found as the command does."""
    with pytest.MonkeyPatch.context() as patch:
        look_here(patch)
        report = check(paths, wish, lambda stage, done, of: None)
    assert as_object(report, wish) and all("\n" not in line for line in as_lines(report))
    return report


def _edit(path: Path, data: bytes) -> None:
    at = 0
    with open(path, "r+b") as file:
        while at + _EDIT.size <= len(data):
            page, place, size = _EDIT.unpack_from(data, at)
            at += _EDIT.size
            offset = page % 64 * PAGE_BYTES + place % PAGE_BYTES
            if size:
                os.pwrite(file.fileno(), data[at : at + size], offset)
            else:
                os.ftruncate(file.fileno(), offset)
            at += size


def _sets() -> list[bytes]:
    _, _, files = _good()
    nothing = [bytes([at]) for at in range(len(files))]
    table = _EDIT.pack(1, 0, 16) + bytes(16)
    cell = _EDIT.pack(1, 100, 1) + b"\1"
    head = _EDIT.pack(0, 8, 4) + b"\2\0\0\0"
    end = _EDIT.pack(2, 0, 0)
    edits = (table, cell, head, end, cell + end)
    return [
        nothing[0],
        *(bytes([at | REPAIR]) + edits[at % len(edits)] for at in range(len(files))),
        *(nothing[at] + edits[at // 2 % len(edits)] for at in range(len(files))),
    ]


PARSERS = (
    Parser(
        "data_set", _take_set, _sets,
        ("checking/check.py:check", "checking/opening.py:open_set", "checking/files.py:_problem",
         "checking/verifying.py:check", "checking/verifying.py:wrong_cells",
         "checking/repair.py:repair"),
        (KvdError,),
        tries=8,
        room_bytes=THREADS * BUFFER_BYTES + MIB,  # How many of them read at once is chance.
    ),
)  # fmt: skip

"""The table names every function that reads bytes from outside, and really runs what it names."""

import ast
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

from tests.fuzz.exempt import EXEMPT
from tests.fuzz.parser import seeds_of, taken
from tests.fuzz.table import PARSERS

ROOT = Path(__file__).resolve().parents[2] / "kvd"
NAMES = ("parse_", "unpack_", "read_toml", "read_text", "unseal", "sound_")
# What turns bytes into something else, by the name that it is called by.
READS = frozenset({
    "FromString", "ParseFromString", "unpack", "unpack_from", "iter_unpack", "frombuffer",
    "from_bytes", "loads", "fromhex", "frombytes", "recvmsg", "recv_fds", "recv", "load_cert_chain",
    "decode", "read_text", "read_bytes", "from_address", "string_at",
})  # fmt: skip
SEEDS_MAX = 30
NOT_OURS = ("kvd/v1/", "kvd/testing/")


@cache
def readers() -> frozenset[str]:
    """Return `path:function` of all in kvd that reads bytes, or says by its name that it does."""
    return frozenset(_readers())


def _readers() -> Iterator[str]:
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT.parent).as_posix()
        if place.startswith(NOT_OURS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _reads(node):
                yield f"{place.removeprefix('kvd/')}:{node.name}"


def _reads(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if function.name.startswith(NAMES):
        return True
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(isinstance(each, ast.Attribute) and each.attr in READS for each in called)


def test_every_function_that_reads_bytes_is_tried_or_has_a_reason():
    covered = {name for parser in PARSERS for name in parser.covers}
    missing = readers() - covered - EXEMPT.keys()
    assert not missing, "give them a row of the table, or a reason in tests/fuzz/exempt.py"


def test_no_reason_is_left_of_what_is_gone_or_tried():
    covered = {name for parser in PARSERS for name in parser.covers}
    assert not set(EXEMPT) - readers(), "there is no such reader any more"
    assert not set(EXEMPT) & covered, "a row of the table tries it"
    assert all(EXEMPT.values())


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_row_runs_what_it_says_that_it_covers(parser):
    run: set[str] = set()
    here = f"{ROOT}/"

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(here):
            run.add(f"{path.removeprefix(here)}:{frame.f_code.co_name}")

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        for seed in seeds_of(parser)[:SEEDS_MAX]:
            taken(parser, seed)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)
    assert set(parser.covers) <= run

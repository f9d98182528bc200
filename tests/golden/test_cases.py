"""tests/cases.md: every kind of failure is shown by tests, situations and sections that exist."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from kvd.testing.situations import SOMETIMES

TESTS = Path(__file__).resolve().parents[1]
ROWS = re.compile(r"^\| (\d+) \| ([^|]+) \| (P[0-3]) \| ([^|]+) \|$", re.MULTILINE)
LINES = re.compile(r"^\| \d.*$", re.MULTILINE)
TEST = re.compile(r"`([a-z0-9]+/test_\w+\.py)::(test_\w+)(?:\[([^`]+)\])?`")
SITUATION, SECTION = re.compile(r"situation: ([^,;|]+)"), re.compile(r"operations: ([a-z0-9-]+)")
GPU = "needs a GPU"


def rows() -> list[tuple[int, str, str, str]]:
    text = (TESTS / "cases.md").read_text()
    found = [(int(number), *rest) for number, *rest in ROWS.findall(text)]
    assert len(found) == len(LINES.findall(text)), "a line is not of the form of the others"
    return found


def items(shown: str) -> list[str]:
    """Return what a line names; ids of parameters have commas, too."""
    return [item.strip() for item in re.findall(r"`[^`]+`|[^,`]+", shown) if item.strip()]


@cache
def functions(path: str) -> set[str]:
    module = ast.parse((TESTS / path).read_text())
    return {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}


def sections() -> set[str]:
    """Return the anchors of operations.md."""
    heads = re.findall(
        r"^#+ (.+)$", (TESTS.parent / "docs/operations.md").read_text(), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


def test_numbers_rise_and_every_kind_is_said_and_shown():
    numbers = [number for number, *_ in rows()]
    assert numbers == sorted(set(numbers)) and len(numbers) > 70
    for number, kind, _, shown in rows():
        assert len(kind) > 10 and items(shown), number
        for item in items(shown):
            known = (TEST, SITUATION, SECTION)
            assert item == GPU or any(form.fullmatch(item) for form in known), (number, item)


def test_every_function_situation_and_section_exists():
    anchors = sections()
    for number, _, _, shown in rows():
        for path, name, _ in TEST.findall(shown):
            assert (TESTS / path).is_file(), (number, path)
            assert name in functions(path), (number, path, name)
        for name in SITUATION.findall(shown):
            assert name.strip() in SOMETIMES, (number, name)
        for name in SECTION.findall(shown):
            assert name in anchors, (number, name)


def test_every_set_of_parameters_exists():
    named = [match for *_, shown in rows() for match in TEST.findall(shown)]
    wanted = {f"tests/{path}::{name}[{of}]" for path, name, of in named if of}
    files = sorted({name.split("::")[0] for name in wanted})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *files], capture_output=True, text=True, cwd=TESTS.parent)
    assert wanted and not wanted - set(done.stdout.splitlines()), done.stderr[-500:]

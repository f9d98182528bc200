"""docs/format.md taken apart: tables by their header, hex blocks by their name, rules by number."""

import re
from functools import cache

from tests.golden.vectors import HERE

DOCUMENT = HERE.parents[1] / "docs/format.md"
_HEX = re.compile(r"^```hex (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RULE = re.compile(r"^(\d+)\. (.*(?:\n {3,}\S.*)*)", re.MULTILINE)


@cache
def text() -> str:
    return DOCUMENT.read_text()


def tables(header: str) -> list[list[list[str]]]:
    """Return every table of a header line, as rows of cells without backticks."""
    found, lines = [], text().splitlines()
    for at, line in enumerate(lines):
        if line != header:
            continue
        rows = []
        for row in lines[at + 2 :]:
            if not row.startswith("|"):
                break
            rows.append([cell.strip().replace("`", "") for cell in row.strip("|").split("|")])
        found.append(rows)
    assert found, header
    return found


def table(header: str) -> list[list[str]]:
    (only,) = tables(header)
    return only


def tables_of(heading: str) -> list[list[str]]:
    """Return the one table of fields below the heading of a number, as `14.2`."""
    (part,) = re.findall(
        rf"^#+ {re.escape(heading)} .*?\n(.*?)(?=^#|\Z)", text(), re.MULTILINE | re.DOTALL
    )
    lines = part.splitlines()
    at = lines.index("| offset | size | type | name | meaning | other values |")
    rows = []
    for row in lines[at + 2 :]:
        if not row.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in row.strip("|").split("|")])
    assert rows, heading
    return rows


def hex_blocks() -> dict[str, bytes]:
    blocks = _HEX.findall(text())
    assert len(dict(blocks)) == len(blocks)
    return {name: bytes.fromhex(lines) for name, lines in blocks}


def section(number: int) -> str:
    """Return the text of a section, up to the next one."""
    return text().split(f"\n## {number}. ")[1].split("\n## ")[0]


def rules(of_section: int) -> dict[int, tuple[str, list[str]]]:
    """Return the numbered rules of a section: the sentence and the names of its vectors."""
    found = {}
    for number, body in _RULE.findall(section(of_section)):
        sentence, *names = re.split(r"`([a-z]+-[a-z0-9-]*\*?)`", body)
        found[int(number)] = (" ".join(sentence.split()), names[::2])
    return found

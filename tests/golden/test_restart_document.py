"""What docs/restart.md says of an index of dram is what kvd packs."""

import re

import numpy as np

from kvd.format import handover, page, rows
from kvd.limits import PAGE_BYTES
from tests.golden.test_disk_document import HEAD, dtype_of, fields_of, said_of
from tests.golden.vectors import HERE

TEXT = (HERE.parents[1] / "docs/restart.md").read_text()
HEADER = "| offset | size | type | name | meaning | other values |"


def fields(heading: str) -> list[list[str]]:
    """Return the fields of the table below a heading, as rows of cells without backticks."""
    lines = TEXT.split(f"# {heading}\n")[1].split(f"{HEADER}\n")[1].splitlines()[1:]
    end = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        for line in lines[:end]
    ]


def test_the_index():
    body = dtype_of(HEAD + fields("Bytes"))
    assert body.itemsize == page.HEAD_BYTES + handover.FIELDS_BYTES
    empty = [np.zeros(0, dtype) for dtype in (rows.LANE, handover.SLAB, handover.STRIPS)]
    made = handover.Handover(7, 3 * PAGE_BYTES, b"h" * 16, b"/run", (), *empty)
    data = handover.pack_handover(made)
    names = ["magic", "version", "length", "generation", "slab_bytes", "home", "directory"]
    magic, version, length, generation, size, home, path = fields_of(body, data, names)
    assert (magic, home, path.rstrip(b"\0")) == (b"kvd-dram", b"h" * 16, b"/run")
    numbers = [int.from_bytes(each, "little") for each in (version, length, generation, size)]
    assert numbers == [handover.HANDOVER_FORMAT, len(data), 7, 3 * PAGE_BYTES]
    assert re.search(rf"bytes 0 to {rows.LANE.itemsize - 1} of", TEXT)


def test_its_tables():
    assert said_of(dtype_of(fields("Rows"))) == said_of(handover.STRIPS)
    slab = [(name, offset) for name, offset, _ in said_of(dtype_of(fields("Slabs")))]
    assert slab == [(name, offset) for name, offset, _ in said_of(handover.SLAB)]

"""Tables in the documents say what the code says."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from kvd.core import transitions
from kvd.core.invariants import check
from kvd.errors import ErrorKind
from kvd.limits import (
    GIB,
    KIB,
    MIB,
    READ_PIECE_BYTES_MIN,
    READ_PIECES_MAX,
    CatalogBounds,
    DiskBounds,
    Limits,
)
from kvd.observe.metrics import TABLE
from kvd.rpc.grpc_call import STATUS
from kvd.rpc.grpc_service import (
    CALLS_MAX,
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    METADATA_BYTES_MAX,
    PING_INTERVAL_MS_MIN,
)
from kvd.wire import FEATURES, FRAME_HEAD, PIECE_HEAD, Feature, FrameKind
from tests.metrics_document import HEADER, cells_of

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text()
PROTOCOL = (ROOT / "docs/protocol.md").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


def rows(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table whose header line is `header`."""
    assert header in text, header
    lines = text.split(header, 1)[1].strip().splitlines()[1:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    assert table
    return table


def test_metrics() -> None:
    """Every metric, its labels and what it says; `python -m tests.metrics_document` writes it."""
    table = rows(OPERATIONS, HEADER)
    assert table == [cells_of(metric) for metric in TABLE]


def test_frame_kinds() -> None:
    table = rows(PROTOCOL, "| kind | number | body | from |")
    assert {name: int(number) for name, number, *_ in table} == {k.name: k for k in FrameKind}


def test_features() -> None:
    table = rows(PROTOCOL, "| feature | bit | without it |")
    assert {name: int(bit) for name, bit, _ in table} == {f.name: f.value for f in Feature}
    assert sum(Feature) == FEATURES


def test_bounds_of_grpc() -> None:
    section = PROTOCOL.split("## Attach\n", 1)[1].split("\n## ", 1)[0]
    for words in (
        f"after {KEEPALIVE_MS // 1000} s of silence",
        f"after {KEEPALIVE_TIMEOUT_MS // 1000} s without an answer",
        f"every {PING_INTERVAL_MS_MIN // 1000} s at most",
        f"metadata at most {METADATA_BYTES_MAX // KIB} KiB",
        f"a tenant {CALLS_MAX:,}",
    ):
        assert words in " ".join(section.split()), words


def test_frame_head() -> None:
    table = rows(PROTOCOL, "| offset | size | type | name | meaning |")
    end = 0
    for offset, size, *_ in table:
        assert int(offset) == end
        end += int(size)
    assert end == FRAME_HEAD.size == PIECE_HEAD.size == 12


def test_error_kinds() -> None:
    table = rows(PROTOCOL, "| kind | number | the caller | gRPC status |")
    assert {name: int(number) for name, number, *_ in table} == {k.name: k for k in ErrorKind}
    for name, _, _, status in table:
        assert STATUS[ErrorKind[name]].name in status.split(", ")


def _value(text: str) -> int:
    number, _, unit = text.partition(" ")
    return int(float(number) * {"": 1, "MiB": MIB, "GiB": GIB, "s": 1_000_000_000}[unit])


@pytest.mark.parametrize(
    ("header", "bounds"),
    [("limit", Limits()), ("bound of disk", DiskBounds()), ("bound of catalog", CatalogBounds())],
)
def test_limits(header, bounds) -> None:
    table = rows(PROTOCOL, f"| {header} | value |")
    assert {name: _value(value) for name, value in table} == asdict(bounds)


def test_size_of_pieces() -> None:
    assert f"P = max({READ_PIECE_BYTES_MIN:,}, ceil(size / {READ_PIECES_MAX}) rounded" in PROTOCOL


@pytest.mark.parametrize("name", ["Slab", "Strip", "Lease", "Session", "Segment"])
def test_states(name: str) -> None:
    section = PROTOCOL.split(f"### {name}\n", 1)[1]
    moves = getattr(transitions, f"{name.upper()}_MOVES")
    expected = [[str(a), str(b), when] for (a, b), when in moves.items()]
    assert rows(section, "| from | to | when |") == expected


def test_invariants_are_all_named() -> None:
    numbers = re.findall(r"^\| (I\d+) \|", ARCHITECTURE, re.MULTILINE)
    assert numbers == [f"I{n}" for n in range(1, 14)]
    assert check.__doc__ and "invariant" in check.__doc__

"""Cells of damaged and of random bytes: kvd and the second decoder read or refuse them alike."""

from collections.abc import Iterator

import numpy as np
import pytest

from kvd.codec import (
    EXACT,
    CellColumns,
    CellSpec,
    Grouping,
    available,
    backend,
    cell_geometry,
    decode_cells,
    use_backend,
)
from kvd.codec.reference import encode_cell
from kvd.types import Dtype
from tests.reference import decoder

CASES = 15
INFINITY = {Dtype.BF16: 0x7F80, Dtype.FP16: 0x7C00}


def patterns(ordinals: np.ndarray) -> np.ndarray:
    return np.where(ordinals >= 0, ordinals, 0x7FFF - ordinals).astype(np.uint16)


def random_spec(rng: np.random.Generator) -> CellSpec:
    return CellSpec(
        (Dtype.BF16, Dtype.FP16)[rng.integers(0, 2)],
        int(rng.integers(1, 40)),
        int(rng.integers(1, 40)),
        Grouping(int(rng.integers(0, 2))),
        sinks=int(rng.integers(0, 5)),
        anchor_planes=int(rng.choice([4, 4, 4, 1, 2, 3, 6, 8])),
        group=int(rng.choice([1, 3, 8, 32])),
    )


def random_strings(rng: np.random.Generator, spec: CellSpec) -> list[bytes]:
    """Return the strings of a coded cell with up to three bits wrong, or of rubbish."""
    infinity, geometry = INFINITY[spec.dtype], cell_geometry(spec)
    center, spread = rng.integers(-infinity, infinity), 1 << rng.integers(0, 13)
    around = center + rng.integers(-spread, spread + 1, (spec.tokens, spec.width))
    cell = encode_cell(spec, patterns(np.clip(around, -infinity, infinity - 1)))
    if cell.raw:
        ends = np.sort(rng.integers(-infinity, infinity, (geometry.groups, 2)), axis=1)
        planes = rng.bytes(geometry.anchor - 4 * geometry.groups)
        anchor = patterns(ends).tobytes() + planes
        return [anchor, rng.bytes(geometry.residual), rng.bytes(2 * geometry.blocks)]
    strings = [bytearray(string) for string in cell.strings]
    for _ in range(rng.integers(0, 4)):
        string = strings[rng.integers(0, 3)]
        if string:
            string[rng.integers(0, len(string))] ^= 1 << rng.integers(0, 8)
    return [bytes(string) for string in strings]


def read_with_reference(spec: CellSpec, strings: list[bytes], planes: int) -> list[int] | None:
    grouping = "per channel" if spec.grouping == Grouping.PER_CHANNEL else "per token"
    profile = {"K": (grouping, spec.group, spec.anchor_planes), "sinks": spec.sinks}
    tensor = {"role": "K", "dtype": spec.dtype.name, "width": spec.width}
    cell = decoder.Cell({"tokens": spec.tokens, "first_chunk": True}, tensor, profile)
    count = 3 if planes == EXACT else 1 + (planes > spec.anchor_planes)
    given = dict(zip(decoder.CLASSES[:count], strings, strict=False))
    try:
        with np.errstate(over="ignore"):
            return cell.read(given, "exact" if planes == EXACT else planes)
    except decoder.Refused:
        return None


def read_with_kvd(spec: CellSpec, strings: list[bytes], planes: int) -> list[int] | None:
    memory = [np.frombuffer(string + bytes(8), np.uint8) for string in strings]
    addresses = [np.array([part.ctypes.data], np.uint64) for part in memory]
    lengths = np.array([[len(string)] for string in strings], np.uint32)
    columns = CellColumns(np.zeros(1, np.uint8), *addresses, lengths, np.zeros(1, np.bool_))
    out = np.zeros(spec.tokens * spec.width, np.uint16)
    targets = np.array([out.ctypes.data], np.uint64)
    strides = np.array([spec.width], np.int64)
    malformed = decode_cells([spec], columns, targets, strides, planes)
    return None if len(malformed) else out.tolist()


@pytest.fixture
def _backend_as_before() -> Iterator[None]:
    before = backend()
    yield
    use_backend(before)


@pytest.mark.usefixtures("_backend_as_before")
@pytest.mark.parametrize("seed", range(4))
def test_damaged_cells(seed):
    rng, refusals = np.random.default_rng(seed), 0
    for _ in range(CASES):
        spec = random_spec(rng)
        strings = random_strings(rng, spec)
        for planes in (int(rng.integers(1, 9)), EXACT):
            expected = read_with_reference(spec, strings, planes)
            refusals += expected is None
            for name in available():
                use_backend(name)
                assert read_with_kvd(spec, strings, planes) == expected, (name, spec, planes)
    assert 0 < refusals < 2 * CASES

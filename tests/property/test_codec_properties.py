"""Any values in any form survive, alike on every backend; fewer planes mean larger errors."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvd.codec import EXACT, CellSpec, Grouping
from kvd.types import Dtype
from tests.unit.test_codec_cells import (
    CODED,
    Coded,
    assert_round_trip,
    decoded,
    in_order,
    to_values,
)
from tests.unit.test_codec_malformed import Strings, assert_alike, coded_strings

SPECIAL = (0, 1, 0x8000, 0x8001, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0x7FC0, 0x7BFF, 0x7C00)


@st.composite
def specs(draw: st.DrawFn, dtypes: tuple[Dtype, ...] = CODED) -> CellSpec:
    return CellSpec(
        draw(st.sampled_from(dtypes)),
        draw(st.integers(0, 70)),
        draw(st.sampled_from((1, 2, 7, 15, 16, 17, 32, 48, 64, 80))),
        draw(st.sampled_from(Grouping)),
        draw(st.integers(0, 4)),
        draw(st.integers(1, 8)),
        draw(st.sampled_from((0, 1, 2, 5, 16, 32, 64))),
    )


@st.composite
def cells(draw: st.DrawFn) -> tuple[CellSpec, np.ndarray]:
    """A spec and bits around one pattern: narrow and wide ranges, few and many specials."""
    spec = draw(specs())
    shape = (spec.tokens, spec.width)
    centre, spread = draw(st.integers(0, 0xFFFF)), draw(st.sampled_from((0, 1, 30, 900, 0xFFFF)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cell = (centre + rng.integers(-spread, spread + 1, shape)) & 0xFFFF
    if draw(st.booleans()):
        share = draw(st.sampled_from((0.001, 0.1)))
        cell = np.where(rng.random(shape) < share, rng.choice(SPECIAL, shape), cell)
    return spec, cell.astype(np.uint16)


@given(cells())
@settings(max_examples=250, deadline=None)
def test_everything_survives(case: tuple[CellSpec, np.ndarray]) -> None:
    spec, cell = case
    assert_round_trip([spec], [cell])


@given(arrays(np.uint16, (6, 16), elements=st.integers(0, 0xFFFF)), st.sampled_from(Grouping))
@settings(max_examples=150, deadline=None)
def test_small_cells_survive(cell: np.ndarray, grouping: Grouping) -> None:
    specs_of = [CellSpec(dtype, 6, 16, grouping, sinks) for dtype in CODED for sinks in (0, 2)]
    assert_round_trip(specs_of, [cell] * 4)


@given(cells())
@settings(max_examples=100, deadline=None)
def test_lossy_values_stay_between_lo_and_hi(case: tuple[CellSpec, np.ndarray]) -> None:
    spec, cell = case
    coded = Coded([spec], [cell])
    if coded.encoded.raw[0]:
        return
    apart = min(spec.sinks, spec.tokens)
    value = to_values(spec.dtype, cell[apart:])
    for planes in range(1, 9):
        [got] = decoded(coded, planes)
        if value.size:
            kept = to_values(spec.dtype, got[apart:])
            assert kept.min() >= value.min() and kept.max() <= value.max()
    [exact] = decoded(coded, EXACT)
    assert np.array_equal(in_order(exact), in_order(cell))


@given(cells(), st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_seen_alike(case: tuple[CellSpec, np.ndarray], data: st.DataObject) -> None:
    spec, cell = case
    whole = coded_strings(spec, cell)
    strings = [bytearray(string) for string in whole.strings]
    for _ in range(data.draw(st.integers(1, 4))):
        victim = strings[data.draw(st.integers(0, 2))]
        if victim:
            victim[data.draw(st.integers(0, len(victim) - 1))] = data.draw(st.integers(0, 255))
    raw = data.draw(st.sampled_from((whole.raw, not whole.raw)))
    damaged = Strings(raw, tuple(bytes(string) for string in strings))
    for planes in (EXACT, data.draw(st.integers(1, 8))):
        assert_alike(spec, damaged, planes)

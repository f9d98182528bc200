"""The codec's figures: speed against a copy of the same bytes, bits per element, quality by planes.

Speed on synthetic KV in the shape of real cells; size and quality on a real model's KV.
"""

import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.report import Report, median_interleaved, progress, relative_alignment, touched
from kvd.codec import (
    EXACT,
    PROFILE_DEFAULT,
    CellColumns,
    CellSpec,
    GridSpecs,
    backend,
    cell_bytes_max,
    cell_specs,
    check_cells,
    decode_cells,
    encode_cells,
    strip_bytes_max,
)
from kvd.limits import MIB, PAGE_BYTES
from kvd.shape import BlockShape, CellGrid, cell_grid
from kvd.table import padded, table_bytes
from kvd.types import Dtype, Lane

TOKENS, WIDTH = 64, 64
SPEED_BYTES = 256 * MIB
TEXTS = Path(__file__).parent / "texts"
SEEN, SCORED = 3072, 256


@dataclass(frozen=True, slots=True)
class CodedChunks:
    """Many cells coded as one long strip per class, and the addresses to read them back."""

    specs: tuple[CellSpec, ...]
    cells: CellColumns
    strides: np.ndarray
    strips: list[np.ndarray]
    base: tuple[int, int, int]


def run(report: Report, full: bool) -> None:
    """Report all figures of `codec`; full takes more repeats."""
    _speed(report, repeats=15 if full else 7)
    _real_model(report)


def synthetic_kv(grid: CellGrid, chunks: int) -> np.ndarray:
    """Return BF16 bits u16[chunks * cells, TOKENS, WIDTH]: normal, with scales per channel."""
    rng = np.random.default_rng(1)
    kinds = 64
    scale = np.exp(rng.standard_normal((kinds, 1, WIDTH)) * 0.7)
    mean = rng.standard_normal((kinds, 1, WIDTH)) * (rng.random((kinds, 1, WIDTH)) < 0.2) * 3
    value = (rng.standard_normal((kinds, TOKENS, WIDTH)) + mean) * scale
    cells = (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    total = chunks * grid.cell_count
    out = touched(total * TOKENS * WIDTH * 2).view(np.uint16).reshape(total, TOKENS, WIDTH)
    picked = rng.integers(0, kinds, total)
    for i in range(total):
        out[i] = cells[picked[i]]
    return out


def _addresses(cells: np.ndarray) -> np.ndarray:
    steps = np.arange(len(cells), dtype=np.uint64) * np.uint64(cells.strides[0])
    return steps + np.uint64(cells.ctypes.data)


def _strips_for(specs: GridSpecs, chunks: int) -> list[np.ndarray]:
    """Return three touched buffers with room for the cells of `chunks` chunks."""
    counts = np.bincount(specs.spec_index, minlength=len(specs.specs))
    sizes = np.array([cell_bytes_max(spec) for spec in specs.specs])
    rooms = (((sizes + 7) // 8 * 8) * counts[:, None]).sum(axis=0) * chunks
    return [touched(int(room)) for room in rooms]


def _encode(specs: GridSpecs, chunks: int, values: np.ndarray, strips: list) -> CodedChunks:
    spec_index = np.tile(specs.spec_index, chunks)
    strides = np.full(len(spec_index), WIDTH, np.int64)
    base = (0, 0, 0)
    encoded = encode_cells(specs.specs, spec_index, _addresses(values), strides, strips, base)
    places = [
        encoded.offsets[c].astype(np.uint64) + np.uint64(strips[c].ctypes.data) for c in range(3)
    ]
    cells = CellColumns(spec_index, *places, encoded.lengths, encoded.raw)
    return CodedChunks(specs.specs, cells, strides, strips, base)


def _part(coded: CodedChunks, part: slice) -> CodedChunks:
    columns = coded.cells
    cells = CellColumns(
        columns.spec_index[part],
        columns.anchors[part],
        None if columns.residuals is None else columns.residuals[part],
        None if columns.exacts is None else columns.exacts[part],
        np.ascontiguousarray(columns.lengths[:, part]),
        columns.raw[part],
    )
    return CodedChunks(coded.specs, cells, coded.strides[part], coded.strips, coded.base)


def _decode(coded: CodedChunks, targets: np.ndarray, planes: int) -> None:
    malformed = decode_cells(coded.specs, coded.cells, targets, coded.strides, planes)
    assert malformed.size == 0


def _in_two_threads(halves: list[tuple[CodedChunks, np.ndarray]]) -> None:
    threads = [threading.Thread(target=_decode, args=(*half, EXACT)) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _speed(report: Report, repeats: int) -> None:
    grid = cell_grid(BlockShape.of_attention(16, 2, WIDTH, Dtype.BF16), Lane())
    specs = cell_specs(PROFILE_DEFAULT, grid, TOKENS, first_chunk=False)
    chunks = SPEED_BYTES // (grid.bytes_per_token() * TOKENS)
    values = synthetic_kv(grid, chunks)
    target = touched(values.nbytes).view(np.uint16).reshape(values.shape)
    strips = _strips_for(specs, chunks)
    coded = _encode(specs, chunks, values, strips)
    assert not coded.cells.raw.any()
    places = _addresses(target)
    _decode(coded, places, EXACT)
    assert np.array_equal(target, values)

    half = len(values) // 2
    halves = [(_part(coded, part), places[part]) for part in (slice(0, half), slice(half, None))]
    copied_in = values.reshape(-1).view(np.uint8)
    copied_out = target.reshape(-1).view(np.uint8)
    sums_offsets = np.arange(0, values.nbytes, 2304, dtype=np.uint64)[:-1]
    sums_lengths = np.full(len(sums_offsets), 2304, np.uint32)
    expected = np.zeros(len(sums_offsets), np.uint64)
    calls = {
        "copy": partial(np.copyto, copied_out, copied_in),
        "encode": partial(_encode, specs, chunks, values, strips),
        "anchor_decode": partial(_decode, coded, places, 4),
        "exact_decode": partial(_decode, coded, places, EXACT),
        "two": partial(_in_two_threads, halves),
        "checksum": partial(check_cells, copied_in, sums_offsets, sums_lengths, expected),
    }
    with progress("codec speed"):
        times = dict(zip(calls, median_interleaved(repeats, *calls.values()), strict=True))
    alignment = relative_alignment(copied_in, copied_out)
    speed = values.nbytes / times["copy"] / 1e9
    note = (
        f"{backend()}; copy {speed:.1f} GB/s of {values.nbytes // MIB} MiB, relative alignment "
        f"{alignment} mod {PAGE_BYTES}; cells of {TOKENS} x {WIDTH}, half K, half V"
    )
    for name in ("encode", "anchor_decode", "exact_decode", "checksum"):
        ratio = times["copy"] / times[name]
        report.figure(
            f"codec.{name}_over_memcpy",
            ratio,
            "of memcpy",
            baseline=times["copy"],
            ratio=ratio,
            note=note,
        )
    scaling = times["exact_decode"] / times["two"]
    siblings = _siblings()
    report.figure("codec.two_core_scaling", scaling, "times", note=f"{note}; {siblings}")


def _siblings() -> str:
    """Say whether the first two processors are threads of one core."""
    path = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    try:
        alone = path.read_text().strip() == "0"
    except OSError:
        return "topology unknown"
    return "cores of their own" if alone else "processor 0 shares its core"


class RealKv:
    """The KV of a text's first SEEN tokens as BF16 bits, and how the model goes on from it."""

    def __init__(self, model, ids) -> None:
        import torch

        self._model, self._ids = model, ids
        with torch.no_grad():
            cache = model(ids[:, :SEEN], use_cache=True, logits_to_keep=1).past_key_values
        stacks = [
            torch.stack([layer.keys[0] for layer in cache.layers]),
            torch.stack([layer.values[0] for layer in cache.layers]),
        ]
        # [tensor, layer, head, token, channel]
        self.bits = torch.stack(stacks).bfloat16().view(torch.uint16).numpy().copy()

    def scores(self, bits: np.ndarray):
        """Return log probabilities [SCORED, vocabulary] behind a cache of these bits."""
        import torch
        from transformers import DynamicCache

        kv = torch.from_numpy(bits).view(torch.bfloat16).float()
        cache = DynamicCache()
        for layer in range(kv.shape[1]):
            cache.update(kv[0, layer][None].clone(), kv[1, layer][None].clone(), layer)
        with torch.no_grad():
            ids = self._ids[:, SEEN : SEEN + SCORED]
            logits = self._model(ids, past_key_values=cache, use_cache=True).logits[0]
            return torch.log_softmax(logits.double(), -1)


def _chunk_addresses(bits: np.ndarray, grid: CellGrid, chunk: int) -> np.ndarray:
    """Return the addresses of a chunk's cells in strip order."""
    layers = np.arange(grid.layers)[:, None]
    heads = np.array([head for head, _ in grid.row])[None, :]
    tensors = np.array([tensor for _, tensor in grid.row])[None, :]
    steps = np.array(bits.strides)
    offset = tensors * steps[0] + layers * steps[1] + heads * steps[2] + chunk * TOKENS * steps[3]
    return (bits.ctypes.data + offset).reshape(-1).astype(np.uint64)


def _through_the_codec(bits: np.ndarray, planes: tuple[int, ...]) -> tuple[int, dict]:
    """Code real KV chunk by chunk; return the bytes of its strips, and it as read by planes."""
    _, layer_count, heads, tokens, width = bits.shape
    grid = cell_grid(BlockShape.of_attention(layer_count, heads, width, Dtype.BF16), Lane())
    table = table_bytes(grid.cell_count)
    read = {k: np.zeros_like(bits) for k in planes}
    total = 0
    for chunk in range(tokens // TOKENS):
        specs, spec_index = cell_specs(PROFILE_DEFAULT, grid, TOKENS, chunk == 0)
        out = [np.zeros(room, np.uint8) for room in strip_bytes_max(grid, TOKENS, PROFILE_DEFAULT)]
        strides = np.full(grid.cell_count, width, np.int64)
        sources = _chunk_addresses(bits, grid, chunk)
        encoded = encode_cells(specs, spec_index, sources, strides, out, (table,) * 3)
        total += sum(padded(int(end)) for end in encoded.ends)
        places = [encoded.offsets[c] + np.uint64(out[c].ctypes.data) for c in range(3)]
        cells = CellColumns(spec_index, *places, encoded.lengths, encoded.raw)
        for k, target in read.items():
            targets = _chunk_addresses(target, grid, chunk)
            assert decode_cells(specs, cells, targets, strides, k).size == 0
    return total, read


def _plain(bits: np.ndarray, width_bits: int) -> np.ndarray:
    """Quantise as plain asymmetric codes do, on the same groups, with the same tokens apart."""
    out = np.empty_like(bits)
    value = (bits.astype(np.uint32) << 16).view(np.float32)
    sinks = PROFILE_DEFAULT.sinks
    for tensor, axis in ((0, 2), (1, 3)):  # K over 64 tokens, V over the channels.
        x = value[tensor].copy()
        x[:, :, :sinks] = x[:, :, sinks : sinks + 1]
        blocks = x.reshape(*x.shape[:2], -1, TOKENS, x.shape[-1])
        axis_of = 3 if axis == 2 else 4
        lo, hi = blocks.min(axis_of, keepdims=True), blocks.max(axis_of, keepdims=True)
        step = np.maximum((hi - lo) / np.float32(2**width_bits - 1), np.float32(1e-30))
        y = np.clip(lo + np.rint((blocks - lo) / step) * step, lo, hi).astype(np.float32)
        word = y.view(np.uint32)
        word = ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
        out[tensor] = word.reshape(x.shape)
    out[:, :, :, :sinks] = bits[:, :, :, :sinks]
    return out


def _real_model(report: Report) -> None:
    """Report size and quality on three texts, of which the worst counts."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"codec: no size and quality without the model ({error}); pip install 'kvd[hf]'",
              file=sys.stderr)  # fmt: skip
        return
    from bench.model import load_model

    model, tokenizer = load_model()
    texts = sorted(TEXTS.glob("*.txt"))
    bits_per_element: dict[str, float] = {}
    divergence: dict[str, dict[str, float]] = {}
    with progress("codec on a real model", total=len(texts)) as advance:
        for text in texts:
            ids = tokenizer(text.read_text(), return_tensors="pt").input_ids[:, : SEEN + SCORED]
            kv = RealKv(model, ids)
            total, read = _through_the_codec(kv.bits, (2, 3, 4, 5, 6, 7, 8, EXACT))
            assert np.array_equal(read.pop(EXACT), kv.bits)
            bits_per_element[text.stem] = 8 * total / kv.bits.size
            versions = {f"planes_{k}": bits for k, bits in read.items()}
            versions |= {f"plain{k}": _plain(kv.bits, k) for k in (3, 4)}
            reference = kv.scores(kv.bits)
            for name, bits in versions.items():
                got = kv.scores(bits)
                distance = (reference.exp() * (reference - got)).sum(-1).mean().item()
                divergence.setdefault(name, {})[text.stem] = distance
            advance(text.stem)
    _report_worst(report, "size.bits_per_element", bits_per_element, "bits")
    for name, by_text in divergence.items():
        _report_worst(report, f"quality.kl_{name}", by_text, "nats")


def _report_worst(report: Report, name: str, by_text: dict[str, float], unit: str) -> None:
    note = ", ".join(f"{text} {value:.4g}" for text, value in by_text.items())
    report.figure(name, max(by_text.values()), unit, note=note)

"""How many bits a value of real KV takes on disk, everything in a full segment counted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.path import CONNECT_SECONDS, PUT_SECONDS
from bench.report import Report, progress
from bench.scene import NAMES, TEXTS
from bench.serving import serving
from kvd.catalog.contract import Contents
from kvd.catalog.loading import load_catalog
from kvd.client import BlockShape, Client, Dtype, Keyspace
from kvd.limits import GIB, PAGE_BYTES
from kvd.types import CLASS_COUNT, PlaneClass, SegmentState

WINDOW_TOKENS, CHUNK_TOKENS = 2048, 64
SHIFTS = (0, 21, 42)  # Tokens: each gives every chunk other tokens, so other KV.
DISTINCT_BYTES_MIN = 1 * GIB


def run(report: Report, directory: Path) -> None:
    """Store the KV of all texts and report its size in full segments."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"ssd: no stored size without the model ({error}); pip install 'kvd[hf]'")
        return
    from bench.model import load_model

    model, tokenizer = load_model()
    windows = list(_windows(tokenizer))
    layers, heads = model.config.num_hidden_layers, model.config.num_key_value_heads
    width = model.config.hidden_size // model.config.num_attention_heads
    shape = BlockShape.of_attention(layers, heads, width, Dtype.BF16)
    data = directory / "kvd"
    values = layers * heads * width * 2 * CHUNK_TOKENS  # Of one chunk.
    with (
        serving("--dram", "1GiB", "--data", str(data), "--ssd", "4GiB") as daemon,
        Client(daemon.tenant, "bench size") as client,
        progress("storing real KV", total=len(windows)) as advance,
    ):
        assert client.wait_connected(CONNECT_SECONDS)
        space = client.keyspace(Keyspace("bench", "real", shape, chunk_tokens=CHUNK_TOKENS))
        for ids in windows:
            stored = space.put(
                space.chain(ids), _kv(model, ids), deadline_s=PUT_SECONDS, durability="disk"
            )
            assert stored.durable, stored
            advance("")
    contents = load_catalog(data / "catalog")
    assert isinstance(contents, Contents), contents
    _report(report, data, contents, values)


def _windows(tokenizer: Any) -> Iterator[list[int]]:
    for shift in SHIFTS:
        for name in NAMES:
            ids = tokenizer((TEXTS / f"{name}.txt").read_text()).input_ids[shift:]
            for begin in range(0, len(ids), WINDOW_TOKENS):
                window = ids[begin : begin + WINDOW_TOKENS]
                yield window[: len(window) // CHUNK_TOKENS * CHUNK_TOKENS]


def _kv(model: Any, ids: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return [layer][k, v] of BF16 bits [heads, tokens, width]."""
    import torch

    with torch.no_grad():
        output = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
    found = []
    for layer in cache.layers:
        pair = (
            each[0].bfloat16().view(torch.uint16).numpy() for each in (layer.keys, layer.values)
        )
        found.append(tuple(pair))
    return found


def _report(report: Report, data: Path, contents: Contents, values: int) -> None:
    segments, rows = contents.segments, contents.rows
    size = next((data / "segments").iterdir()).stat().st_size
    full_bits = open_bytes = distinct = 0.0
    for plane_class in PlaneClass:
        of_class = segments[segments["plane_class"] == plane_class]
        full = of_class[of_class["state"] == SegmentState.FULL]["segment"]
        held = np.isin(rows["segment"][:, plane_class], full) & (rows["pages"][:, plane_class] > 0)
        strips = int(held.sum())
        full_bits += 8 * len(full) * size / (strips * values)
        open_bytes += (len(of_class) - len(full)) * size
        distinct += strips * values * 2 / CLASS_COUNT
    stored = int(rows["pages"].sum(dtype=np.int64)) * PAGE_BYTES
    catalog = (data / "catalog" / "data.mdb").stat().st_blocks * 512
    assert distinct >= DISTINCT_BYTES_MIN, distinct
    note = (
        f"{distinct / GIB:.2f} GiB of distinct KV in full segments of {size >> 20} MiB; strips "
        f"alone {8 * stored / (len(rows) * values):.3f}; open segments {open_bytes / GIB:.2f} GiB, "
        f"catalog {catalog / (1 << 20):.1f} MiB apart"
    )
    report.figure("ssd.bits_per_element", full_bits, "bits", note=note)

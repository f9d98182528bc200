"""`python -m tests gpu`: what only a device can show, one line a check. Under a minute.

Tensors on the device go through the SDK and a real daemon and come back bit-equal, ordered with
the caller's stream. Without a device it says so and checks nothing.
"""

import sys
import time

import numpy as np

from bench.serving import served
from kvd.client import EXACT, BlockShape, Client, Delivery, Dtype, Keyspace

LAYERS, HEADS, WIDTH, CHUNKS, CHUNK_TOKENS = 32, 8, 128, 16, 64


def _device_tensors(torch):
    """Return [layer][K, V] of [heads, tokens, width], the last of them still being computed."""
    shape = (HEADS, CHUNKS * CHUNK_TOKENS, WIDTH)
    generator = torch.Generator("cuda").manual_seed(1)
    rows = []
    for _ in range(LAYERS):
        row = []
        for _ in range(2):
            values = torch.randn(shape, generator=generator, device="cuda")
            scales = torch.rand((HEADS, 1, WIDTH), generator=generator, device="cuda") * 4
            row.append((values * scales).bfloat16())
        rows.append(row)
    return rows


def _round_trip(torch, delivery: Delivery) -> tuple[bool, float, float]:
    """Return whether the bits came back, and the seconds of put and of fetch to the device."""
    rows = _device_tensors(torch)
    with served("1GiB") as directory, Client(directory) as client:
        assert client.wait_connected(20)
        shape = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
        space = client.keyspace(Keyspace("gpu", "1", shape))
        chain = space.chain(np.arange(CHUNKS * CHUNK_TOKENS))
        begin = time.perf_counter()
        stored = space.put(chain, rows, deadline_s=60)
        put_seconds = time.perf_counter() - begin
        assert stored.stored == CHUNKS, stored
        targets = [[torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in r] for r in rows]
        begin = time.perf_counter()
        with space.fetch(chain, delivery=delivery) as fetch:
            for _ in fetch.arrivals():
                pass
            good = fetch.decode((0, LAYERS), EXACT, targets)
        back = [[t.to("cuda", non_blocking=True) for t in row] for row in targets]
        torch.cuda.synchronize()
        fetch_seconds = time.perf_counter() - begin
    pairs = [(a, b) for r, s in zip(rows, back, strict=True) for a, b in zip(r, s, strict=True)]
    same = all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in pairs)
    return good == CHUNKS and same, put_seconds, fetch_seconds


def main() -> int:
    """Run every check; return 0 when all passed or there is no device."""
    import torch

    if not torch.cuda.is_available():
        print("not run: torch sees no CUDA device")
        return 0
    size = LAYERS * 2 * HEADS * CHUNKS * CHUNK_TOKENS * WIDTH * 2
    failed = 0
    for delivery in Delivery:
        same, put_seconds, fetch_seconds = _round_trip(torch, delivery)
        failed += not same
        print(
            f"{delivery.name.lower()}: bits {'equal' if same else 'DIFFER'}, {size >> 20} MiB, "
            f"put {size / put_seconds / 1e9:.2f} GB/s, fetch {size / fetch_seconds / 1e9:.2f} GB/s"
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

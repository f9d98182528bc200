"""What `kvd-admin size` says that fits, put into real daemons: all of it is found again."""

import json
import time

import numpy as np

from kvd.cli.main import main
from kvd.client import BlockShape, Client, Dtype, Keyspace
from kvd.client.outcomes import Reason
from kvd.limits import CHUNK_TOKENS_DEFAULT, MIB, Limits
from kvd.shape import cell_grid
from kvd.sizing.chunks import coded_strips
from kvd.sizing.tiers import dram_chunks, ssd_chunks
from kvd.types import Lane
from tests.e2e.process import DEADLINE_S, running

LAYERS, HEADS, WIDTH = 8, 2, 64
SHAPE = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
SEQUENCE = 16  # Chunks of each.


def values(seed):
    rng = np.random.default_rng(seed)
    shape = (LAYERS, 2, HEADS, SEQUENCE * CHUNK_TOKENS_DEFAULT, WIDTH)
    bits = rng.normal(0, 1, shape).astype(np.float32).view(np.uint32) >> 16
    return [tuple(layer) for layer in bits.astype(np.uint16)]


def strips_of_normals():
    """Return the largest strips of such values, whose exact class takes 3 bits and a little."""
    grid = cell_grid(SHAPE, Lane())
    return tuple(
        max(sizes)
        for sizes in zip(
            coded_strips(grid, CHUNK_TOKENS_DEFAULT, 3.2),
            coded_strips(grid, CHUNK_TOKENS_DEFAULT, 3.2, first_chunk=True),
            strict=True,
        )
    )


def fill(client, chunks, durability):
    """Put so many chunks in sequences of their own; return the space, and each with its count."""
    space = client.keyspace(Keyspace(model="sizes", weight_revision="1", shape=SHAPE))
    tensors, chains = values(1), []
    while chunks:
        count = min(chunks, SEQUENCE)
        tokens = count * CHUNK_TOKENS_DEFAULT
        begin = 1_000_000 * (len(chains) + 1)
        chain = space.chain(list(range(begin, begin + tokens)))
        part = [tuple(each[:, :tokens] for each in layer) for layer in tensors]
        _put(space, chain, part, durability)
        chains.append((chain, count))
        chunks -= count
    return space, chains


def _put(space, chain, tensors, durability):
    """Put all of a chain; memory that still grows is waited for."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        stored = space.put(chain, tensors, durability=durability)
        if not stored.refused:
            assert stored.durable or durability == "memory"
            return
        assert stored.reason == Reason.GROWING and time.monotonic() < deadline, stored


def test_what_fits_memory_is_found(short_directory):
    strips = strips_of_normals()
    count = dram_chunks(128 * MIB, Limits().slab_bytes, strips)
    assert count > 600 and 120 * MIB < count * sum(strips) <= 128 * MIB
    with running(short_directory) as daemon:
        client = Client(daemon.tenant)
        space, chains = fill(client, count, "memory")
        assert [space.lookup(chain).counts for chain, _ in chains] == [(n,) * 3 for _, n in chains]
        client.close()


def test_what_fits_a_disk_is_found_after_a_restart(short_directory, capsys):
    data = short_directory / "data"
    budget = 96 * MIB
    count = ssd_chunks(budget, 1, strips_of_normals())
    assert 0.7 * budget < count * sum(strips_of_normals()) < budget
    flags = ("--data", str(data), "--ssd", f"{budget}B")
    with running(short_directory / "run", *flags) as daemon:
        client = Client(daemon.tenant)
        fill(client, count, "disk")
        client.close()
    assert main(["check", "--json", "--quick", "--data", str(data)]) == 0
    assert json.loads(capsys.readouterr().out)["catalog"]["chunks"] == count

"""More slabs than a socket holds messages: one step gives them all, and nobody counts as stuck."""

from dataclasses import replace

import numpy as np

from kvd.client import EXACT, BlockShape, Client, Dtype, Keyspace
from kvd.limits import PAGE_BYTES, Limits
from tests.e2e.process import DEADLINE_S, in_process

SLABS = 1200
# A slab holds one chunk: three strips of a page, and not three more.
LIMITS = replace(Limits(), slab_bytes=4 * PAGE_BYTES)
SHAPE = BlockShape.of_attention(1, 1, 8, Dtype.BF16)
TOKENS = 16


def test_a_prefix_in_a_thousand_slabs_is_put_and_mapped_at_once(tmp_path):
    ours = np.random.default_rng(1).integers(1, 1 << 15, (1, SLABS * TOKENS, 8), np.uint16)
    dram_bytes = (SLABS + 64) * LIMITS.slab_bytes
    with (
        in_process(tmp_path, LIMITS, dram_bytes) as tenant,
        Client(tenant, "writer", DEADLINE_S) as writer,
        Client(tenant, "reader", DEADLINE_S) as reader,
    ):
        spaces = []
        for client in (writer, reader):
            assert client.wait_connected(DEADLINE_S)
            spaces.append(client.keyspace(Keyspace("many", "r", SHAPE, chunk_tokens=TOKENS)))
        chain = spaces[0].chain(np.arange(SLABS * TOKENS))
        while (put := spaces[0].put(chain, [[ours, ours]])).refused:
            assert put.reason.name == "GROWING", put
        for space in spaces:
            targets = [[np.zeros_like(ours), np.zeros_like(ours)]]
            with space.fetch(chain) as fetch:
                assert fetch.counts == (SLABS,) * 3, (fetch.reason, fetch.error)
                assert fetch.decode((0, 1), EXACT, targets) == SLABS
            assert np.array_equal(targets[0][1], ours)

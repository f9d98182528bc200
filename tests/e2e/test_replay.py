"""A thousand operations of a real daemon, told again to a core that has just begun."""

import os
import random
from dataclasses import replace

import numpy as np

from kvd.client import EXACT, BlockShape, Client, Delivery, Dtype, Keyspace
from kvd.config import ServeConfig, SsdSettings, TenantSettings
from kvd.core.state import new_state
from kvd.daemon import loop
from kvd.limits import MIB, Limits
from kvd.testing.trace import Trace, digest_of, index_digest
from tests.e2e.process import DEADLINE_S, served

LAYERS, HEADS, WIDTH, CHUNK, CHUNKS = 2, 2, 64, 64, 6
OPERATIONS, TEXTS = 1000, 60
KEYSPACE = Keyspace(
    "replayed", "r", BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16), chunk_tokens=CHUNK
)
LIMITS = replace(Limits(), slab_bytes=1 * MIB)


def tensors(tokens: int) -> list:
    bits = np.random.default_rng(1).standard_normal((HEADS, tokens, WIDTH), np.float32)
    tensor = (bits.view(np.uint32) >> 16).astype(np.uint16)
    return [[tensor, tensor] for _ in range(LAYERS)]


def work(client: Client) -> int:
    """Do all of it; return how many chunks were read."""
    chance, space, read = random.Random(114), client.keyspace(KEYSPACE), 0
    ours = tensors(CHUNKS * CHUNK)
    targets = [[np.zeros_like(tensor) for tensor in row] for row in ours]
    held = []
    for _ in range(OPERATIONS):
        count = chance.randint(1, CHUNKS)
        chain = space.chain(np.arange(count * CHUNK) + 1000 * chance.randrange(TEXTS))
        match chance.randrange(6):
            case 0 | 1:
                space.put(chain, ours, durability=chance.choice(("memory", "memory", "disk")))
            case 2:
                space.prefetch(chain, chance.randint(1, 3))
            case 3:
                held.append(space.lookup(chain, lease=True).lease)
                if len(held) > 5:
                    space.release(held.pop(0))
            case _:
                with space.fetch(chain, delivery=chance.choice(list(Delivery))) as fetch:
                    list(fetch.arrivals())
                    read += fetch.decode((0, LAYERS), EXACT, targets) if fetch.counts[2] else 0
    return read


def test_a_recorded_daemon_gives_the_same_hits_evictions_and_index(short_directory, monkeypatch):
    traces, states = [], []

    def begin(config, epoch):
        traces.append(Trace(config, epoch))
        states.append(new_state(config, epoch))
        return states[-1]

    monkeypatch.setattr(loop, "new_state", begin)
    monkeypatch.setattr(loop, "step", lambda *told: traces[-1].step(*told))
    ssd = SsdSettings((short_directory / "data",), 64 * MIB)
    config = ServeConfig(
        short_directory, (TenantSettings("default"),), 6 * MIB, frozenset({os.geteuid()}),
        LIMITS, ssd,
    )  # fmt: skip
    with served(config), Client(short_directory / "default", "recorded", DEADLINE_S) as client:
        assert client.wait_connected(DEADLINE_S)
        read = work(client)
    [trace], [state] = traces, states
    assert read > 100 and len(trace.events) > OPERATIONS
    again = trace.replay()
    assert again.counts.fetch_hit_strips == state.counts.fetch_hit_strips
    assert again.counts.evicted_strips == state.counts.evicted_strips
    assert state.counts.fetch_hit_strips.total() > 300 and state.counts.evicted_strips.total() > 50
    assert digest_of(again.counts) == digest_of(state.counts)
    assert index_digest(again.index) == index_digest(state.index)

"""Ranks of one model: each has its own bytes, replicated ones one copy; layouts are declared."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from kvd.client import (
    EXACT,
    BlockShape,
    Client,
    Dtype,
    Keyspace,
    KvdError,
    KvGroup,
    Lane,
    Part,
    Role,
    Shard,
    ShardScheme,
    TensorShape,
)
from kvd.errors import ErrorKind
from kvd.limits import MIB, Limits
from tests.e2e.process import DEADLINE_S, connected

LAYERS, HEADS, WIDTH, CHUNK, CHUNKS = 4, 4, 16, 16, 3
RANKS = 4
TOKENS = np.arange(CHUNKS * CHUNK)
LIMITS = replace(Limits(), slab_bytes=4 * MIB)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with connected(tmp_path_factory.mktemp("d"), LIMITS, 64 * MIB) as made:
        yield made


def keyspace(model: str, **more) -> Keyspace:
    shape = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
    return Keyspace(model, more.pop("revision", "1"), shape, chunk_tokens=CHUNK, **more)


def of_rank(space, rank: int) -> list:
    """Return tensors of the space's own lane that no other rank has."""
    rng, grid = np.random.default_rng(rank), space.grid
    heads = {tensor: 1 + max(h for h, t in grid.row if t == tensor) for _, tensor in grid.row}
    return [
        [
            rng.integers(
                0x3C00, 0x4000, (heads[t], CHUNKS * CHUNK, grid.tensors[t].width), np.uint16
            )
            for t in range(len(grid.tensors))
        ]
        for _ in range(grid.layers)
    ]


def read(space, like) -> list:
    targets = [[np.zeros_like(tensor) for tensor in row] for row in like]
    with space.fetch(space.chain(TOKENS)) as fetch:
        assert fetch.counts == (CHUNKS,) * 3
        assert fetch.decode((0, space.grid.layers), EXACT, targets) == CHUNKS
    return targets


def same(ours, theirs) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(np.array_equal(a, b) for r, o in pairs for a, b in zip(r, o, strict=True))


LANES = {
    "tensor parallel": [Lane(shard=Shard(ShardScheme.HEADS, at, RANKS)) for at in range(RANKS)],
    "pipeline parallel": [Lane(shard=Shard(ShardScheme.LAYERS, at, RANKS)) for at in range(RANKS)],
    "head classes": [Lane(part=Part(b"profile1", at)) for at in range(RANKS)],
}


@pytest.mark.parametrize("lanes", LANES.values(), ids=LANES)
def test_ranks_that_store_at_once_each_get_back_their_own(client, lanes, request):
    spaces = [client.keyspace(keyspace(request.node.name), lane) for lane in lanes]
    ours = [of_rank(space, rank) for rank, space in enumerate(spaces)]
    start, stored = threading.Barrier(RANKS), [None] * RANKS

    def store(rank: int) -> None:
        start.wait()
        stored[rank] = spaces[rank].put(spaces[rank].chain(TOKENS), ours[rank])

    threads = [threading.Thread(target=store, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [made.stored for made in stored] == [CHUNKS] * RANKS
    for space, wanted in zip(spaces, ours, strict=True):
        assert same(read(space, wanted), wanted)
        assert space.lookup(space.chain(TOKENS), lanes=lanes).counts == (CHUNKS,) * 3


def test_other_ways_of_dividing_find_nothing_and_uneven_ones_are_refused(client):
    lanes = LANES["tensor parallel"]
    spaces = [client.keyspace(keyspace("divided"), lane) for lane in lanes]
    for rank, space in enumerate(spaces):
        space.put(space.chain(TOKENS), of_rank(space, rank))
    for other in (Lane(), Lane(shard=Shard(ShardScheme.HEADS, 0, 2)), *LANES["pipeline parallel"]):
        space = client.keyspace(keyspace("divided"), other)
        assert space.lookup(space.chain(TOKENS)).counts == (0, 0, 0)
    for scheme in (ShardScheme.HEADS, ShardScheme.LAYERS):
        with pytest.raises(KvdError, match="do not divide into 3") as raised:
            client.keyspace(keyspace("divided"), Lane(shard=Shard(scheme, 0, 3)))
        assert raised.value.kind == ErrorKind.INVALID


def test_ranks_of_data_or_context_are_told_apart_by_what_they_compute(client):
    """Data-parallel ranks share chunks; a rank of a context holds other tokens of the sequence."""
    first, second = (Client(client.directory, f"rank {n}", DEADLINE_S) for n in range(2))
    with first, second:
        assert first.wait_connected(DEADLINE_S) and second.wait_connected(DEADLINE_S)
        spaces = [one.keyspace(keyspace("data")) for one in (first, second)]
        wanted = of_rank(spaces[0], 0)
        assert spaces[0].put(spaces[0].chain(TOKENS), wanted).stored == CHUNKS
        assert spaces[1].put(spaces[1].chain(TOKENS), of_rank(spaces[1], 1)).had == CHUNKS
        assert same(read(spaces[1], wanted), wanted), "one copy, whoever was first"
        chains = [s.chain(TOKENS, extras=b"context rank %d" % n) for n, s in enumerate(spaces)]
        for rank, (space, chain) in enumerate(zip(spaces, chains, strict=True)):
            assert space.lookup(chain).counts == (0, 0, 0)
            assert space.put(chain, of_rank(space, 10 + rank)).stored == CHUNKS


def test_a_latent_that_all_ranks_hold_is_stored_once(client):
    tensors = (TensorShape(Role.LATENT, 1, 64, Dtype.BF16),)
    shape = BlockShape((KvGroup(LAYERS, tensors),))
    latent = Keyspace("latent", "1", shape, chunk_tokens=CHUNK)
    clients = [Client(client.directory, f"rank {n}", DEADLINE_S) for n in range(RANKS)]
    made = []
    for one in clients:
        assert one.wait_connected(DEADLINE_S)
        space = one.keyspace(latent)
        made.append(space.put(space.chain(TOKENS), of_rank(space, 0)))
        one.close()
    assert [(m.stored, m.had) for m in made] == [(CHUNKS, 0)] + (RANKS - 1) * [(0, CHUNKS)]
    assert sum(m.size_bytes for m in made) == made[0].size_bytes > 0
    with pytest.raises(KvdError, match="1 heads do not divide into 4"):
        client.keyspace(latent, Lane(shard=Shard(ShardScheme.HEADS, 0, RANKS)))


def test_a_revision_is_a_miss_while_it_is_another_and_a_hit_when_it_is_back(client):
    one, two = (client.keyspace(keyspace("hot", revision=r)) for r in ("1", "2"))
    chain, ours = one.chain(TOKENS), [of_rank(one, seed) for seed in (1, 2)]
    one.put(chain, ours[0])
    assert two.lookup(chain).counts == (0, 0, 0)
    two.put(chain, ours[1])
    assert same(read(one, ours[0]), ours[0]) and same(read(two, ours[1]), ours[1])
    with pytest.raises(KvdError, match="weight_revision is empty") as raised:
        client.keyspace(keyspace("hot", revision="")).lookup(chain)
    assert raised.value.kind == ErrorKind.INVALID


@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP8_E4M3])
@pytest.mark.parametrize("order", ["heads first", "tokens first"])
def test_the_axes_are_the_callers_to_say(client, order, dtype):
    """The same values out of memory of either order, K beside V or behind it: the same bytes."""
    kind = np.uint16 if dtype == Dtype.BF16 else np.uint8
    rng = np.random.default_rng(3)
    # As engines pack them: [K and V, heads, tokens, width], or [tokens, heads, K and V beside].
    values = rng.integers(1, 60, (LAYERS, 2, 2, CHUNKS * CHUNK, WIDTH)).astype(kind)
    shape = BlockShape.of_attention(LAYERS, 2, WIDTH, dtype)
    space = client.keyspace(Keyspace(f"axes {order} {dtype}", "1", shape, chunk_tokens=CHUNK))
    if order == "heads first":
        tensors = [[layer[0], layer[1]] for layer in values]
    else:
        packed = np.ascontiguousarray(values.transpose(0, 3, 2, 1, 4))
        packed = packed.reshape(LAYERS, CHUNKS * CHUNK, 2, 2 * WIDTH)
        with pytest.raises(
            KvdError, match="tensors"
        ):  # Not guessed, though 2 heads look like K, V.
            space.put(space.chain(TOKENS), [[layer.transpose(1, 0, 2)] for layer in packed])
        with pytest.raises(KvdError, match="shape"):
            space.put(space.chain(TOKENS), [[layer, layer] for layer in packed])
        tensors = [
            [layer[..., at : at + WIDTH].transpose(1, 0, 2) for at in (0, WIDTH)]
            for layer in packed
        ]
    assert space.put(space.chain(TOKENS), tensors).stored == CHUNKS
    wanted = [[layer[0], layer[1]] for layer in values]
    assert same(read(space, wanted), wanted)


@pytest.mark.parametrize(("declared", "sent"), [(16, 2096), (2096, 16)])
def test_another_size_of_blocks_is_refused_or_another_keyspace(client, declared, sent):
    """Both numbers are said, and what one size stored is no hit of another."""
    shape = BlockShape.of_attention(1, 1, 8, Dtype.BF16)
    space = client.keyspace(Keyspace("blocks", "1", shape, chunk_tokens=declared))
    other = client.keyspace(Keyspace("blocks", "1", shape, chunk_tokens=sent))
    tokens = np.arange(2096)
    values = [[np.full((1, 2096, 8), 0x3F80, np.uint16) for _ in range(2)]]
    assert space.put(space.chain(tokens), values).refused == 0
    assert other.lookup(other.chain(tokens + 1)).counts == (0, 0, 0)
    assert other.lookup(space.chain(tokens)).counts == (0, 0, 0)
    if declared > sent:
        with pytest.raises(KvdError, match=f"tensors hold {sent} tokens, 1 chunks need {declared}"):
            space.put(space.chain(tokens), [[t[:, :sent] for t in row] for row in values])

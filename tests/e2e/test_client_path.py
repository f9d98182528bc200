"""The SDK against a real daemon: what goes in comes out, bit for bit, by every way."""

import asyncio

import numpy as np
import pytest

from kvd.client import (
    EXACT,
    AsyncClient,
    BlockShape,
    Client,
    Delivery,
    Dtype,
    Keyspace,
    KvdError,
    KvGroup,
    Lane,
    PlaneClass,
    Reason,
    Role,
    Shard,
    ShardScheme,
    TensorShape,
)
from kvd.errors import ErrorKind
from tests.e2e.process import DEADLINE_S, running

LAYERS, HEADS, WIDTH, CHUNK_TOKENS = 3, 2, 32, 16
CHUNKS = 5
TOKENS = CHUNKS * CHUNK_TOKENS + 7  # With a tail that is not stored.
NUMPY = {
    Dtype.BF16: np.uint16,
    Dtype.FP16: np.float16,
    Dtype.FP32: np.float32,
    Dtype.FP8_E4M3: np.uint8,
    Dtype.FP8_E5M2: np.uint8,
    Dtype.INT8: np.int8,
}


@pytest.fixture(scope="module")
def tenants(tmp_path_factory):
    import shutil
    import tempfile
    from pathlib import Path

    directory = Path(tempfile.mkdtemp(prefix="kvd-"))
    with running(directory, "--tenant", "default", "--tenant", "other") as daemon:
        yield daemon.directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def client(tenants):
    with Client(tenants / "default", "test") as made:
        assert made.wait_connected(DEADLINE_S)
        yield made


def keyspace(model: str, dtype: Dtype = Dtype.BF16, layers: int = LAYERS) -> Keyspace:
    shape = BlockShape.of_attention(layers, HEADS, WIDTH, dtype)
    return Keyspace(model, "r1", shape, chunk_tokens=CHUNK_TOKENS)


def values(dtype: Dtype, seed: int, heads: int = HEADS, layers: int = LAYERS, tokens: int = TOKENS):
    """Return tensors[layer][k, v] of any bits of the dtype, some not finite."""
    rng = np.random.default_rng(seed)

    def one() -> np.ndarray:
        shape = (heads, tokens, WIDTH)
        match dtype:
            case Dtype.BF16:
                bits = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
                tensor = (bits >> 16).astype(np.uint16)
            case Dtype.FP16:
                tensor = rng.standard_normal(shape).astype(np.float16)
            case _:
                raw = rng.integers(0, 256, (*shape, dtype.size_bytes), np.uint8)
                return raw.view(NUMPY[dtype])[..., 0].copy()
        tensor[0, 3, :] = np.array(0x7F80, np.uint16).view(tensor.dtype)
        return tensor

    return [[one(), one()] for _ in range(layers)]


def blanks(tensors):
    return [[np.zeros_like(tensor) for tensor in row] for row in tensors]


def equal(ours, theirs, tokens: int) -> bool:
    """Compare bits, so that a NaN equals itself."""
    return all(
        a[:, :tokens].tobytes() == b[:, :tokens].tobytes()
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def fetched(space, chain, tensors, delivery=Delivery.MAP, count: int = CHUNKS):
    """Fetch and decode everything exactly; return the targets."""
    targets = blanks(tensors)
    with space.fetch(chain, delivery=delivery) as fetch:
        assert fetch.counts == (count,) * 3 and fetch.reason == Reason.NONE
        classes = [arrival.plane_class for arrival in fetch.arrivals()]
        assert classes == sorted(classes) and set(classes) == set(PlaneClass)
        assert fetch.error is None
        assert fetch.decode((0, len(tensors)), EXACT, targets) == count
    return targets


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("dtype", list(Dtype))
def test_round_trip_is_bit_equal(client, dtype, delivery):
    space = client.keyspace(keyspace(f"{dtype.name}-{delivery.name}", dtype))
    tensors = values(dtype, 1)
    chain = space.chain(np.arange(TOKENS))
    stored = space.put(chain, tensors)
    assert (stored.stored, stored.had, stored.refused) == (CHUNKS, 0, 0)
    assert stored.size_bytes > 0
    assert equal(fetched(space, chain, tensors, delivery), tensors, CHUNKS * CHUNK_TOKENS)


@pytest.mark.parametrize("delivery", list(Delivery))
def test_torch_tensors_go_in_and_come_out(client, delivery):
    torch = pytest.importorskip("torch")
    space = client.keyspace(keyspace(f"torch-{delivery.name}"))
    # As an engine holds it: [1, heads, tokens, width] of which a part is taken, tokens outermost.
    cache = [torch.randn(2, TOKENS, HEADS, WIDTH).to(torch.bfloat16) for _ in range(LAYERS)]
    tensors = [[layer[0].transpose(0, 1), layer[1].transpose(0, 1)] for layer in cache]
    chain = space.chain(torch.arange(TOKENS))
    assert space.put(chain, tensors).stored == CHUNKS
    targets = [[torch.zeros_like(tensor) for tensor in row] for row in tensors]
    with space.fetch(chain, delivery=delivery) as fetch:
        assert len(list(fetch.arrivals())) >= 3
        assert fetch.decode((0, LAYERS), EXACT, targets) == CHUNKS
    for ours, theirs in zip(targets, tensors, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            whole = CHUNKS * CHUNK_TOKENS
            assert torch.equal(a[:, :whole].view(torch.int16), b[:, :whole].view(torch.int16))
            assert not a[:, whole:].any()


def test_fewer_planes_come_near(client):
    space = client.keyspace(keyspace("planes"))
    tensors = values(Dtype.BF16, 2)
    chain = space.chain(np.arange(TOKENS))
    space.put(chain, tensors)
    errors = []
    with space.fetch(chain) as fetch:
        for planes in (2, 4, 6, 8, EXACT):
            targets = blanks(tensors)
            assert fetch.decode((0, LAYERS), planes, targets) == CHUNKS
            whole = slice(CHUNK_TOKENS, CHUNKS * CHUNK_TOKENS)
            a, b = (
                (t[1][0][:, whole].astype(np.uint32) << 16).view(np.float32)
                for t in (targets, tensors)
            )
            errors.append(float(np.abs(a - b).mean()))
    assert errors == sorted(errors, reverse=True) and errors[-1] == 0 and errors[1] < 0.2


def test_every_length_of_a_prefix_is_found(client):
    space = client.keyspace(keyspace("prefixes"))
    tensors = values(Dtype.BF16, 3)
    chain = space.chain(np.arange(TOKENS))
    for count in range(1, CHUNKS + 1):
        begin = (count - 1) * CHUNK_TOKENS
        part = [[t[:, begin : begin + CHUNK_TOKENS] for t in row] for row in tensors]
        stored = space.put(chain[: 32 * count], part, first=count - 1)
        assert (stored.stored, stored.reason) == (1, Reason.NONE)
        assert space.lookup(chain).counts == (count,) * 3
        with space.fetch(chain) as fetch:
            assert fetch.counts == (count,) * 3
            assert (fetch.reason == Reason.NONE) == (count == CHUNKS)
        targets = fetched(space, chain[: 32 * count], tensors, count=count)
        assert equal(targets, tensors, count * CHUNK_TOKENS)


def test_other_tokens_share_only_what_is_before_them(client):
    space = client.keyspace(keyspace("branches"))
    tokens = np.arange(TOKENS)
    space.put(space.chain(tokens), values(Dtype.BF16, 4))
    tokens[2 * CHUNK_TOKENS] += 1
    assert space.lookup(space.chain(tokens)).counts == (2, 2, 2)
    assert space.lookup(space.chain(tokens, extras=b"image")).counts == (0, 0, 0)


def test_a_second_put_is_had_already(client):
    space = client.keyspace(keyspace("twice"))
    tensors = values(Dtype.BF16, 5)
    chain = space.chain(np.arange(TOKENS))
    assert space.put(chain[: 32 * 3], tensors).stored == 3
    second = space.put(chain, tensors)
    assert (second.stored, second.had, second.refused) == (2, 3, 0)
    prepared = space.prepare(tensors)
    third = space.put_strips(chain, prepared)
    assert (third.stored, third.had, third.refused) == (0, CHUNKS, 0)
    assert equal(fetched(space, chain, tensors), tensors, CHUNKS * CHUNK_TOKENS)


def test_prepared_strips_are_stored_as_they_are(client):
    space = client.keyspace(keyspace("prepared"))
    tensors = values(Dtype.BF16, 6)
    chain = space.chain(np.arange(TOKENS))
    assert space.put_strips(chain, space.prepare(tensors)).stored == CHUNKS
    assert equal(fetched(space, chain, tensors), tensors, CHUNKS * CHUNK_TOKENS)


def test_a_prefix_with_a_hole_is_refused(client):
    space = client.keyspace(keyspace("hole"))
    tensors = values(Dtype.BF16, 7)
    chain = space.chain(np.arange(TOKENS))
    part = [[t[:, CHUNK_TOKENS:] for t in row] for row in tensors]
    stored = space.put(chain, part, first=1)
    assert (stored.stored, stored.refused) == (0, CHUNKS - 1)
    assert stored.reason == Reason.PREFIX_BROKEN


def test_shards_are_stored_apart_and_asked_for_together(client):
    lanes = [Lane(shard=Shard(ShardScheme.HEADS, index, 2)) for index in range(2)]
    spaces = [client.keyspace(keyspace("shards"), lane) for lane in lanes]
    tensors = values(Dtype.BF16, 8)
    chain = spaces[0].chain(np.arange(TOKENS))
    halves = [[[t[i : i + 1] for t in row] for row in tensors] for i in range(2)]
    assert spaces[0].put(chain, halves[0]).stored == CHUNKS
    assert spaces[1].put(chain[:64], halves[1]).stored == 2
    assert spaces[0].lookup(chain).counts == (CHUNKS,) * 3
    assert spaces[0].lookup(chain, lanes=lanes).counts == (2, 2, 2)
    assert spaces[1].lookup(chain, lanes=lanes).counts == (2, 2, 2)
    assert equal(fetched(spaces[0], chain, halves[0]), halves[0], CHUNKS * CHUNK_TOKENS)
    assert equal(fetched(spaces[1], chain[:64], halves[1], count=2), halves[1], 2 * CHUNK_TOKENS)
    # Another way of dividing the same model finds nothing, and takes nothing for its own.
    whole = client.keyspace(keyspace("shards"))
    assert whole.lookup(chain).counts == (0, 0, 0)
    quarter = client.keyspace(
        keyspace("shards", layers=LAYERS), Lane(shard=Shard(ShardScheme.LAYERS, 0, 3))
    )
    assert quarter.lookup(chain).counts == (0, 0, 0)


def test_tenants_do_not_see_each_other(client, tenants):
    space = client.keyspace(keyspace("tenants"))
    tensors = values(Dtype.BF16, 9)
    chain = space.chain(np.arange(TOKENS))
    space.put(chain, tensors)
    with Client(tenants / "other") as other:
        assert other.wait_connected(DEADLINE_S)
        theirs = other.keyspace(keyspace("tenants"))
        assert theirs.lookup(chain).counts == (0, 0, 0)
        with theirs.fetch(chain) as fetch:
            assert fetch.counts == (0, 0, 0) and fetch.reason == Reason.NOT_STORED


def test_another_dtype_shape_or_revision_is_a_miss(client):
    tensors = values(Dtype.BF16, 10)
    space = client.keyspace(keyspace("identity"))
    chain = space.chain(np.arange(TOKENS))
    space.put(chain, tensors)
    shape = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
    others = [
        keyspace("identity", Dtype.FP16),
        keyspace("identity", layers=LAYERS + 1),
        Keyspace("identity", "r2", shape, chunk_tokens=CHUNK_TOKENS),
        Keyspace("identity", "r1", shape, chunk_tokens=CHUNK_TOKENS, adapter="a"),
        Keyspace("identity", "r1", shape, chunk_tokens=CHUNK_TOKENS, rope="scaled"),
    ]
    for other in others:
        assert client.keyspace(other).lookup(chain).counts == (0, 0, 0), other


def test_a_model_with_a_latent_and_unlike_tensors(client):
    tensors = (
        TensorShape(Role.LATENT, 1, 48, Dtype.BF16),
        TensorShape(Role.K, 3, 16, Dtype.FP16),
        TensorShape(Role.V, 2, 8, Dtype.INT8),
    )
    shape = BlockShape((KvGroup(2, tensors),))
    space = client.keyspace(Keyspace("unlike", "r1", shape, chunk_tokens=CHUNK_TOKENS))
    rng = np.random.default_rng(11)
    rows = [
        [
            rng.integers(0, 1 << 14, (1, TOKENS, 48), np.uint16),
            rng.standard_normal((3, TOKENS, 16)).astype(np.float16),
            rng.integers(-128, 128, (2, TOKENS, 8), np.int8),
        ]
        for _ in range(2)
    ]
    chain = space.chain(np.arange(TOKENS))
    assert space.put(chain, rows).stored == CHUNKS
    for delivery in Delivery:
        assert equal(fetched(space, chain, rows, delivery), rows, CHUNKS * CHUNK_TOKENS)


def test_layers_can_be_asked_for_alone(client):
    space = client.keyspace(keyspace("layers"))
    tensors = values(Dtype.BF16, 12)
    chain = space.chain(np.arange(TOKENS))
    space.put(chain, tensors)
    with space.fetch(chain, delivery=Delivery.BYTES) as fetch:
        list(fetch.arrivals())
        whole_bytes = fetch.delivered_bytes
    with space.fetch(chain, delivery=Delivery.BYTES, layers=(1, 2)) as fetch:
        arrivals = list(fetch.arrivals())
        assert [(a.layer_begin, a.layer_end) for a in arrivals] == [(1, 2)] * 3
        assert fetch.delivered_bytes < whole_bytes
        targets = blanks(tensors[1:2])
        assert fetch.decode((1, 2), EXACT, targets) == CHUNKS
        assert equal(targets, tensors[1:2], CHUNKS * CHUNK_TOKENS)
        with pytest.raises(KvdError):
            fetch.decode((0, 1), EXACT, targets)


def test_fewer_classes_can_be_asked_for(client):
    space = client.keyspace(keyspace("classes"))
    tensors = values(Dtype.BF16, 13)
    chain = space.chain(np.arange(TOKENS))
    space.put(chain, tensors)
    with space.fetch(chain, class_count=1) as fetch:
        assert fetch.counts == (CHUNKS, 0, 0)
        assert fetch.decode((0, LAYERS), 4, blanks(tensors)) == CHUNKS
        assert fetch.decode((0, LAYERS), 8, blanks(tensors)) == 0
        with pytest.raises(KvdError):
            fetch.decode((0, LAYERS), 8, blanks(tensors), chunks=(0, 1))


def test_a_lookups_lease_goes_over_to_the_fetch(client):
    space = client.keyspace(keyspace("leased"))
    tensors = values(Dtype.BF16, 14)
    chain = space.chain(np.arange(TOKENS))
    space.put(chain, tensors)
    found = space.lookup(chain, lease=True)
    assert found.lease
    with space.fetch(chain, lease=found.lease) as fetch:
        assert fetch.counts == (CHUNKS,) * 3
    again = space.lookup(chain, lease=True)
    space.release(again.lease)
    with space.fetch(chain, lease=again.lease) as fetch:
        assert fetch.counts == (CHUNKS,) * 3


def test_a_pace_is_kept(client):
    space = client.keyspace(keyspace("paced"))
    tensors = values(Dtype.BF16, 15)
    chain = space.chain(np.arange(TOKENS))
    space.put(chain, tensors)
    with space.fetch(chain, delivery=Delivery.BYTES, rate_bits=4_000_000) as fetch:
        first = next(fetch.arrivals())
        assert first.plane_class == PlaneClass.ANCHOR
        assert fetch.delivered_bytes < sum(fetch.class_bytes)
        list(fetch.arrivals())
        assert fetch.decode((0, LAYERS), EXACT, blanks(tensors)) == CHUNKS


def test_coroutines_do_the_same(tenants):
    tensors = values(Dtype.BF16, 16)

    async def story() -> None:
        async with AsyncClient(tenants / "default", "async") as client:
            assert await client.wait_connected(DEADLINE_S)
            space = client.keyspace(keyspace("async"))
            chain = space.chain(np.arange(TOKENS))
            assert (await space.put(chain, tensors)).stored == CHUNKS
            assert (await space.lookup(chain)).counts == (CHUNKS,) * 3
            for delivery in Delivery:
                targets = blanks(tensors)
                async with await space.fetch(chain, delivery=delivery) as fetch:
                    seen = [arrival async for arrival in fetch.arrivals()]
                    assert {a.plane_class for a in seen} == set(PlaneClass)
                    assert await fetch.decode((0, LAYERS), EXACT, targets) == CHUNKS
                assert equal(targets, tensors, CHUNKS * CHUNK_TOKENS)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[1:], "layers given"),
        (lambda t: [row[:1] for row in t], "tensors"),
        (lambda t: [[x.view(np.float16) for x in row] for row in t], "dtype float16"),
        (lambda t: [[x[:1] for x in row] for row in t], "shape"),
        (lambda t: [[x[:, :, :8] for x in row] for row in t], "shape"),
        (lambda t: [[x[:, :20] for x in row] for row in t], "tokens"),
        (lambda t: [[x[0] for x in row] for row in t], "shape"),
    ],
)
def test_tensors_that_do_not_fit_are_the_callers_mistake(client, change, words):
    space = client.keyspace(keyspace("mistakes"))
    chain = space.chain(np.arange(TOKENS))
    with pytest.raises(KvdError, match=words) as raised:
        space.put(chain, change(values(Dtype.BF16, 17)))
    assert raised.value.kind == ErrorKind.INVALID
    assert space.lookup(chain).counts == (0, 0, 0)


def test_odd_strides_are_copied_on_the_way_in_and_refused_on_the_way_out(client):
    space = client.keyspace(keyspace("strides"))
    tensors = values(Dtype.BF16, 18)
    turned = [[np.asfortranarray(tensor) for tensor in row] for row in tensors]
    chain = space.chain(np.arange(TOKENS))
    assert space.put(chain, turned).stored == CHUNKS
    assert equal(fetched(space, chain, tensors), tensors, CHUNKS * CHUNK_TOKENS)
    with space.fetch(chain) as fetch:
        with pytest.raises(KvdError, match="contiguous"):
            fetch.decode((0, LAYERS), EXACT, turned)
        frozen = blanks(tensors)
        frozen[0][0].flags.writeable = False
        with pytest.raises(KvdError, match="cannot be written"):
            fetch.decode((0, LAYERS), EXACT, frozen)


def test_targets_that_lie_in_each_other_are_refused(client):
    """What is decoded last would be written over what was called good."""
    space = client.keyspace(keyspace("overlaps"))
    tensors = values(Dtype.BF16, 20)
    chain = space.chain(np.arange(TOKENS))
    assert space.put(chain, tensors).stored == CHUNKS
    one = [np.zeros((1, TOKENS, WIDTH), np.uint16) for _ in range(2)]
    expanded = [np.lib.stride_tricks.as_strided(a, (HEADS, *a.shape[1:]), (0, *a.strides[1:]))
                for a in one]  # fmt: skip
    crossed = np.zeros((TOKENS + 1, WIDTH), np.uint16)
    crossed = np.lib.stride_tricks.as_strided(
        crossed, (HEADS, TOKENS, WIDTH), (2 * WIDTH, 2 * WIDTH, 2)
    )
    same = np.zeros((HEADS, TOKENS, WIDTH), np.uint16)
    with space.fetch(chain) as fetch:
        for pair, words in (
            (expanded, "each other's memory"),
            ((crossed, crossed.copy()), "each other's memory"),
            ((same, same), "same memory"),
        ):
            with pytest.raises(KvdError, match=words) as raised:
                fetch.decode((0, 1), EXACT, [pair])
            assert raised.value.kind == ErrorKind.INVALID
        # Heads beside each other for every token, and K beside V, are apart.
        packed = np.zeros((TOKENS, HEADS, 2 * WIDTH), np.uint16)
        pair = [packed[..., at : at + WIDTH].transpose(1, 0, 2) for at in (0, WIDTH)]
        assert fetch.decode((0, 1), EXACT, [pair]) == CHUNKS
        assert equal([pair], tensors[:1], CHUNKS * CHUNK_TOKENS)


def test_torch_tensors_whose_memory_is_not_what_they_show(client):
    torch = pytest.importorskip("torch")
    space = client.keyspace(keyspace("views of torch", layers=1))
    plain = torch.randn(HEADS, TOKENS, WIDTH).to(torch.bfloat16)
    negative, chain = torch._neg_view(plain), space.chain(np.arange(TOKENS))
    assert negative.is_neg() and negative.data_ptr() == plain.data_ptr()
    assert space.put(chain, [[negative, plain]]).stored == CHUNKS
    targets = [torch.zeros_like(plain) for _ in range(2)]
    with space.fetch(chain) as fetch:
        assert fetch.decode((0, 1), EXACT, [targets]) == CHUNKS
        with pytest.raises(KvdError, match="negative view"):
            fetch.decode((0, 1), EXACT, [[torch._neg_view(targets[0]), targets[1]]])
    whole = CHUNKS * CHUNK_TOKENS
    assert torch.equal(targets[0][:, :whole], -plain[:, :whole])
    assert torch.equal(targets[1][:, :whole], plain[:, :whole])


def test_unusable_arguments_name_the_limit(client):
    space = client.keyspace(keyspace("arguments"))
    for call in (
        lambda: space.lookup(b""),
        lambda: space.lookup(bytes(33)),
        lambda: space.fetch(bytes(32), class_count=4),
        lambda: space.fetch(bytes(32), layers=(2, 1)),
        lambda: space.fetch(bytes(32), rate_bits=-1),
        lambda: space.fetch(bytes(32), deadline_s=0),
        lambda: space.put(bytes(32), [], first=2),
        lambda: space.put(bytes(32), values(Dtype.BF16, 1), durability="paper"),
        lambda: space.chain([-1, 2]),
        lambda: space.chain([[1, 2]]),
        lambda: client.keyspace(Keyspace("m", "r", BlockShape(()))),
    ):
        with pytest.raises(KvdError) as raised:
            call()
        assert raised.value.kind == ErrorKind.INVALID


CHAINS = {
    "text": "x" * 32,
    "list": [0] * 32,
    "bytearray": bytearray(32),
    "memoryview": memoryview(bytes(32)),
    "array": np.zeros(32, np.uint8),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("known", [False, True], ids=["the first question", "a later one"])
def test_a_chain_that_is_no_bytes_is_refused_and_nobody_waits_for_it(client, known, chain, request):
    space = client.keyspace(keyspace(f"chains {request.node.name}"[:60]))
    if known:
        space.lookup(bytes(range(32)))
    for call in (space.lookup, space.prefetch, space.fetch):
        with pytest.raises(KvdError, match="it must be bytes") as raised:
            call(chain)
        assert raised.value.kind == ErrorKind.INVALID


def test_what_goes_wrong_behind_a_first_question_is_its_answer(client, monkeypatch):
    """A bug of the client itself, which nobody thought of: told, as any other would be."""

    def break_off(*arguments, **named):
        raise RuntimeError("broken")

    for at, (module, call) in enumerate(
        (("LookupRequest", "lookup"), ("PrefetchRequest", "prefetch"), ("FetchRequest", "fetch"))
    ):
        space = client.keyspace(keyspace(f"broken {at}"))
        with monkeypatch.context() as patch:
            patch.setattr(f"kvd.v1.kvd_pb2.{module}", break_off)
            with pytest.raises(KvdError, match="RuntimeError: broken"):
                getattr(space, call)(bytes(range(32)))
        assert space.lookup(bytes(range(32))).counts == (0, 0, 0)


def test_durability_that_the_daemon_lacks_is_refused_not_raised(client):
    space = client.keyspace(keyspace("durable"))
    chain = space.chain(np.arange(TOKENS))
    stored = space.put(chain, values(Dtype.BF16, 19), durability="disk")
    assert stored.refused == CHUNKS and stored.reason == Reason.UNAVAILABLE

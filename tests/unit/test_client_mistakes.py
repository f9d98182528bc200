"""What would store or report wrong bytes by a caller's own mistake is INVALID, and nothing is."""

from dataclasses import replace

import numpy as np
import pytest

from kvd.client import BlockShape, Delivery, Dtype, KvdError, compare
from kvd.codec import PROFILE_DEFAULT, CodecProfile, Grouping, RoleCode
from kvd.errors import ErrorKind
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import (
    CHUNK_TOKENS,
    CHUNKS,
    DEADLINE_S,
    HEADS,
    KEYSPACE,
    LAYERS,
    WIDTH,
    Stage,
    Strips,
    open_mapped,
)


def refused(call, *arguments, **named) -> str:
    """Return the one line that a call is refused with as INVALID."""
    with pytest.raises(KvdError) as raised:
        call(*arguments, **named)
    assert raised.value.kind == ErrorKind.INVALID
    assert "\n" not in raised.value.message
    return raised.value.message


# ---- codec profiles ----


@pytest.mark.parametrize(
    "profile",
    [
        replace(PROFILE_DEFAULT, k=RoleCode(Grouping.PER_TOKEN)),
        replace(PROFILE_DEFAULT, sinks=0),
        CodecProfile(id=4711),
    ],
)
def test_a_profile_that_no_reader_decodes_by_is_refused(stage, profile):
    message = refused(stage.client.keyspace, KEYSPACE, profile=profile)
    assert f"codec profile {profile.id}" in message


def test_a_profile_that_says_the_same_is_the_same(stage):
    assert stage.client.keyspace(KEYSPACE, profile=CodecProfile(id=1)).grid == stage.space.grid


# ---- prepared strips ----


def bits(dtype: Dtype, tokens: int = CHUNKS * CHUNK_TOKENS) -> list:
    values = np.full((HEADS, tokens, WIDTH), 0x3C, np.uint8).astype(
        np.uint8 if dtype.size_bytes == 1 else np.uint16
    )
    return [[values, values]] * LAYERS


def space_of(stage: Stage, dtype: Dtype = Dtype.BF16, chunk_tokens: int = CHUNK_TOKENS):
    shape = BlockShape.of_attention(LAYERS, HEADS, WIDTH, dtype)
    return stage.client.keyspace(replace(KEYSPACE, shape=shape, chunk_tokens=chunk_tokens))


@pytest.mark.parametrize(
    ("made", "of", "words"),
    [
        ({"dtype": Dtype.BF16}, {"dtype": Dtype.FP16}, ("BF16", "FP16")),
        ({"dtype": Dtype.FP8_E4M3}, {"dtype": Dtype.FP8_E5M2}, ("FP8_E4M3", "FP8_E5M2")),
        ({"chunk_tokens": 8}, {"chunk_tokens": 24}, ("8 tokens", "24 tokens")),
    ],
)
def test_strips_prepared_for_another_space_are_refused(stage, strips, made, of, words):
    maker, taker = space_of(stage, **made), space_of(stage, **of)
    dtype = made.get("dtype", Dtype.BF16)
    tokens = CHUNKS * maker.keyspace.chunk_tokens
    prepared = maker.prepare(bits(dtype, tokens))
    message = refused(taker.put_strips, strips.chain, prepared)
    assert all(word in message for word in words)


def test_strips_prepared_as_another_part_of_the_text_are_refused(stage, strips):
    """The first chunk of a text has sinks of its own."""
    prepared = stage.space.prepare(strips.tensors, first=1)
    message = refused(stage.space.put_strips, strips.chain, prepared)
    assert "first is 0" in message and "prepared with first 1" in message
    assert "first is -1" in refused(stage.space.prepare, strips.tensors, first=-1)


def test_strips_that_were_given_back_are_refused(stage, strips):
    """Their memory may hold the strips of another put by then."""
    prepared = stage.space.prepare(strips.tensors)
    pool = stage.space.scope.pool
    prepared.give_back(pool)
    prepared.give_back(pool)
    assert "given back" in refused(stage.space.put_strips, strips.chain, prepared)
    fetch = open_mapped(stage, strips)
    assert "given back" in refused(compare, fetch, prepared)


def test_only_what_was_prepared_of_the_same_is_compared(stage, strips):
    fetch = open_mapped(stage, strips)
    halves = [[t.view(np.float16) for t in row] for row in strips.tensors]
    other = space_of(stage, Dtype.FP16).prepare(halves)
    message = refused(compare, fetch, other)
    assert "BF16" in message and "FP16" in message
    later = stage.space.prepare(strips.tensors, first=1)
    assert "prepared with first 1" in refused(compare, fetch, later)
    assert compare(fetch, stage.space.prepare(strips.tensors)).differences == ()


# ---- what was fetched ----


def fetch_of_middle(stage: Stage, strips: Strips):
    """Return a byte delivery of layer 1 alone: all its bytes, and the rest of them anything."""
    opening = stage.start(
        stage.space.fetch, strips.chain, delivery=Delivery.BYTES, layers=(1, LAYERS)
    )
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.FETCH, pb.FetchRequest)
    assert (request.layer_begin, request.layer_end) == (1, LAYERS)
    stage.peer.promise(number, strips.promise())
    for plane_class in range(3):
        for chunk in range(CHUNKS):
            strip = strips.strip(plane_class, chunk)
            table = strips.table(plane_class, chunk)
            begin = int(table["offset"][table.size // LAYERS])
            for offset, data in ((0, strip[: table.nbytes]), (begin, strip[begin:])):
                stage.peer.piece(number, (plane_class, chunk, offset), data)
    stage.peer.reply(number, pb.FetchDone())
    fetch = opening.result(DEADLINE_S)
    list(fetch.arrivals())
    return fetch


@pytest.mark.parametrize(
    "wanted",
    [
        {"layers": (0, LAYERS)},
        {"layers": (1, LAYERS + 1)},
        {"layers": (2, 2)},
        {"layers": (-1, 2)},
        {"class_count": 0},
        {"class_count": 4},
        {"class_count": -1},
    ],
)
def test_what_was_not_fetched_is_not_verified_and_nobody_blamed(stage, strips, wanted):
    fetch = fetch_of_middle(stage, strips)
    refused(fetch.verify, **({"class_count": 3} | wanted))
    assert fetch.verify(3) == CHUNKS
    fetch.release()
    while True:
        kind, _, body = stage.peer.receive()
        if kind == FrameKind.RELEASE:
            assert pb.ReleaseRequest.FromString(body).corrupt == b""
            return


def test_of_layers_that_were_not_fetched_none_is_compared(stage, strips):
    fetch = fetch_of_middle(stage, strips)
    values = [[t.copy() for t in row] for row in strips.tensors]
    for tensor in values[0]:
        tensor ^= 0x40
    comparison = compare(fetch, stage.space.prepare(values))
    assert comparison.counts == (CHUNKS,) * 3 and comparison.differences == ()
    assert stage.client.status().counters.checksum_failures == 0

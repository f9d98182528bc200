"""Frames cut from a stream that comes in any pieces."""

import random

import pytest

from kvd.limits import KIB, MIB
from kvd.rpc.frames import BUFFER_BYTES, FrameBuffer, FrameError, pack_frame
from kvd.wire import FRAME_HEAD, FrameKind

LIMIT = 8 * MIB


def feed(buffer: FrameBuffer, data: bytes) -> int:
    """Copy what fits of `data`, as a socket would, and return how much."""
    with buffer.space() as space:
        size = min(len(space), len(data))
        assert size
        space[:size] = data[:size]
    buffer.filled(size)
    return size


def cut(stream: bytes, sizes, limit: int = LIMIT) -> list:
    buffer, frames = FrameBuffer(limit), []
    while stream:
        stream = stream[feed(buffer, stream[: next(sizes)]) :]
        while (frame := buffer.take()) is not None:
            frames.append(frame)
    return frames


@pytest.mark.parametrize("seed", range(20))
def test_any_split_gives_the_same_frames(seed):
    rng = random.Random(seed)
    kinds = [FrameKind.LOOKUP, FrameKind.SEAL, FrameKind.CREDIT]
    lengths = [0, 1, 11, 12, 13, 1000, 70_000, BUFFER_BYTES, BUFFER_BYTES + 1, 600_000]
    frames = [
        (rng.choice(kinds), rng.randrange(1 << 32), rng.randbytes(rng.choice(lengths)))
        for _ in range(12)
    ]
    stream = b"".join(pack_frame(*frame) for frame in frames)
    largest = rng.choice([1, 12, 5000, 1 << 20])
    if largest < 100:
        frames = [(k, n, b[:300]) for k, n, b in frames]
        stream = b"".join(pack_frame(*frame) for frame in frames)
    sizes = iter(lambda: rng.randint(1, largest), None)
    assert cut(stream, sizes) == frames


def test_the_largest_frame_is_taken_and_the_next_size_is_not():
    body = bytes(LIMIT)
    assert cut(pack_frame(FrameKind.LOOKUP, 1, body), iter(lambda: MIB, None))[0][2] == body
    with pytest.raises(FrameError, match="8388608"):
        cut(FRAME_HEAD.pack(LIMIT + 1, 9, FrameKind.LOOKUP, 0, 0), iter([12]))


def test_memory_grows_with_what_came_not_with_what_was_announced():
    buffer = FrameBuffer(LIMIT)
    feed(buffer, FRAME_HEAD.pack(LIMIT, 1, FrameKind.LOOKUP, 0, 0))
    assert buffer.take() is None
    fed = FRAME_HEAD.size
    while fed < 300 * KIB:
        fed += feed(buffer, bytes(10_000))
        with buffer.space() as space:
            assert fed + len(space) <= 4 * max(fed, BUFFER_BYTES)


def test_a_large_frame_leaves_no_large_buffer():
    buffer = FrameBuffer(LIMIT)
    data = pack_frame(FrameKind.LOOKUP, 1, bytes(2 * MIB))
    while data:
        data = data[feed(buffer, data) :]
    assert buffer.take() is not None
    with buffer.space() as space:
        assert len(space) == BUFFER_BYTES


@pytest.mark.parametrize(
    "head", [(0, 5, 99, 0, 0), (0, 5, FrameKind.LOOKUP, 1, 0), (0, 5, FrameKind.LOOKUP, 0, 1)]
)
def test_what_is_no_head_names_its_request(head):
    with pytest.raises(FrameError) as error:
        cut(FRAME_HEAD.pack(*head), iter([12]))
    assert error.value.number == 5

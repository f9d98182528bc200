"""Frames cut from any fragments of a stream, and pieces landing where they belong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.client.intake import Intake
from kvd.errors import ErrorKind, KvdError
from kvd.limits import KIB, Limits
from kvd.wire import FRAME_HEAD, PIECE_HEAD, FrameKind

REQUEST = 7
STRIP_BYTES = 200 * KIB


class Landed:
    """A sink of one strip of each class."""

    def __init__(self) -> None:
        self.strips = [bytearray(STRIP_BYTES) for _ in range(3)]
        self.log: list[tuple[int, int, int, int]] = []

    def place(self, plane_class, lane, chunk, offset, size):
        if chunk or lane or offset + size > STRIP_BYTES:
            return None
        return memoryview(self.strips[plane_class])[offset : offset + size]

    def landed(self, plane_class, chunk, offset, size):
        self.log.append((plane_class, chunk, offset, size))


def message(kind: int, number: int, body: bytes) -> bytes:
    return FRAME_HEAD.pack(len(body), number, kind, 0, 0) + body


def piece(plane_class: int, offset: int, data: bytes, request: int = REQUEST) -> bytes:
    head = PIECE_HEAD.pack(plane_class, 0, 0, 0, offset)
    return message(FrameKind.PIECE, request, head + data)


def feed(intake: Intake, data: bytes, sizes) -> None:
    """Write data through `space`, in steps of the sizes given, over and over."""
    steps = iter(sizes)
    while data:
        space = intake.space()
        assert len(space) > 0
        step = min(next(steps, 1 << 20), len(space), len(data))
        space[:step] = data[:step]
        data = data[step:]
        intake.filled(step)


def collecting() -> tuple[Intake, list, Landed]:
    frames, sink = [], Landed()
    intake = Intake(lambda kind, number, body: frames.append((kind, number, body)))
    intake.sinks[REQUEST] = sink
    return intake, frames, sink


SMALL, LARGE = st.integers(0, 300), st.integers(50 * KIB, 150 * KIB)
BODIES = st.lists(st.tuples(st.booleans(), st.one_of(SMALL, SMALL, LARGE)), min_size=1, max_size=8)
STEPS = st.lists(st.one_of(st.integers(1, 40), st.integers(1000, 90_000)), max_size=400)


@settings(max_examples=40)
@given(BODIES, STEPS)
def test_any_fragments_give_the_same_frames_and_bytes(bodies, steps):
    intake, frames, sink = collecting()
    sent, expected, log = b"", [], []
    strips = [bytearray(STRIP_BYTES) for _ in range(3)]
    for index, (is_piece, size) in enumerate(bodies):
        data = bytes((index * 37 + at) % 251 for at in range(max(size, int(is_piece))))
        if is_piece:
            plane_class, offset = index % 3, index * 11
            sent += piece(plane_class, offset, data)
            strips[plane_class][offset : offset + len(data)] = data
            log.append((plane_class, 0, offset, len(data)))
        else:
            sent += message(FrameKind.REPLY, index, data)
            expected.append((FrameKind.REPLY, index, data))
    feed(intake, sent, steps)
    assert frames == expected
    assert sink.log == log and sink.strips == strips


def test_pieces_that_nobody_waits_for_are_passed_over():
    intake, frames, sink = collecting()
    unwanted = piece(0, 0, b"x" * 100_000, request=REQUEST + 1)
    feed(intake, unwanted + message(FrameKind.REPLY, 1, b"y"), [10_000] * 20)
    assert frames == [(FrameKind.REPLY, 1, b"y")] and sink.log == []


def test_a_sink_that_is_stopped_gets_no_further_byte_of_a_piece_half_landed():
    intake, frames, sink = collecting()
    whole = piece(1, 0, b"z" * 150_000)
    feed(intake, whole[:100_000], [])
    intake.stop(REQUEST)
    before = bytes(sink.strips[1])
    feed(intake, whole[100_000:] + message(FrameKind.REPLY, 2, b""), [7_000] * 20)
    assert bytes(sink.strips[1]) == before and sink.log == []
    assert frames == [(FrameKind.REPLY, 2, b"")]


@pytest.mark.parametrize(
    "data",
    [
        FRAME_HEAD.pack(Limits().frame_bytes_max + 1, 1, FrameKind.REPLY, 0, 0),
        FRAME_HEAD.pack(PIECE_HEAD.size, REQUEST, FrameKind.PIECE, 0, 0) + bytes(12),
        FRAME_HEAD.pack(3, REQUEST, FrameKind.PIECE, 0, 0) + bytes(12),
        FRAME_HEAD.pack(Limits().piece_bytes_max + 13, REQUEST, FrameKind.PIECE, 0, 0) + bytes(12),
        piece(0, STRIP_BYTES, b"beyond"),
    ],
)
def test_what_cannot_be_a_frame_is_refused(data):
    intake, _, _ = collecting()
    with pytest.raises(KvdError) as raised:
        feed(intake, data, [])
    assert raised.value.kind == ErrorKind.INCOMPATIBLE

"""Rows of the table: what clients say to a daemon, and what a daemon says to its clients."""

import asyncio
from collections.abc import Coroutine
from functools import cache

import numpy as np
import uvloop
from google.protobuf.message import DecodeError, Message

from kvd.client.landing import Landing, staging_bytes
from kvd.client.mapping import Buffer
from kvd.client.messages import (
    Promised,
    parse_done,
    parse_promise,
    parse_ready,
)
from kvd.client.readiness import Readiness
from kvd.client.requests import Requests
from kvd.core.events import Event, FetchWanted, KeyspaceWanted, ReserveWanted, SealWanted
from kvd.core.invariants import check
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, KIB, PAGE_BYTES, Limits
from kvd.rpc.frames import BUFFER_BYTES, FrameBuffer, FrameError, pack_frame
from kvd.rpc.grpc_reading import Reading
from kvd.rpc.grpc_service import DEADLINE_MS_MAX, take_over_deadline
from kvd.rpc.hello import check_hello
from kvd.rpc.wishes import SHAPE_ITEMS_MAX, TEXT_BYTES_MAX, WISHES, parse
from kvd.shape import cell_grid
from kvd.table import table_bytes
from kvd.testing.disk_strips import make_strip
from kvd.types import Lane
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import PIECE_HEAD, FrameKind
from tests.e2e.rawclient import small_keyspace
from tests.fuzz.hostile import Hostile
from tests.fuzz.parser import Length, Parser

KINDS = tuple(WISHES)
FRAME_BYTES_MAX = 64 * KIB
ASKED = 3  # Chunks that the client here asks for.
PIECE = 2 * PAGE_BYTES


def run(work: Coroutine[None, None, bool]) -> bool:
    """Run what needs a loop on the one that is kept for it."""
    return loop_of_all().run_until_complete(work)


@cache
def loop_of_all() -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop()


# ---- to the daemon ----


def _take_wish(data: bytes) -> bool:
    """The first byte says which; a core that has something takes it, and must stand."""
    if not data:
        return False
    hostile = Hostile(3)
    for kind in (FrameKind.REGISTER_KEYSPACE, FrameKind.RESERVE, FrameKind.SEAL, FrameKind.LOOKUP):
        hostile.say(kind, hostile.decent(kind))
    wish = hostile.say_bytes(KINDS[data[0] % len(KINDS)], data[1:])
    check(hostile.state)
    if wish is not None:
        _within(wish, hostile.limits)
    return wish is not None


def _within(wish: Event, limits: Limits) -> None:
    """Assert that a wish is within the bounds that docs/protocol.md states."""
    match wish:
        case KeyspaceWanted(keyspace=keyspace):
            texts = (keyspace.model, keyspace.weight_revision, keyspace.chain, keyspace.adapter)
            assert all(len(text.encode()) <= TEXT_BYTES_MAX for text in texts)
            assert len(keyspace.shape.groups) <= SHAPE_ITEMS_MAX
        case ReserveWanted(chain=chain, sizes=sizes):
            assert len(chain) % DIGEST_BYTES == 0 and sizes.shape == (len(sizes), 3)
            assert 0 < len(chain) // DIGEST_BYTES <= limits.chunks_per_request_max
        case SealWanted(sizes=sizes, roots=roots):
            assert sizes.shape == roots.shape == (len(sizes), 3)
        case FetchWanted(chain=chain, lanes=lanes, deadline_ns=deadline_ns):
            assert 0 < len(chain) // DIGEST_BYTES <= limits.chunks_per_request_max
            assert 1 <= len(lanes) <= limits.lanes_per_request_max
            assert deadline_ns <= (1 << 62) + limits.deadline_ns_max


@cache
def _wishes() -> list[bytes]:
    hostile = Hostile(5)
    return [
        bytes([at]) + hostile.decent(kind).SerializeToString()
        for at, kind in enumerate(KINDS)
        for _ in range(3)
    ]


def _take_hello(data: bytes) -> bool:
    hello = pb.Hello.FromString(data)
    check_hello(hello)
    assert hello.protocol_min <= hello.protocol_max and len(hello.client) <= 256
    return True


class _Called:
    """The context of one gRPC call, as far as its request is read from it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        return self._data


def _take_call(data: bytes) -> bool:
    if not data:
        return False
    kind = KINDS[data[0] % len(KINDS)]
    message_type, _ = WISHES[kind]

    async def read() -> bool:
        sent = await Reading().data("red", _Called(data[1:]))  # type: ignore[arg-type]
        request = parse(message_type, sent)
        take_over_deadline(request, 1e9 if data[0] & 0x80 else 0.5)
        if "deadline_ms" in request.DESCRIPTOR.fields_by_name:
            assert 0 < request.deadline_ms <= DEADLINE_MS_MAX
        return message_type.FromString(request.SerializeToString()) == request

    return run(read())


# ---- frames, as the daemon cuts them ----


def _take_frames(data: bytes) -> bool:
    """Whatever pieces it comes in: what was cut is what was sent, and no memory comes of a head."""
    buffer, at, sent = FrameBuffer(FRAME_BYTES_MAX), 0, b""
    while at < len(data):
        with buffer.space() as space:
            size = min(len(space), len(data) - at, 1 + 3 * len(data) // 4)
            assert len(space) <= 4 * max(at, BUFFER_BYTES)
            space[:size] = data[at : at + size]
        buffer.filled(size)
        at += size
        while (frame := buffer.take()) is not None:
            sent += pack_frame(*frame)
    assert data.startswith(sent)
    return sent == data


def _frames() -> list[bytes]:
    bodies = [b"", bytes(12), bytes(range(200)), b"x" * 5000]
    frames = [pack_frame(FrameKind.LOOKUP, at, body) for at, body in enumerate(bodies)]
    return [b"".join(frames), frames[2], frames[1] + frames[0]]


# ---- to the client ----


@cache
def _promise() -> pb.Promise:
    """Return a promise of three chunks, all classes of the first two, anchors of the third."""
    counts = (3, 2, 2)
    total = sum(counts)
    lane = pb.LanePromise(
        generations=np.arange(7, 10, dtype="<u8").tobytes(),
        profiles=np.ones(3, "<u8").tobytes(),
        slabs=np.ones(total, "<u4").tobytes(),
        offsets=(np.arange(total, dtype="<u8") * PIECE).tobytes(),
        sizes=np.full(total, PIECE, "<u4").tobytes(),
        roots=np.arange(total, dtype="<u8").tobytes(),
    )
    words = np.array(counts, "<u4").tobytes()
    return pb.Promise(lease=9, lease_ms=30_000, counts=words, lanes=[lane], ready=b"\x01\0\0")


@cache
def _grid():
    return cell_grid(small_keyspace().shape, Lane())


def _check_promise(promised: Promised) -> None:
    a, r, e = promised.counts
    assert ASKED >= a >= r >= e >= 0
    assert len(promised.generations) == len(promised.profiles) == a
    for columns in (promised.slabs, promised.offsets, promised.sizes, promised.roots):
        assert tuple(map(len, columns)) == promised.counts
    least = table_bytes(_grid().cell_count)
    for sizes in promised.sizes:
        assert (sizes >= least).all() and not (sizes % PAGE_BYTES).any()


def _take_promise(data: bytes) -> bool:
    promised = parse_promise(pb.Promise.FromString(data), ASKED, table_bytes(_grid().cell_count))
    _check_promise(promised)
    readiness = Readiness(_grid(), promised)
    assert readiness is not None
    return True


def _take_done(data: bytes) -> bool:
    counts, _ = parse_done(pb.FetchDone.FromString(data), (3, 2, 1))
    assert all(kept <= of for kept, of in zip(counts, (3, 2, 1), strict=True))
    assert counts[0] >= counts[1] >= counts[2]
    return True


def _take_ready(data: bytes) -> bool:
    ready = parse_ready(pb.Ready.FromString(data).ready, (3, 2, 0))
    assert all(0 <= number <= 255 for number in ready) and ready[2] == 255
    return True


class _Asking:
    """A client with one request of each kind under way, that knows no socket."""

    def __init__(self) -> None:
        self.lost: list[KvdError] = []
        self.notices: list[pb.Notice] = []
        self.answers: dict[int, object] = {}
        self.landing: Landing | None = None
        self.requests = Requests(self.notices.append, self._lose)
        self.kinds: dict[int, FrameKind] = {}
        for kind in (FrameKind.BIND, *KINDS):
            told = self._told if kind == FrameKind.FETCH else None
            number = len(self.kinds) + 1
            self.kinds[number] = kind
            self.requests.start(kind, pb.Bind(), self._answered(number), told)

    def _answered(self, number: int):
        def take(answer: object) -> None:
            assert number not in self.answers, "answered twice"
            self.answers[number] = answer

        return take

    def _lose(self, error: KvdError) -> None:
        self.lost.append(error)
        self.requests.close(error)

    def _told(self, number: int, message: pb.Promise | pb.Ready) -> None:
        if isinstance(message, pb.Ready) or self.landing is not None:
            return
        promised = parse_promise(message, ASKED, table_bytes(_grid().cell_count))
        _check_promise(promised)
        size = staging_bytes(promised)
        if 0 < size <= 16 * PIECE:
            self.landing = Landing(_grid(), (0, _grid().layers), promised, Buffer(size))
            self.requests.deliver_to(number, self.landing, size)

    def feed(self, data: bytes) -> None:
        stream, at = self.requests.stream, 0
        while at < len(data) and not self.lost:
            space = stream.get_buffer(-1)
            size = min(len(space), len(data) - at)
            assert size, "there is no space for what comes"
            space[:size] = data[at : at + size]
            stream.buffer_updated(size)
            at += size


def _take_stream(data: bytes) -> bool:
    """Say to a client what a daemon says; it answers each request once, whatever comes."""

    async def hear() -> bool:
        client = _Asking()
        client.feed(data)
        whole = not client.lost
        client.requests.close(KvdError(ErrorKind.LOST, "the end"))
        assert set(client.answers) == set(client.kinds)
        return whole

    return run(hear())


@cache
def _streams() -> list[bytes]:
    client_kinds = (FrameKind.BIND, *KINDS)
    fetch = client_kinds.index(FrameKind.FETCH) + 1
    promise = pack_frame(FrameKind.PROMISE, fetch, _promise().SerializeToString())
    strip = make_strip(3).data
    pieces = b""
    for plane_class, count in enumerate((3, 2, 2)):
        for chunk in range(count):
            head = PIECE_HEAD.pack(plane_class, 0, 0, chunk, 0)
            pieces += pack_frame(FrameKind.PIECE, fetch, head + strip)
    replies = b"".join(
        pack_frame(FrameKind.REPLY, number, b"")
        for number, kind in enumerate(client_kinds, 1)
        if kind != FrameKind.FETCH
    )
    ready = pack_frame(FrameKind.READY, fetch, pb.Ready(ready=b"\1\1\1").SerializeToString())
    error = pb.Error(kind=3, message="no").SerializeToString()  # type: ignore[arg-type]
    notice = pack_frame(FrameKind.NOTICE, 0, pb.Notice(lease_lost=9).SerializeToString())
    done = pb.FetchDone(reason=pb.READ_FAILED, counts=np.array([3, 2, 1], "<u4").tobytes())
    end = pack_frame(FrameKind.REPLY, fetch, done.SerializeToString())
    return [
        promise + pieces + ready + end, replies + notice,
        notice + promise + pack_frame(FrameKind.ERROR, fetch, error),
        pack_frame(FrameKind.ERROR, 1, error) + pack_frame(FrameKind(69), fetch, b"")
    ]  # fmt: skip


HELLO = pb.Hello(protocol_min=1, protocol_max=3, features=255, client="engine 1")


def _places(message: Message, part: bytes) -> int:
    """Return where a column begins in a message's bytes."""
    packed = message.SerializeToString()
    assert packed.count(part) == 1
    return packed.index(part)


COUNTS = np.array((3, 2, 2), "<u4").tobytes()
DONE = pb.FetchDone(reason=pb.READ_FAILED, counts=np.array((3, 2, 1), "<u4").tobytes())
PARSERS = (
    Parser(
        "wishes", _take_wish, _wishes,
        ("rpc/wishes.py:parse_message", "rpc/wishes.py:wish_of", "rpc/wishes.py:_columns",
         "rpc/wishes.py:chain_of", "rpc/wishes.py:_stored_chain_of", "rpc/wishes.py:lane_of",
         "rpc/wishes.py:_release"),
        protobuf=True, head=1,
    ),
    Parser(
        "hello", _take_hello, lambda: [HELLO.SerializeToString()],
        ("rpc/hello.py:check_hello",), (DecodeError, KvdError), protobuf=True,
    ),
    Parser(
        "grpc_request", _take_call, _wishes, ("rpc/wishes.py:parse",), (KvdError,),
        protobuf=True, head=1,
    ),
    Parser(
        "daemon_frames", _take_frames, _frames, ("rpc/frames.py:take",), (FrameError,),
        lengths=(Length(0, "<I"),),
    ),
    Parser(
        "client_promise", _take_promise, lambda: [_promise().SerializeToString()],
        ("client/messages.py:parse_promise", "client/messages.py:parse_counts",
         "client/messages.py:parse_ready", "client/messages.py:column"),
        (DecodeError, KvdError), protobuf=True,
        lengths=tuple(Length(_places(_promise(), COUNTS) + at, "<I") for at in (0, 4, 8)),
    ),
    Parser(
        "client_done", _take_done,
        lambda: [DONE.SerializeToString()],
        ("client/messages.py:parse_done",), (DecodeError, KvdError), protobuf=True,
        lengths=tuple(Length(_places(DONE, DONE.counts) + at, "<I") for at in (0, 4, 8)),
    ),
    Parser(
        "client_ready", _take_ready, lambda: [pb.Ready(ready=b"\1\2\3").SerializeToString()],
        ("client/messages.py:parse_ready",), (DecodeError, KvdError), protobuf=True,
    ),
    Parser(
        "client_stream", _take_stream, _streams,
        ("client/intake.py:_take", "client/intake.py:_take_piece", "client/intake.py:_take_message",
         "client/requests.py:_on_frame", "client/requests.py:_on_final", "client/landing.py:place",
         "client/landing.py:_ends", "client/messages.py:error_of"),
        lengths=(Length(0, "<I"),),
        # A frame of the largest size that there is has its room before it comes.
        room_bytes=Limits().frame_bytes_max + (1 << 18),
    ),
)  # fmt: skip

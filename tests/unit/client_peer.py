"""A scripted daemon for tests of the SDK: real sockets and memory, and no sense of its own.

The test is the script: it takes what the client sent and answers as it pleases. Every wait has a
deadline.
"""

import mmap
import os
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from kvd.arena.control_page import MemfdControlPage, make_page
from kvd.arena.memfd import Descriptors, open_slab
from kvd.client import Client
from kvd.client.arrays import source_views
from kvd.client.mapping import Pool
from kvd.client.strips import Encoder, lay
from kvd.codec import PROFILE_DEFAULT
from kvd.identity import Keyspace, chunk_key, keyspace_digest
from kvd.limits import DIGEST_BYTES, MIB
from kvd.shape import BlockShape, cell_grid
from kvd.table import TABLE_ENTRY, table_bytes
from kvd.types import Dtype, Lane
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FEATURES, FRAME_HEAD, PIECE_HEAD, FrameKind

DEADLINE_S = 20.0
CHUNKS = 3  # Of the strips that a test is given.
NONCE = b"sixteen bytes 16"
TENANT = "peer"
GENERATION = 5
LEASE = 77
HANDLE = 9
LAYERS, HEADS, WIDTH, CHUNK_TOKENS = 3, 2, 16, 8
KEYSPACE = Keyspace(
    "m", "r", BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16), chunk_tokens=CHUNK_TOKENS
)
GRID = cell_grid(KEYSPACE.shape, Lane())
DIGEST = keyspace_digest(KEYSPACE, TENANT)
SLAB_BYTES = 8 * MIB
# Of strips that are several pieces long when they are read from disk.
LARGE = Keyspace("large", "r", BlockShape.of_attention(8, 2, 64, Dtype.BF16), chunk_tokens=512)


class Peer:
    """Listens like a daemon; `welcome` takes one client through its handshake."""

    def __init__(self, directory: Path, epoch: int = 1) -> None:
        self.directory, self.epoch = directory, epoch
        self.features = FEATURES  # That it knows.
        self._listeners = {
            name: _listen(directory / name, kind)
            for name, kind in (
                ("slabs.sock", socket.SOCK_SEQPACKET),
                ("session.sock", socket.SOCK_STREAM),
            )
        }
        self.channel: socket.socket | None = None
        self.stream: socket.socket | None = None
        self.page: MemfdControlPage | None = None
        self.hello = pb.Hello()

    def accept_channel(self) -> None:
        """Take a client's first message."""
        self.channel = _accept(self._listeners["slabs.sock"])
        self.hello = pb.ToDaemon.FromString(self.channel.recv(65536)).hello

    def tell(self, message: pb.ToClient, *descriptors: int) -> None:
        assert self.channel is not None
        socket.send_fds(self.channel, [message.SerializeToString()], list(descriptors))

    def welcome(self) -> "Peer":
        self.accept_channel()
        self.page, descriptor = make_page(self.epoch)
        welcome = pb.Welcome(
            protocol=1, features=self.hello.features & self.features, session=1, nonce=NONCE,
            token="t", epoch=self.epoch, daemon="peer",
        )  # fmt: skip
        self.tell(pb.ToClient(welcome=welcome), descriptor)
        os.close(descriptor)
        self.stream = _accept(self._listeners["session.sock"])
        number, bind = self.take(FrameKind.BIND, pb.Bind)
        assert bind.nonce == NONCE
        self.reply(number, pb.Bound())
        return self

    def detached(self) -> int:
        """Take the next SlabDetached."""
        assert self.channel is not None
        return pb.ToDaemon.FromString(self.channel.recv(65536)).slab_detached.slab

    # ---- frames ----

    def receive(self) -> tuple[int, int, bytes]:
        """Return (kind, number, body) of the next frame."""
        length, number, kind, _, _ = FRAME_HEAD.unpack(self._exactly(FRAME_HEAD.size))
        return kind, number, self._exactly(length)

    def take(self, kind: FrameKind, message: Any) -> tuple[int, Any]:
        """Take the next frame, which must be of this kind; return its number and message."""
        got, number, body = self.receive()
        assert got == kind, (FrameKind(got), kind)
        return number, message.FromString(body)

    def take_keyspace(self) -> None:
        number, _ = self.take(FrameKind.REGISTER_KEYSPACE, pb.RegisterKeyspaceRequest)
        self.reply(number, pb.RegisterKeyspaceReply(keyspace=HANDLE, digest=DIGEST))

    def send(self, kind: FrameKind, number: int, body: bytes) -> None:
        assert self.stream is not None
        self.stream.sendall(FRAME_HEAD.pack(len(body), number, kind, 0, 0) + body)

    def reply(self, number: int, message: Any) -> None:
        self.send(FrameKind.REPLY, number, message.SerializeToString())

    def refuse(self, number: int, kind: Any, text: str = "no") -> None:
        self.send(FrameKind.ERROR, number, pb.Error(kind=kind, message=text).SerializeToString())

    def ready(self, number: int, *ready: int) -> None:
        self.send(FrameKind.READY, number, pb.Ready(ready=bytes(ready)).SerializeToString())

    def promise(self, number: int, promise: pb.Promise) -> None:
        self.send(FrameKind.PROMISE, number, promise.SerializeToString())

    def piece(self, number: int, place: tuple[int, int, int], data: bytes) -> None:
        """Send a piece; `place` is class, chunk, offset."""
        plane_class, chunk, offset = place
        head = PIECE_HEAD.pack(plane_class, 0, 0, chunk, offset)
        self.send(FrameKind.PIECE, number, head + data)

    def hang_up(self) -> None:
        for connection in (self.channel, self.stream):
            if connection is not None:
                connection.close()

    def close(self) -> None:
        self.hang_up()
        for listener in self._listeners.values():
            listener.close()
        for name in self._listeners:
            (self.directory / name).unlink()

    def _exactly(self, size: int) -> bytes:
        assert self.stream is not None
        data = bytearray()
        while len(data) < size:
            more = self.stream.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)


def _listen(path: Path, kind: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.settimeout(DEADLINE_S)
    listener.bind(str(path))
    listener.listen(8)
    return listener


def _accept(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(DEADLINE_S)
    return connection


class Stage:
    """A peer and a client that is connected to it; verbs run on threads beside the script."""

    def __init__(self, deadline_s: float = DEADLINE_S, features: int = FEATURES) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kvd-"))
        self.peer = Peer(self.directory)
        self.peer.features = features
        self.client = Client(self.directory, "test", deadline_s)
        self.peer.welcome()
        assert self.client.wait_connected(DEADLINE_S)
        self.space = self.client.keyspace(KEYSPACE)
        self._threads = ThreadPoolExecutor(4)

    def start(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> "Future[Any]":
        return self._threads.submit(call, *arguments, **named)

    def close(self) -> None:
        self.client.close()
        self.peer.close()
        self._threads.shutdown()
        self.directory.rmdir()


class Strips:
    """Encoded chunks of random values in a slab, as a daemon would have them."""

    def __init__(self, count: int, seed: int = 3, keyspace: Keyspace = KEYSPACE) -> None:
        rng = np.random.default_rng(seed)
        self.grid, tokens = cell_grid(keyspace.shape, Lane()), keyspace.chunk_tokens
        of_k = self.grid.tensors[0]
        shape = (of_k.heads, count * tokens, of_k.width)
        self.count = count
        self.tensors = [
            [_bfloat16(rng.standard_normal(shape)) for _ in range(2)]
            for _ in range(self.grid.layers)
        ]
        self.chain = bytes(rng.integers(0, 256, count * DIGEST_BYTES, np.uint8))
        self.slab: Descriptors = open_slab("kvd-test", SLAB_BYTES)
        memory = mmap.mmap(self.slab.writing, SLAB_BYTES)
        self.memory = np.frombuffer(memory, np.uint8)
        pool, encoder = Pool(), Encoder(self.grid, tokens, PROFILE_DEFAULT)
        views = source_views(self.grid, self.tensors)
        prepared = encoder.encode(views, range(count), 0, SLAB_BYTES, pool)
        self.sizes = prepared.sizes
        ends = np.cumsum(self.sizes.reshape(-1), dtype=np.uint64)
        self.offsets = (ends - self.sizes.reshape(-1)).reshape(count, 3)
        keys = [
            chunk_key(DIGEST, self.chain[at : at + DIGEST_BYTES])
            for at in range(0, len(self.chain), DIGEST_BYTES)
        ]
        places = self.offsets + np.uint64(self.memory.ctypes.data)
        self.roots = lay(prepared, slice(0, count), places, (Lane(), keys, GENERATION))

    def promise(self, slab: int = 1, lease_ms: int = 60_000) -> pb.Promise:
        """Return a promise of all of it in mapped delivery."""
        count = self.count
        lane = pb.LanePromise(
            generations=np.full(count, GENERATION, "<u8").tobytes(),
            profiles=np.full(count, PROFILE_DEFAULT.id, "<u8").tobytes(),
            slabs=np.full(3 * count, slab, "<u4").tobytes(),
            offsets=self.offsets.T.astype("<u8").tobytes(),
            sizes=self.sizes.T.astype("<u4").tobytes(),
            roots=self.roots.T.astype("<u8").tobytes(),
        )
        return pb.Promise(
            lease=LEASE,
            counts=np.full(3, count, "<u4").tobytes(),
            lanes=[lane],
            lease_ms=lease_ms,
        )

    def given(self, slab: int = 1, writable: bool = False) -> tuple[pb.ToClient, int]:
        """Return the message that gives the slab, and its descriptor."""
        given = pb.SlabGiven(slab=slab, size=SLAB_BYTES, writable=writable)
        descriptor = self.slab.writing if writable else self.slab.reading
        return pb.ToClient(slab_given=given), descriptor

    def strip(self, plane_class: int, chunk: int) -> bytes:
        begin, size = int(self.offsets[chunk, plane_class]), int(self.sizes[chunk, plane_class])
        return self.memory[begin : begin + size].tobytes()

    def table(self, plane_class: int, chunk: int) -> np.ndarray:
        """Return the table at a strip's head."""
        head = self.strip(plane_class, chunk)[: table_bytes(self.grid.cell_count)]
        return np.frombuffer(head, TABLE_ENTRY)

    def targets(self) -> list[list[np.ndarray]]:
        return [[np.zeros_like(tensor) for tensor in row] for row in self.tensors]

    def equal(self, targets: list[list[np.ndarray]]) -> bool:
        return all(
            np.array_equal(target, tensor)
            for ours, theirs in zip(targets, self.tensors, strict=True)
            for target, tensor in zip(ours, theirs, strict=True)
        )

    def close(self) -> None:
        self.slab.close()


def _bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def open_mapped(stage: Stage, strips: Strips, lease_ms: int = 60_000) -> Any:
    """Script a mapped fetch of everything; return it."""
    opening = stage.start(stage.space.fetch, strips.chain)
    stage.peer.take_keyspace()
    number, _ = stage.peer.take(FrameKind.FETCH, pb.FetchRequest)
    stage.peer.tell(*strips.given())
    stage.peer.promise(number, strips.promise(lease_ms=lease_ms))
    stage.peer.reply(number, pb.FetchDone())
    return opening.result(DEADLINE_S)

"""A client of real sockets and real frames, with no more sense than a test gives it.

Blocking, with a deadline on every wait.
"""

import contextlib
import mmap
import os
import socket
from collections import deque
from pathlib import Path

import numpy as np

from kvd.identity import Keyspace, chain_digests
from kvd.limits import PAGE_BYTES
from kvd.shape import BlockShape
from kvd.types import Dtype
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import CONTROL_PAGE, FEATURES, FRAME_HEAD, PIECE_HEAD, FrameKind

DEADLINE_S = 20.0
REPLIES = {
    FrameKind.BIND: pb.Bound,
    FrameKind.REGISTER_KEYSPACE: pb.RegisterKeyspaceReply,
    FrameKind.RESERVE: pb.ReserveReply,
    FrameKind.SEAL: pb.SealReply,
    FrameKind.ABORT: pb.AbortReply,
    FrameKind.LOOKUP: pb.LookupReply,
    FrameKind.FETCH: pb.FetchDone,
    FrameKind.RELEASE: pb.ReleaseReply,
    FrameKind.RENEW: pb.RenewReply,
    FrameKind.PREFETCH: pb.PrefetchReply,
    FrameKind.CLEAR: pb.ClearReply,
}


class Refused(Exception):
    """An Error message; `kind` is pb.ErrorKind."""

    def __init__(self, error: pb.Error) -> None:
        super().__init__(f"{pb.ErrorKind.Name(error.kind)}: {error.message}")
        self.kind, self.message, self.retry_after_ms = (
            error.kind,
            error.message,
            error.retry_after_ms,
        )


class Channel:
    """The slab channel: slabs by number as (size, descriptor, writable)."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(directory / "slabs.sock"))
        self.slabs: dict[int, tuple[int, int, bool]] = {}
        self.told: deque[pb.ToClient] = deque()

    def send(self, message: pb.ToDaemon) -> None:
        self.socket.send(message.SerializeToString())

    def receive(self) -> tuple[pb.ToClient, list[int]]:
        """Return the next message and its descriptors; raise EOFError at the end."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, 65536, 64)
        if not data:
            raise EOFError
        return pb.ToClient.FromString(data), descriptors

    def hello(
        self, protocol_min: int = 1, protocol_max: int = 1, features: int = FEATURES
    ) -> tuple[pb.Welcome, int]:
        hello = pb.Hello(
            protocol_min=protocol_min, protocol_max=protocol_max, features=features, client="raw"
        )
        self.send(pb.ToDaemon(hello=hello))
        message, descriptors = self.receive()
        if message.HasField("refused"):
            raise Refused(message.refused)
        return message.welcome, descriptors[0]

    def slab(self, number: int) -> tuple[int, int, bool]:
        """Return a slab that was or will be given."""
        while number not in self.slabs:
            self.listen()
        return self.slabs[number]

    def listen(self) -> pb.ToClient:
        """Take one message in."""
        message, descriptors = self.receive()
        if message.HasField("slab_given"):
            given = message.slab_given
            self.slabs[given.slab] = (given.size, descriptors[0], given.writable)
        self.told.append(message)
        return message

    def close(self) -> None:
        self.socket.close()


class Stream:
    """The message stream: frames out, frames in."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(str(directory / "session.sock"))
        self._data = b""

    def send(self, kind: int, number: int, body: bytes) -> None:
        self.socket.sendall(FRAME_HEAD.pack(len(body), number, kind, 0, 0) + body)

    def receive(self) -> tuple[int, int, bytes]:
        """Return (kind, number, body) of the next frame; raise EOFError at the end."""
        length, number, kind, _, _ = FRAME_HEAD.unpack(self._exactly(FRAME_HEAD.size))
        return kind, number, self._exactly(length)

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        while len(self._data) < size:
            more = self.socket.recv(1 << 20)
            if not more:
                raise EOFError
            self._data += more
        taken, self._data = self._data[:size], self._data[size:]
        return taken


class RawClient:
    """A whole session: both sockets, the control page, one request after another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.channel = Channel(directory)
        self.welcome, page = self.channel.hello()
        self.page = mmap.mmap(page, PAGE_BYTES, prot=mmap.PROT_READ)
        os.close(page)
        self.stream = Stream(directory)
        self.notices: list[pb.Notice] = []
        self._number = 0
        self.call(FrameKind.BIND, pb.Bind(nonce=self.welcome.nonce))

    @property
    def epoch(self) -> int:
        return CONTROL_PAGE.unpack_from(self.page)[1]

    def start(self, kind: FrameKind, message) -> int:
        self._number += 1
        self.stream.send(kind, self._number, message.SerializeToString())
        return self._number

    def answer(self, number: int, kind: FrameKind):
        """Return the next message about a request; raise Refused."""
        while True:
            got, about, body = self.stream.receive()
            if got == FrameKind.NOTICE:
                self.notices.append(pb.Notice.FromString(body))
                continue
            assert about == number, (got, about, number)
            match got:
                case FrameKind.ERROR:
                    raise Refused(pb.Error.FromString(body))
                case FrameKind.PROMISE:
                    return pb.Promise.FromString(body)
                case FrameKind.PIECE:
                    return PIECE_HEAD.unpack_from(body), body[PIECE_HEAD.size :]
            return REPLIES[kind].FromString(body)

    def call(self, kind: FrameKind, message):
        return self.answer(self.start(kind, message), kind)

    def notice(self) -> pb.Notice:
        """Wait for one notice, nothing else being due."""
        kind, _, body = self.stream.receive()
        assert kind == FrameKind.NOTICE, kind
        return pb.Notice.FromString(body)

    def close(self) -> None:
        """Leave cleanly: what was written here may be written by others."""
        with contextlib.suppress(OSError):
            for number, (_, _, writable) in self.channel.slabs.items():
                if writable:
                    detached = pb.SlabDetached(slab=number)
                    self.channel.send(pb.ToDaemon(slab_detached=detached))
        # The channel first: the daemon reads what was sent on it before its end.
        self.channel.close()
        self.stream.close()
        for _, descriptor, _ in self.channel.slabs.values():
            os.close(descriptor)


def small_keyspace(model: str = "m", layers: int = 2) -> Keyspace:
    shape = BlockShape.of_attention(layers, heads=1, width=8, dtype=Dtype.BF16)
    return Keyspace(model=model, weight_revision="r", shape=shape, chunk_tokens=4)


def keyspace_message(keyspace: Keyspace) -> pb.RegisterKeyspaceRequest:
    said = pb.Keyspace(
        model=keyspace.model, weight_revision=keyspace.weight_revision,
        tokenizer=keyspace.tokenizer, chain=keyspace.chain, layout=keyspace.layout,
        rope=keyspace.rope, adapter=keyspace.adapter, chunk_tokens=keyspace.chunk_tokens,
    )  # fmt: skip
    for group in keyspace.shape.groups:
        tensors = [
            pb.TensorShape(role=int(t.role), heads=t.heads, width=t.width, dtype=int(t.dtype))
            for t in group.tensors
        ]
        said.groups.append(pb.KvGroup(layers=group.layers, tensors=tensors))
    return pb.RegisterKeyspaceRequest(keyspace=said)


def chain_of(count: int, seed: int = 0) -> bytes:
    return chain_digests(np.arange(seed, seed + 4 * count), 4)

"""A recorded story of a client and a daemon: its entries, and what of them differs each time.

A value that one side chose and the other says again (a handle, a lease, a place) differs from time
to time; it is named here by what it stands for, and everything else has to be as it was.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf.message import Message

from kvd.v1 import kvd_pb2 as pb
from kvd.wire import PIECE_HEAD, FrameKind
from tests.e2e.rawclient import REPLIES

DIRECTORY = Path(__file__).parents[1] / "golden" / "wire"

# What a field stands for. One of "own" is of nobody else's concern.
STANDS_FOR = {
    "Welcome.session": "own", "Welcome.token": "own", "Welcome.epoch": "own",
    "Welcome.daemon": "own", "Welcome.nonce": "nonce", "Bind.nonce": "nonce",
    "RegisterKeyspaceReply.keyspace": "keyspace", "ReserveRequest.keyspace": "keyspace",
    "LookupRequest.keyspace": "keyspace", "FetchRequest.keyspace": "keyspace",
    "PrefetchRequest.keyspace": "keyspace", "ClearRequest.keyspace": "keyspace",
    "ReserveReply.reservation": "reservation", "SealRequest.reservation": "reservation",
    "AbortRequest.reservation": "reservation",
    "LookupReply.lease": "lease", "Promise.lease": "lease", "FetchRequest.lease": "lease",
    "ReleaseRequest.lease": "lease", "RenewRequest.lease": "lease", "Notice.lease_lost": "lease",
    "SlabGiven.slab": "slab", "SlabRecalled.slab": "slab", "SlabGone.slab": "slab",
    "SlabDetached.slab": "slab",
    "ReserveReply.generation": "own", "LanePromise.generations": "own",
    "ReserveReply.slabs": "own", "ReserveReply.offsets": "own",
    "LanePromise.slabs": "own", "LanePromise.offsets": "own",
}  # fmt: skip
REQUESTS: dict[int, type[Message]] = {
    FrameKind.BIND: pb.Bind,
    FrameKind.REGISTER_KEYSPACE: pb.RegisterKeyspaceRequest,
    FrameKind.RESERVE: pb.ReserveRequest,
    FrameKind.SEAL: pb.SealRequest,
    FrameKind.ABORT: pb.AbortRequest,
    FrameKind.LOOKUP: pb.LookupRequest,
    FrameKind.FETCH: pb.FetchRequest,
    FrameKind.RELEASE: pb.ReleaseRequest,
    FrameKind.RENEW: pb.RenewRequest,
    FrameKind.PREFETCH: pb.PrefetchRequest,
    FrameKind.CLEAR: pb.ClearRequest,
    FrameKind.CREDIT: pb.Credit,
    FrameKind.CANCEL: pb.Cancel,
}
_TOLD = {FrameKind.PROMISE: pb.Promise, FrameKind.READY: pb.Ready, FrameKind.ERROR: pb.Error}


@dataclass(frozen=True)
class Entry:
    """One packet of the slab channel, or one frame of the stream."""

    is_clients: bool
    on: str
    body: bytes
    descriptors: int = 0
    kind: int = 0
    request: int = 0


class Recording:
    def __init__(self, path: Path) -> None:
        data = json.loads(path.read_text())
        self.story: dict[str, list] = data["story"]
        self.fields: dict[str, list[str]] = data["fields"]
        self.entries = [_entry(each) for each in data["entries"]]
        self._asked = {e.request: e.kind for e in self.entries if e.kind in REPLIES}

    @property
    def welcome(self) -> pb.Welcome:
        told = next(e for e in self.entries if e.on == "slabs" and not e.is_clients)
        return pb.ToClient.FromString(told.body).welcome

    def message(self, entry: Entry) -> Message:
        """Return what an entry says; a piece has no message."""
        if entry.on == "slabs":
            return (pb.ToDaemon if entry.is_clients else pb.ToClient).FromString(entry.body)
        if entry.is_clients:
            return REQUESTS[entry.kind].FromString(entry.body)
        return self.answer(entry.kind, entry.request).FromString(entry.body)

    def answer(self, kind: int, request: int) -> type[Message]:
        """Return the message of a daemon's frame about a request."""
        if kind == FrameKind.REPLY:
            return REPLIES[FrameKind(self._asked[request])]
        return _TOLD[FrameKind(kind)]

    def strips(self) -> dict[tuple[int, int], bytes]:
        """Return the strips that were delivered as pieces, by chunk and class."""
        strips: dict[tuple[int, int], bytes] = {}
        for entry in self.entries:
            if entry.kind == FrameKind.PIECE:
                plane_class, _, _, chunk, offset = PIECE_HEAD.unpack_from(entry.body)
                held = strips.get((chunk, plane_class), b"")
                strips[chunk, plane_class] = held.ljust(offset, b"\0") + entry.body[12:]
        return strips


def recordings() -> list[Path]:
    return sorted(DIRECTORY.glob("*.json"))


def _entry(data: dict) -> Entry:
    body = base64.b64decode(data["body"])
    of_frame = {name: data[name] for name in ("kind", "request", "descriptors") if name in data}
    return Entry(data["from"] == "client", data["on"], body, **of_frame)


class Meanings:
    """What the values of a recording stand for in another run of it."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields
        self._now: dict[tuple[str, object], object] = {}

    def translate(self, message: Message) -> Message:
        """Put the values of this run in place of the recorded ones."""
        for name, field, value in _parts(message):
            if isinstance(value, Message):
                self.translate(value)
            elif STANDS_FOR.get(name, "own") != "own" and value:
                setattr(message, field, self._now[STANDS_FOR[name], value])
        return message

    def compare(self, was: Message, now: Message) -> None:
        """Assert that a message says what it said, in the fields that were known then."""
        kind = was.DESCRIPTOR.name
        assert now.DESCRIPTOR.name == kind
        for field in self._fields[kind]:
            before, after = getattr(was, field), getattr(now, field)
            meaning = STANDS_FOR.get(f"{kind}.{field}")
            if isinstance(before, Message):
                assert was.HasField(field) == now.HasField(field), (kind, field)
                self.compare(before, after)
            elif hasattr(before, "add"):
                assert len(before) == len(after), (kind, field)
                for one, other in zip(before, after, strict=True):
                    self.compare(one, other)
            elif meaning is None:
                assert before == after, (kind, field)
            else:
                # It is there if it was there; columns have as many entries.
                assert bool(before) == bool(after), (kind, field)
                assert not isinstance(before, bytes) or len(before) == len(after), (kind, field)
                known = self._now.setdefault((meaning, before), after)
                assert meaning == "own" or known == after, (kind, field)


def _parts(message: Message):
    """Yield (message.field, field, value) of everything that is set."""
    kind = message.DESCRIPTOR.name
    for descriptor, value in message.ListFields():
        each = value if hasattr(value, "add") else [value]
        for one in each:
            yield f"{kind}.{descriptor.name}", descriptor.name, one


def column(data: bytes, dtype: str) -> list[int]:
    return np.frombuffer(data, dtype).tolist()

"""A row of the table: the message stream of one session, by a real socket, to a core that acts."""

import asyncio
import socket

from google.protobuf.message import Message

from kvd.core.effects import (
    Answer,
    CreateSlab,
    Deliver,
    LeaseLost,
    Tell,
    TellReady,
)
from kvd.core.events import DeliveryEnded, Event, SessionEnded, SessionOpened, SlabTouched, Started
from kvd.core.invariants import check
from kvd.core.state import CoreConfig, new_state
from kvd.core.step import step
from kvd.daemon.desk import Desk
from kvd.daemon.inbox import Link
from kvd.errors import ErrorKind, KvdError
from kvd.identity import keyspace_digest
from kvd.limits import KIB, MIB, Limits
from kvd.observe.observer import Observer
from kvd.observe.samples import Reading
from kvd.rpc.frames import FrameBuffer, pack_frame
from kvd.rpc.requests import StreamRequests
from kvd.rpc.session import Session
from kvd.rpc.stream import MessageStream
from kvd.rpc.wishes import WISHES, Asker, wish_of
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.rawclient import small_keyspace
from tests.fuzz.hostile import Hostile
from tests.fuzz.messages import run
from tests.fuzz.parser import Length, Parser

NONCE = bytes(range(16))
SENT_BYTES_MAX = 96 * KIB  # A socket takes so much at once.
FINAL = (FrameKind.REPLY, FrameKind.ERROR)


class CoreInbox:
    """A core with one session, and no hands: what it is asked to send has been sent at once."""

    epoch = 1

    def __init__(self) -> None:
        self.limits = Limits(slab_bytes=MIB, frame_bytes_max=64 * KIB)
        self.observer = Observer(("t",), (), "1.0", 1.0)
        self.links: dict[int, Link] = {}
        self._state = new_state(CoreConfig(3 * MIB, self.limits), 1)
        self._now_ns = self._request = 0
        self.desk = Desk(self._state, self, self.links, ())
        for event in (Started(), SessionOpened(1, "t")):
            self.post(event)

    def now_ns(self) -> int:
        self._now_ns += 1000
        return self._now_ns

    def next_request(self) -> int:
        self._request += 1
        return self._request

    def post(self, event: Event) -> None:
        later: list[Event] = []
        for effect in step(self._state, event, self.now_ns()):
            match effect:
                case CreateSlab(slab):
                    later.append(SlabTouched(slab))
                case Deliver(request):
                    later.append(DeliveryEnded(request, 0, None))
                case Answer(request, session, outcome) if link := self.links.get(session):
                    link.answer(request, outcome)
                case Tell(request, session, promise) if link := self.links.get(session):
                    link.promise(request, promise)
                case (TellReady() | LeaseLost()) as notice if link := self.links.get(1):
                    link.notify(notice)
        for event in later:
            self.post(event)

    def check(self) -> None:
        check(self._state)

    def say(self, kind: FrameKind, message: Message) -> None:
        """Have session 1 wish something, whose answer nobody waits for."""
        asker = Asker(self.next_request(), 1, self.now_ns(), self.limits)
        self.post(wish_of(kind, message, asker))

    def is_draining(self) -> bool:
        return False

    def read_metrics(self) -> Reading:
        return self.observer.read()

    @staticmethod
    def digest() -> bytes:
        """Return the digest of the keyspace that a decent client registers."""
        return keyspace_digest(small_keyspace("m"), "t")

    def end(self, session: int) -> None:
        self.post(SessionEnded(session))


class _NoChannel:
    def close(self) -> None:
        pass


class _Binder:
    def __init__(self, session: Session) -> None:
        self._session, self._bound = session, False
        self.is_closed = False

    def bind(self, nonce: bytes) -> Session:
        if nonce != NONCE or self._bound:
            raise KvdError(ErrorKind.DENIED, "no such nonce")
        self._bound = True
        return self._session

    def closed(self) -> None:
        assert not self.is_closed
        self.is_closed = True


def _take_session(data: bytes) -> bool:
    return run(_hear(data[:SENT_BYTES_MAX]))


async def _hear(data: bytes) -> bool:
    """Say all of it, hang up, and look at what was answered."""
    inbox, faults = CoreInbox(), []
    session = Session(inbox, "t", 0, _NoChannel(), lambda ended: None)  # type: ignore[arg-type]
    session.id, inbox.links[1], binder = 1, session, _Binder(session)
    closed = asyncio.Event()

    def contain(end, action, *arguments) -> None:
        try:
            action(*arguments)
        except Exception as fault:  # As the server does; here it is what is looked for.
            faults.append(fault)
            end()

    class Watched(StreamRequests):
        def on_closed(self) -> None:
            super().on_closed()
            closed.set()

    def make() -> MessageStream:
        limit = inbox.limits.frame_bytes_max
        return MessageStream(lambda stream: Watched(stream, binder, limit), contain)

    ours, peer = socket.socketpair()
    peer.setblocking(False)
    peer.send(data)
    peer.shutdown(socket.SHUT_WR)
    await asyncio.get_running_loop().connect_accepted_socket(make, ours)
    await closed.wait()
    said = _received(peer)
    peer.close()
    session.end()
    inbox.check()
    if faults:
        raise faults[0]
    return _look(said)


def _received(peer: socket.socket) -> bytes:
    said = b""
    try:
        while part := peer.recv(1 << 16):
            said += part
    except OSError:  # Cut off by a daemon that had not read all of it.
        pass
    return said


def _look(said: bytes) -> bool:
    """Assert that what a daemon says are frames; return whether nothing of it is a refusal."""
    buffer, kinds, at = FrameBuffer(1 << 20), [], 0
    while at < len(said):
        with buffer.space() as space:
            size = min(len(space), len(said) - at)
            space[:size] = said[at : at + size]
        buffer.filled(size)
        at += size
        while (frame := buffer.take()) is not None:
            kinds.append(frame[0])
    assert all(kind >= FrameKind.ERROR for kind in kinds)
    return any(kind == FrameKind.REPLY for kind in kinds) and FrameKind.ERROR not in kinds


def _sessions() -> list[bytes]:
    hostile = Hostile(3)
    stream = pack_frame(FrameKind.BIND, 1, pb.Bind(nonce=NONCE).SerializeToString())
    order = [FrameKind.REGISTER_KEYSPACE, FrameKind.RESERVE, FrameKind.SEAL, FrameKind.LOOKUP]
    whole = stream
    for number, kind in enumerate([*order, FrameKind.RELEASE, FrameKind.CLEAR], 2):
        whole += pack_frame(kind, number, hostile.decent(kind).SerializeToString())
    every = stream
    for number, kind in enumerate(WISHES, 2):
        every += pack_frame(kind, number, hostile.decent(kind).SerializeToString())
    credit = pack_frame(FrameKind.CREDIT, 9, pb.Credit(bytes=1 << 40).SerializeToString())
    return [
        stream + pack_frame(order[0], 2, hostile.decent(order[0]).SerializeToString()), whole,
        every + credit + pack_frame(FrameKind.CANCEL, 3, b""),
    ]  # fmt: skip


PARSERS = (
    Parser(
        "session", _take_session, _sessions,
        ("rpc/requests.py:_on_frame", "rpc/requests.py:_bind", "rpc/requests.py:_credit",
         "rpc/requests.py:_ask", "rpc/frames.py:take", "rpc/stream.py:_take_frames"),
        lengths=(Length(0, "<I"),),
        tries=40,
    ),
)  # fmt: skip

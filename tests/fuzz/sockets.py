"""Rows of the table: what comes by sockets with more than bytes, and what scrapers and callers say.

Sockets, descriptors and memory are real. An input is a run of packets: a byte that says which
descriptors come along, a length, the bytes.
"""

import asyncio
import contextlib
import io
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvd.arena.control_page import make_page
from kvd.arena.memfd import open_memory, open_slab
from kvd.client.channel import SlabChannel as ClientChannel
from kvd.client.session import Session
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB, Limits
from kvd.observe.endpoint import Endpoint
from kvd.observe.observer import Observer
from kvd.observe.traces import Traces
from kvd.rpc.slab_channel import PACKET_BYTES_MAX, SlabChannel
from kvd.v1 import kvd_pb2 as pb
from tests.fuzz import parser
from tests.fuzz.messages import loop_of_all, run
from tests.fuzz.parser import Parser

EPOCH = 7
_PACKET = struct.Struct("<BH")
_DESCRIPTORS = "/proc/self/fd"


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _PACKET.size <= len(data):
        which, size = _PACKET.unpack_from(data, at)
        at += _PACKET.size
        yield which, data[at : at + size]
        at += size


def _joined(*packets: tuple[int, bytes]) -> bytes:
    return b"".join(_PACKET.pack(which, len(body)) + body for which, body in packets)


@contextlib.contextmanager
def _no_descriptor_left() -> Iterator[None]:
    before = len(os.listdir(_DESCRIPTORS))
    yield
    # Fewer may be: garbage of other tests is closed at any time.
    assert len(os.listdir(_DESCRIPTORS)) <= before, "descriptors were left open"


@cache
def _some() -> tuple[tuple[int, ...], ...]:
    """Return what may come along: nothing, what should, and what should not."""
    page, slab = make_page(EPOCH), open_slab("kvd-fuzz", MIB)
    other = make_page(EPOCH + 1)[1]
    loose, directory = open_memory("kvd-fuzz", MIB), os.open("/", os.O_RDONLY)
    null, (reading, _) = os.open(os.devnull, os.O_RDWR), os.pipe()
    many = (null,) * (Limits().fds_per_message_max + 6)
    return (
        (), (page[1],), (slab.reading,), (slab.writing,), (loose,), (directory,), (null,),
        (reading,), (slab.reading, slab.writing), many, (other,),
    )  # fmt: skip


def _send(peer: socket.socket, which: int, body: bytes) -> bool:
    """Send a packet; return whether the other end still takes any."""
    try:
        socket.send_fds(peer, [body], list(_some()[which % len(_some())]))
    except OSError:  # It has closed, or the packet is larger than the socket.
        return False
    return True


# ---- the daemon's end ----


class _Loop:
    """Holds the one callback of a channel, which is called here."""

    def add_reader(self, number: int, contain, end, callback) -> None:
        self.read = callback

    def add_writer(self, number: int, callback) -> None:
        pass

    def remove_reader(self, number: int) -> None:
        pass

    remove_writer = remove_reader


def _take_to_daemon(data: bytes) -> bool:
    _some()
    with _no_descriptor_left():
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop, told, closed = _Loop(), [], []
        channel = SlabChannel(ours, loop, told.append, lambda: closed.append(1))  # type: ignore[arg-type]
        channel.start(lambda end, action: action())
        for which, body in _packets(data):
            if not closed and _send(peer, which, body):
                loop.read()
                assert len(body) <= PACKET_BYTES_MAX or closed
        sent = bool(told) and not closed
        channel.close()
        assert closed == [1]
        peer.close()
    return sent


def _to_daemon() -> list[bytes]:
    hello = pb.ToDaemon(hello=pb.Hello(protocol_min=1, protocol_max=1, client="x"))
    detached = pb.ToDaemon(slab_detached=pb.SlabDetached(slab=3))
    both = [(0, message.SerializeToString()) for message in (hello, detached)]
    large = pb.ToDaemon(hello=pb.Hello(client="x" * PACKET_BYTES_MAX)).SerializeToString()
    return [_joined(*both), _joined((6, both[1][1])), _joined(both[0], (0, large))]


# ---- the client's end ----


@cache
def _listening() -> tuple[socket.socket, str, tempfile.TemporaryDirectory]:
    """Return a daemon's socket; a path has at most 107 bytes."""
    directory = tempfile.TemporaryDirectory(prefix="kvd-", dir=parser.scratch_home)
    path = str(Path(directory.name) / "slabs.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(8)
    return listening, path, directory


def _take_to_client(data: bytes) -> bool:
    _some()
    listening, path, _ = _listening()

    async def hear() -> bool:
        ended: list[KvdError] = []
        session = Session(Path(path).parent, ended.append)
        lost: list[KvdError] = []
        channel = ClientChannel(path, session._on_message, lost.append)
        session._channel = channel
        peer, _ = listening.accept()
        for which, body in _packets(data):
            if not lost and channel.socket.fileno() >= 0 and _send(peer, which, body):
                channel._readable()
        await asyncio.sleep(0)
        failed = session._welcomed.exception() if session._welcomed.done() else lost
        good = not lost and failed is None
        session._close(KvdError(ErrorKind.LOST, "the end"))
        channel.close()
        peer.close()
        return good

    loop_of_all()
    with _no_descriptor_left():
        return run(hear())


def _to_client() -> list[bytes]:
    welcome = pb.ToClient(welcome=pb.Welcome(protocol=1, epoch=EPOCH, nonce=bytes(16)))
    given = pb.ToClient(slab_given=pb.SlabGiven(slab=1, size=MIB))
    writable = pb.ToClient(slab_given=pb.SlabGiven(slab=2, size=MIB, writable=True))
    recalled = pb.ToClient(slab_recalled=pb.SlabRecalled(slab=2))
    gone = pb.ToClient(slab_gone=pb.SlabGone(slab=1))
    refused = pb.ToClient(refused=pb.Error(kind=pb.DENIED, message="no"))
    packed = [
        (which, message.SerializeToString())
        for which, message in (
            (1, welcome), (2, given), (3, writable), (0, recalled), (0, gone), (0, refused)
        )
    ]  # fmt: skip
    huge = pb.ToClient(slab_given=pb.SlabGiven(slab=1, size=(1 << 64) - 1)).SerializeToString()
    return [
        _joined(*packed[:5]), _joined(packed[0], packed[2], packed[2]), _joined(packed[5]),
        _joined(packed[0], (2, huge), (0, huge)),
    ]  # fmt: skip


# ---- metrics and traces ----


@cache
def _endpoint() -> Endpoint:
    observer = Observer(("red",), (), "1.0", 1.0)
    return Endpoint("127.0.0.1", 0, observer.read, observer.expand)


def _take_scrape(data: bytes) -> bool:
    """Whatever is asked is answered in HTTP or not at all, and nothing is written to stderr."""
    ours, peer = socket.socketpair()
    peer.sendall(data[: 1 << 15])
    peer.shutdown(socket.SHUT_WR)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(OSError):
        _endpoint()._server.process_request(ours, ("127.0.0.1", 1))
    ours.close()
    answer = peer.makefile("rb").read()
    peer.close()
    assert not said.getvalue(), said.getvalue()[-400:]
    return answer.startswith(b"HTTP/1.0 200")


def _take_caller(data: bytes) -> bool:
    """A span of a caller goes on, or another begins."""
    traces, exporter = _traces()
    exporter.clear()
    traces.begin("Fetch", {"tenant": "red"}, data.decode("latin-1")).end({"chunks": 1})
    spans = exporter.get_finished_spans()  # None, where the caller's is not sampled.
    assert len(spans) <= 1
    return all(span.parent is not None for span in spans)


@cache
def _traces() -> tuple[Traces, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Traces(SimpleSpanProcessor(exporter), "1.0"), exporter


PARSERS = (
    Parser(
        "slabs_to_daemon", _take_to_daemon, _to_daemon,
        ("rpc/slab_channel.py:_readable", "rpc/slab_channel.py:_parse"),
    ),
    Parser(
        "slabs_to_client", _take_to_client, _to_client,
        ("client/channel.py:_readable", "client/channel.py:_parse", "client/channel.py:_owned",
         "client/session.py:_on_message", "client/session.py:_on_first",
         "client/session.py:_map_control", "client/slabs.py:give", "client/mapping.py:__init__",
         "client/mapping.py:head"),
    ),
    Parser(
        "scrape", _take_scrape,
        lambda: [
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /metrics?name[]=kvd_leases HTTP/1.0\r\nAccept: application/openmetrics-text; "
            b"version=1.0.0\r\nAccept-Encoding: gzip\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\nx", b"GET /metrics\r\n",
        ],
        ("observe/endpoint.py:_answer", "observe/endpoint.py:process_request"),
        tries=40,
    ),
    Parser(
        "traceparent", _take_caller,
        lambda: [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        ("observe/traces.py:begin",),
    ),
)  # fmt: skip

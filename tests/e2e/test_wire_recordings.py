"""Recorded clients speak to this daemon, and this client to recorded daemons."""

import mmap
import os
import socket
import threading
from collections import defaultdict, deque
from pathlib import Path

import pytest

from kvd.arena.control_page import make_page
from kvd.arena.memfd import Descriptors, open_slab
from kvd.client import Client
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import Feature, FrameKind
from tests.e2e.process import running
from tests.e2e.rawclient import DEADLINE_S, Channel, Stream
from tests.e2e.record_wire import story, warm_up
from tests.e2e.recording import REQUESTS, Entry, Meanings, Recording, column, recordings

PATHS = pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)


def test_there_are_recordings_of_the_first_version_and_of_one_with_features():
    welcomes = {path.stem: Recording(path).welcome for path in recordings()}
    assert welcomes["first"].protocol == 1 and welcomes["first"].features == 0
    assert welcomes["features"].features == Feature.READY | Feature.PREFETCH | Feature.CLEAR | (
        Feature.ATTACH
    )


# ---- a recorded client, this daemon ----


class Player:
    """Says what the client said, with the values of this run, and compares what it is told."""

    def __init__(self, recording: Recording, directory: Path) -> None:
        self._recording, self._meanings = recording, Meanings(recording.fields)
        self._strips = recording.strips()
        self._channel, self._directory = Channel(directory), directory
        self._stream: Stream | None = None
        self._places: list[tuple[int, int]] = []  # Of the reservation, chunk by chunk.

    def play(self) -> int:
        for entry in self._recording.entries:
            if entry.is_clients:
                self._say(entry)
            else:
                self._hear(entry)
        return len(self._recording.entries)

    def _say(self, entry: Entry) -> None:
        message = self._meanings.translate(self._recording.message(entry))
        if entry.on == "slabs":
            self._channel.send(message)
            return
        if self._stream is None:
            self._stream = Stream(self._directory)
        if entry.kind == FrameKind.SEAL:
            self._fill()
        self._stream.send(entry.kind, entry.request, message.SerializeToString())

    def _hear(self, entry: Entry) -> None:
        if entry.on == "slabs":
            told = self._channel.listen()
            self._meanings.compare(self._recording.message(entry), told)
            return
        assert self._stream is not None
        kind, request, body = self._stream.receive()
        assert (kind, request) == (entry.kind, entry.request)
        if kind == FrameKind.PIECE:
            assert body == entry.body
            return
        message = self._recording.answer(kind, request).FromString(body)
        self._meanings.compare(self._recording.message(entry), message)
        if isinstance(message, pb.ReserveReply):
            slabs, offsets = column(message.slabs, "<u4"), column(message.offsets, "<u8")
            self._places = list(zip(slabs, offsets, strict=True))
        elif isinstance(message, pb.Promise):
            self._look(message)

    def _fill(self) -> None:
        for n, (slab, offset) in enumerate(self._places):
            strip = self._strips[divmod(n, 3)]
            with self._mapped(slab, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
                memory[offset : offset + len(strip)] = strip

    def _look(self, promise: pb.Promise) -> None:
        """See that what is promised lies where it is said to."""
        counts, [lane] = column(promise.counts, "<u4"), promise.lanes
        names = [(chunk, c) for c in range(3) for chunk in range(counts[c])]
        places = zip(column(lane.slabs, "<u4"), column(lane.offsets, "<u8"), strict=True)
        for name, (slab, offset) in zip(names, places, strict=True):
            strip = self._strips[name]
            with self._mapped(slab, mmap.PROT_READ) as memory:
                assert memory[offset : offset + len(strip)] == strip, name

    def _mapped(self, slab: int, protection: int) -> mmap.mmap:
        size, descriptor, _ = self._channel.slab(slab)
        return mmap.mmap(descriptor, size, prot=protection)


@PATHS
def test_a_recorded_client_is_served_as_it_was(path, tmp_path):
    with running(tmp_path) as daemon:
        warm_up(daemon.tenant)
        assert Player(Recording(path), daemon.tenant).play() > 40


# ---- a recorded daemon, this client ----


class RecordedDaemon:
    """Answers as the daemon did: each request as the next one of its kind was answered."""

    def __init__(self, recording: Recording, directory: Path) -> None:
        self.unexpected: list[str] = []
        self._recording = recording
        self._answers = self._by_kind()
        self._slabs: dict[int, Descriptors] = {}
        self._listening = [_listen(directory / "slabs.sock", socket.SOCK_SEQPACKET)]
        self._listening.append(_listen(directory / "session.sock", socket.SOCK_STREAM))
        self._channel: socket.socket | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        for listening in self._listening:
            listening.close()
        for slab in self._slabs.values():
            os.close(slab.writing)
            os.close(slab.reading)

    def _by_kind(self) -> dict[int, deque[list[Entry]]]:
        """Return what was said to each request, and the packets that came along with it."""
        answers: dict[int, deque[list[Entry]]] = defaultdict(deque)
        by_number: dict[int, list[Entry]] = {}
        last: list[Entry] = []
        for entry in self._recording.entries:
            if not entry.is_clients:
                (by_number[entry.request] if entry.on == "stream" else last).append(entry)
            elif entry.on == "stream" and entry.kind not in (FrameKind.CREDIT, FrameKind.CANCEL):
                last = by_number[entry.request] = []
                answers[entry.kind].append(last)
        return answers

    def _serve(self) -> None:
        self._channel, _ = self._listening[0].accept()
        hello = pb.ToDaemon.FromString(self._channel.recv(65536)).hello
        welcome = self._recording.welcome
        if not hello.protocol_min <= welcome.protocol <= hello.protocol_max:
            self.unexpected.append(f"a hello of protocols from {hello.protocol_min}")
        _, page = make_page(welcome.epoch)
        socket.send_fds(self._channel, [pb.ToClient(welcome=welcome).SerializeToString()], [page])
        os.close(page)
        connection, _ = self._listening[1].accept()
        stream = Stream.__new__(Stream)
        stream.socket, stream._data = connection, b""
        waiting: dict[int, list[Entry]] = {}
        try:
            while True:
                kind, number, body = stream.receive()
                self._take(stream, waiting, (kind, number, body))
        except (EOFError, OSError):
            return

    def _take(self, stream: Stream, waiting: dict, frame: tuple[int, int, bytes]) -> None:
        kind, number, body = frame
        if kind == FrameKind.CREDIT:
            self._send(stream, number, waiting.pop(number, []))
            return
        if kind == FrameKind.CANCEL:
            return
        if not self._answers[kind]:
            self.unexpected.append(f"a frame of kind {kind}, which that client never sent so often")
            stream.send(FrameKind.ERROR, number, pb.Error(kind=pb.INVALID).SerializeToString())
            return
        REQUESTS[kind].FromString(body)
        answer = self._answers[kind].popleft()
        pieces = next((n for n, e in enumerate(answer) if e.kind == FrameKind.PIECE), len(answer))
        waiting[number] = answer[pieces:]  # They come once there is credit.
        self._send(stream, number, answer[:pieces])

    def _send(self, stream: Stream, number: int, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.on == "slabs":
                self._give(entry)
            else:
                stream.send(entry.kind, number, entry.body)

    def _give(self, entry: Entry) -> None:
        given = pb.ToClient.FromString(entry.body).slab_given
        descriptors = []
        if entry.descriptors:
            if given.slab not in self._slabs:
                self._slabs[given.slab] = open_slab("recorded", given.size)
            slab = self._slabs[given.slab]
            descriptors = [slab.writing if given.writable else slab.reading]
        assert self._channel is not None
        socket.send_fds(self._channel, [entry.body], descriptors)


def _listen(path: Path, kind: int) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, kind)
    listening.bind(str(path))
    listening.listen(1)
    return listening


@PATHS
def test_a_recorded_daemon_is_understood_as_it_was(path, short_directory):
    recording = Recording(path)
    daemon = RecordedDaemon(recording, short_directory)
    with Client(short_directory, "recorded", DEADLINE_S) as client:
        assert client.wait_connected(DEADLINE_S), client.status().reason
        told = story(client)
        counters = client.status().counters
    daemon.close()
    expected = dict(recording.story)
    features = recording.welcome.features
    if not features & Feature.PREFETCH:
        expected["prefetch"] = [0, 0, 0, "INCOMPATIBLE"]
    if not features & Feature.CLEAR:
        expected["clear"] = [0, 0, "INCOMPATIBLE"]
    assert told == expected
    assert daemon.unexpected == []
    assert counters.connects == 1 and not counters.leases_lost

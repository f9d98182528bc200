"""Strips of a scripted daemon that are read from its disk into a slab, piece by piece."""

import numpy as np
import pytest

from kvd.client import EXACT
from kvd.format.strip import parse_table
from kvd.pieces import read_piece_bytes
from kvd.table import LENGTH_MASK
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import CHUNKS, DEADLINE_S, LARGE, Stage, Strips
from tests.unit.test_client_session import counts_reply

LAYERS = 8
ALL = (0, LAYERS)


class Disk:
    """Strips on a disk, of which the slab has what was read."""

    def __init__(self) -> None:
        self.strips = Strips(CHUNKS, keyspace=LARGE)
        self._bytes = self.strips.memory.copy()
        self.strips.memory[:] = 0
        self.ready = [0, 0, 0]
        self.pieces = [
            max(-(-self._size(c, i) // self._piece(c, i)) for i in range(CHUNKS)) for c in range(3)
        ]
        assert min(self.pieces) >= 2, "one piece shows nothing"

    def read(self, plane_class: int, pieces: int = 1, but: int | None = None) -> None:
        """Read the next pieces of a class into the slab, of all chunks but one."""
        begin = self.ready[plane_class]
        for chunk in set(range(CHUNKS)) - {but}:
            size, piece = self._size(plane_class, chunk), self._piece(plane_class, chunk)
            home = int(self.strips.offsets[chunk, plane_class])
            end = min(size, (begin + pieces) * piece)
            here = slice(home + min(size, begin * piece), home + end)
            self.strips.memory[here] = self._bytes[here]
        self.ready[plane_class] += pieces

    def read_class(self, plane_class: int, but: int | None = None) -> None:
        self.read(plane_class, self.pieces[plane_class] - self.ready[plane_class], but)

    def promise(self, *ready: int) -> pb.Promise:
        promise = self.strips.promise()
        promise.ready = bytes(ready or self.ready)
        return promise

    def layers(self, plane_class: int) -> int:
        """Return how many leading layers are there of every chunk, by the tables on the disk."""
        ends = np.zeros(LAYERS, np.int64)
        for chunk in range(CHUNKS):
            size = self._size(plane_class, chunk)
            home = int(self.strips.offsets[chunk, plane_class])
            table = parse_table(self._bytes[home : home + size], self.strips.grid.cell_count, size)
            there = self.ready[plane_class] * self._piece(plane_class, chunk)
            stops = (table["offset"] + (table["length"] & LENGTH_MASK)).reshape(LAYERS, -1)
            ends += stops.max(axis=1) > there
        missing = np.flatnonzero(ends)
        return int(missing[0]) if len(missing) else LAYERS

    def _size(self, plane_class: int, chunk: int) -> int:
        return int(self.strips.sizes[chunk, plane_class])

    def _piece(self, plane_class: int, chunk: int) -> int:
        return read_piece_bytes(self._size(plane_class, chunk))


def looked_up(stage: Stage) -> None:
    """Return once the client has taken in all that was sent before."""
    looking = stage.start(stage.space.lookup, bytes(32))
    kind = 0
    while kind != FrameKind.LOOKUP:
        kind, number, _ = stage.peer.receive()
    stage.peer.reply(number, counts_reply(0, 0, 0))
    looking.result(DEADLINE_S)


def asked(stage: Stage, disk: Disk, **how):
    opening = stage.start(stage.space.fetch, disk.strips.chain, **how)
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.FETCH, pb.FetchRequest)
    return opening, number, request


def opened(stage: Stage, disk: Disk, **how):
    """Script a mapped fetch up to its promise; return it and its number."""
    opening, number, _ = asked(stage, disk, **how)
    stage.peer.tell(*disk.strips.given())
    stage.peer.promise(number, disk.promise())
    return opening.result(DEADLINE_S), number


def done(counts: tuple[int, int, int], reason=pb.READ_FAILED) -> pb.FetchDone:
    return pb.FetchDone(counts=np.array(counts, "<u4").tobytes(), reason=reason)


def good(fetch, disk: Disk, layers=ALL, planes=EXACT, **where) -> int:
    """Decode; return how many chunks are good, which are checked where they are to be exact."""
    targets = disk.strips.targets()[slice(*layers)]
    count = fetch.decode(layers, planes, targets, **where)
    if planes == EXACT:
        rows = slice(0, count * LARGE.chunk_tokens)
        for ours, theirs in zip(targets, disk.strips.tensors[slice(*layers)], strict=True):
            for target, tensor in zip(ours, theirs, strict=True):
                assert np.array_equal(target[:, rows], tensor[:, rows])
    return count


@pytest.fixture
def stage():
    made = Stage()
    made.space = made.client.keyspace(LARGE)
    yield made
    made.close()


@pytest.fixture
def disk():
    made = Disk()
    yield made
    made.strips.close()

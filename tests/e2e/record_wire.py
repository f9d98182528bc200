"""Stands between a client and a daemon and writes down both sides of one whole story.

Run it in a checkout of the version to record: `python -m tests.e2e.record_wire FILE`. The file then
plays that client against later daemons, and that daemon against later clients.
"""

import base64
import contextlib
import json
import socket
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

from kvd.client import EXACT, BlockShape, Client, Delivery, Dtype, Keyspace
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FRAME_HEAD
from tests.e2e.process import running
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import put, register

LAYERS, HEADS, WIDTH, CHUNK_TOKENS, CHUNKS = 2, 1, 16, 16, 3
TOKENS = CHUNKS * CHUNK_TOKENS
DEADLINE_S = 30.0
KEYSPACE = Keyspace(
    "recorded", "r1", BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16),
    chunk_tokens=CHUNK_TOKENS,
)  # fmt: skip


def tensors() -> list[list[np.ndarray]]:
    rng = np.random.default_rng(7)

    def one() -> np.ndarray:
        bits = rng.standard_normal((HEADS, TOKENS, WIDTH)).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16)

    return [[one(), one()] for _ in range(LAYERS)]


def story(client: Client) -> dict[str, object]:
    """Do everything that a client can do, once, and return what came of it."""
    space = client.keyspace(KEYSPACE)
    chain = space.chain(np.arange(TOKENS))
    told: dict[str, object] = {}
    first = space.put(chain, tensors())
    told["put"] = [first.stored, first.had, first.refused]
    again = space.put(chain, tensors())
    told["put again"] = [again.stored, again.had, again.refused]
    found = space.lookup(chain, lease=True)
    told["lookup"] = list(found.counts)
    told["mapped"] = _read(space.fetch(chain, lease=found.lease))
    told["pieces"] = _read(space.fetch(chain, delivery=Delivery.BYTES))
    told["absent"] = list(space.lookup(space.chain(np.arange(TOKENS) + 1)).counts)
    ahead = space.prefetch(chain)
    told["prefetch"] = [*ahead.counts, ahead.reason.name]
    cleared = space.clear()
    told["clear"] = [cleared.chunks, cleared.held, cleared.reason.name]
    told["in the end"] = list(space.lookup(chain).counts)
    return told


def _read(fetch) -> list[object]:
    """Decode all of a fetch; return how many chunks are good, and whether they are the same."""
    targets = [[np.zeros_like(tensor) for tensor in row] for row in tensors()]
    with fetch:
        list(fetch.arrivals())
        good = fetch.decode((0, LAYERS), EXACT, targets)
    same = all(
        np.array_equal(a, b)
        for one, other in zip(targets, tensors(), strict=True)
        for a, b in zip(one, other, strict=True)
    )
    return [good, same]


def warm_up(directory: Path) -> None:
    """Have memory that is grown already: how long that takes is no part of the story."""
    client = RawClient(directory)
    keyspace = register(client, keyspace_message(small_keyspace("warm")))
    put(client, keyspace, chain_of(1), 4, 100)
    client.close()


class Tap:
    """Listens at `near`, as a daemon would, and passes everything on to the daemon at `far`."""

    def __init__(self, near: Path, far: Path) -> None:
        self.entries: list[dict[str, object]] = []
        self._far, self._lock = far, threading.Lock()
        near.mkdir(parents=True)
        for name, kind, carry in (
            ("slabs.sock", socket.SOCK_SEQPACKET, self._packets),
            ("session.sock", socket.SOCK_STREAM, self._frames),
        ):
            listening = socket.socket(socket.AF_UNIX, kind)
            listening.bind(str(near / name))
            listening.listen(1)
            threading.Thread(target=self._join, args=(listening, carry), daemon=True).start()

    def _join(self, listening: socket.socket, carry) -> None:
        client, _ = listening.accept()
        daemon = socket.socket(socket.AF_UNIX, listening.type)
        daemon.connect(str(self._far / Path(listening.getsockname()).name))
        for who, source, sink in (("client", client, daemon), ("daemon", daemon, client)):
            threading.Thread(target=carry, args=(who, source, sink), daemon=True).start()

    def _note(self, who: str, on: str, body: bytes, **more: int) -> None:
        with self._lock:
            text = base64.b64encode(body).decode()
            self.entries.append({"from": who, "on": on, **more, "body": text})

    def _packets(self, who: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # Either end may leave first.
            while (told := socket.recv_fds(source, 65536, 64))[0]:
                data, descriptors, _, _ = told
                self._note(who, "slabs", data, descriptors=len(descriptors))
                socket.send_fds(sink, [data], descriptors)
            sink.shutdown(socket.SHUT_WR)

    def _frames(self, who: str, source: socket.socket, sink: socket.socket) -> None:
        held = b""
        while data := source.recv(1 << 16):
            held += data
            while len(held) >= FRAME_HEAD.size:
                length, number, kind, _, _ = FRAME_HEAD.unpack_from(held)
                end = FRAME_HEAD.size + length
                if len(held) < end:
                    break
                self._note(who, "stream", held[FRAME_HEAD.size : end], kind=kind, request=number)
                held = held[end:]
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def known_fields() -> dict[str, list[str]]:
    """Return the fields of every message that this version knows."""
    return {
        name: [field.name for field in message.fields]
        for name, message in sorted(pb.DESCRIPTOR.message_types_by_name.items())
    }


def record() -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="kvd-") as place:
        near = Path(place) / "near"
        with running(Path(place) / "far") as daemon:
            warm_up(daemon.tenant)
            tap = Tap(near, daemon.tenant)
            with Client(near, "recorded", DEADLINE_S) as client:
                assert client.wait_connected(DEADLINE_S), client.status().reason
                told = story(client)
    return {"story": told, "fields": known_fields(), "entries": tap.entries}


if __name__ == "__main__":
    recording = record()
    lines = ",\n".join(json.dumps(entry) for entry in recording.pop("entries"))
    head = "".join(f"{json.dumps(key)}: {json.dumps(each)},\n" for key, each in recording.items())
    Path(sys.argv[1]).write_text(f'{{{head}"entries": [\n{lines}\n]}}\n')
    print(recording["story"])

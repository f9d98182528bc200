"""A daemon with a data directory that is killed and started again, and a client of it.

Strips are several pieces long, so that what is read arrives in steps.
"""

import signal
import threading
import time
from pathlib import Path

import numpy as np

from kvd.client import EXACT, BlockShape, Client, Dtype, Keyspace, Reason
from tests.e2e.process import DEADLINE_S, Daemon

LAYERS, HEADS, WIDTH, CHUNK_TOKENS, CHUNKS = 8, 2, 64, 256, 6
ALL = (0, LAYERS)
SHAPE = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
KEYSPACE = Keyspace("ssd", "r1", SHAPE, chunk_tokens=CHUNK_TOKENS)
OTHER = Keyspace("ssd", "r2", SHAPE, chunk_tokens=CHUNK_TOKENS)


def tensors(seed: int = 1):
    rng = np.random.default_rng(seed)
    shape = (HEADS, CHUNKS * CHUNK_TOKENS, WIDTH)

    def one() -> np.ndarray:
        bits = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16)

    return [[one(), one()] for _ in range(LAYERS)]


def until(condition, what: str) -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.01)


class Node:
    """A daemon on one data directory that may be killed and started again; and a client of it."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._directory, self._flags = directory, flags
        self.data = directory / "data"
        self.daemon = self._start()
        self.client = Client(self.daemon.tenant, "test", DEADLINE_S)
        self.connect()

    def fetch(self, chain: bytes | None = None, **how):
        """Fetch again while there is no room yet: memory grows, and changes hands, behind it."""
        fetches = []

        def has_room() -> bool:
            fetches.append(self.space().fetch(chain or self.chain(), **how))
            if fetches[-1].reason == Reason.NO_ROOM:
                fetches.pop().release()
            return bool(fetches)

        until(has_room, "there is room to read into")
        return fetches[0]

    def space(self, keyspace: Keyspace = KEYSPACE):
        return self.client.keyspace(keyspace)

    def chain(self, seed: int = 0) -> bytes:
        return self.space().chain(np.arange(CHUNKS * CHUNK_TOKENS) + seed)

    def connect(self) -> None:
        assert self.client.wait_connected(DEADLINE_S), self.client.status().reason

    def kill(self) -> None:
        epoch = self.client.status().epoch
        self.daemon.send(signal.SIGKILL)
        self.daemon.wait()
        until(lambda: not self.client.status().connected, "the loss is noticed")
        assert self.client.status().epoch == epoch

    def restart(self) -> None:
        self.kill()
        self.daemon = self._start()
        self.connect()

    def read_bytes(self) -> int:
        """Return how many bytes the daemon has read by system calls."""
        counts = Path(f"/proc/{self.daemon.process.pid}/io").read_text()
        return int(counts.split("rchar: ")[1].split()[0])

    def close(self) -> None:
        self.client.close()
        self.daemon.stop()

    def _start(self) -> Daemon:
        flags = ("--dram", "256MiB", "--data", str(self.data), "--ssd", "384MiB", *self._flags)
        return Daemon(self._directory / "run", *flags).ready()


def stored(node: Node, durability: str = "disk", keyspace: Keyspace = KEYSPACE):
    made = node.space(keyspace).put(node.chain(), tensors(), durability=durability)
    assert made.refused == 0 and made.reason == Reason.NONE, made
    assert made.durable == (durability == "disk")
    return made


def equal(fetch, ours, count: int = CHUNKS) -> bool:
    """Decode everything exactly and compare the leading chunks bit by bit."""
    targets = [[np.zeros_like(tensor) for tensor in row] for row in ours]
    rows = slice(0, count * CHUNK_TOKENS)
    return fetch.decode(ALL, EXACT, targets) == count and all(
        np.array_equal(a[:, rows], b[:, rows])
        for one, other in zip(targets, ours, strict=True)
        for a, b in zip(one, other, strict=True)
    )

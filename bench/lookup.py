"""The figures of the question without data: how much of a prefix of 2,048 chunks is there.

Asked by the SDK's message on the session socket, by gRPC, and of Redis as pipelined EXISTS.
"""

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

from bench.report import Report, progress, rival
from bench.serving import as_child, served
from kvd.client import BlockShape, Client, Dtype, Keyspace, Space
from kvd.client.messages import keyspace_message, lane_message
from kvd.limits import CHUNK_KEY_BYTES, DIGEST_BYTES
from kvd.v1 import kvd_pb2 as pb
from kvd.v1.kvd_pb2_grpc import KvdStub

CHUNKS, KNOWN = 2048, 2047
CHUNK_TOKENS, WIDTH = 64, 8
DRAM = "256MiB"
BLOCK = 25  # Asks of one way in a turn: a server that was idle for long answers late, all alike.
CONNECT_SECONDS, PUT_SECONDS, CALL_SECONDS = 30.0, 60.0, 10.0
KEYSPACE = Keyspace(
    "bench", "r1", BlockShape.of_attention(1, 1, WIDTH, Dtype.BF16), chunk_tokens=CHUNK_TOKENS
)
REDIS_HINT = "apt-get install redis-server"
FOUND, MISSING = b":1\r\n", b":0\r\n"

Ask = Callable[[], int]  # Ask once; return how many leading chunks are there.


@dataclass(frozen=True, slots=True)
class Way:
    """A way of asking, the right answer, and what is done about it outside of the clock."""

    ask: Ask
    expected: int
    after: Callable[[], None] = lambda: None


def run(report: Report, full: bool) -> None:
    """Report all figures of `lookup`; full takes more repeats."""
    repeats = 2000 if full else 500
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(stack.enter_context(served(DRAM)), "bench lookup"))
        assert client.wait_connected(CONNECT_SECONDS)
        space = client.keyspace(KEYSPACE)
        chain = _store(space)
        unknown = np.random.default_rng(1).bytes(CHUNKS * DIGEST_BYTES)
        ways = {
            "miss": Way(lambda: space.lookup(unknown).counts[0], 0),
            "hit": _hit(space, chain),
        }
        redis = rival("redis-server", REDIS_HINT)
        if redis is not None:
            ways["redis"] = Way(stack.enter_context(_by_redis(redis)), KNOWN)
        # Last: its threads go on for a while after each call, and only a miss comes next.
        ways["grpc"] = Way(stack.enter_context(_by_grpc(client, chain)), KNOWN)
        with progress("lookups of 2,048 chunks", total=repeats // BLOCK) as advance:
            times = _take_turns(ways, repeats, advance)
    _report(report, times)


def _report(report: Report, times: dict[str, np.ndarray]) -> None:
    for name in ("miss", "hit"):
        for percent in (50, 99):
            value = float(np.percentile(times[name], percent))
            report.figure(f"lookup.{name}_us_p{percent}", value, "us")
    hit = float(np.median(times["hit"]))
    if "redis" in times:
        redis = float(np.median(times["redis"]))
        told = f"{KNOWN} of {CHUNKS} keys, one pipelined EXISTS each, on a Unix socket"
        report.figure("lookup.hit_over_redis", hit / redis, "ratio", baseline=redis, note=told)
    report.figure("lookup.grpc_us_p50", float(np.median(times["grpc"])), "us")


def _take_turns(
    ways: dict[str, Way], repeats: int, advance: Callable[[str], None]
) -> dict[str, np.ndarray]:
    """Return the microseconds of every way, taken in turn so that drift hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats // BLOCK):
        for name, way in [turn for turn in ways.items() for _ in range(BLOCK)]:
            begin = time.perf_counter_ns()
            found = way.ask()
            times[name].append((time.perf_counter_ns() - begin) / 1e3)
            assert found == way.expected, (name, found)
            way.after()
        advance("")
    return {name: np.array(column) for name, column in times.items()}


def _store(space: Space) -> bytes:
    """Store all chunks but the last; return the chain of all."""
    chain = space.chain(np.arange(CHUNKS * CHUNK_TOKENS))
    rng = np.random.default_rng(2)
    shape = (1, KNOWN * CHUNK_TOKENS, WIDTH)
    row = [rng.integers(0, 1 << 14, shape, np.uint16) for _ in range(2)]
    stored = space.put(chain[: KNOWN * DIGEST_BYTES], [row], deadline_s=PUT_SECONDS)
    assert stored.stored == KNOWN, stored
    return chain


def _hit(space: Space, chain: bytes) -> Way:
    """Ask with a lease, and give it back."""
    held: list[int] = []

    def ask() -> int:
        found = space.lookup(chain, lease=True)
        held.append(found.lease)
        return found.counts[0]

    def give_back() -> None:
        """Release, and ask something small behind it, whose answer says that it is done."""
        space.release(held.pop())
        space.lookup(chain[:DIGEST_BYTES])

    return Way(ask, KNOWN, give_back)


@contextlib.contextmanager
def _by_grpc(client: Client, chain: bytes) -> Iterator[Ask]:
    path = client.directory / "grpc.sock"
    metadata = (("authorization", f"Bearer {client.token}"),)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = KvdStub(channel)
        options = {"metadata": metadata, "timeout": CALL_SECONDS}
        registered = stub.RegisterKeyspace(
            pb.RegisterKeyspaceRequest(keyspace=keyspace_message(KEYSPACE)), **options
        )
        request = pb.LookupRequest(
            keyspace=registered.keyspace,
            lanes=[lane_message(client.keyspace(KEYSPACE).lane)],
            chain=chain,
        )

        def ask() -> int:
            reply = stub.Lookup(request, **options)
            return int.from_bytes(reply.counts[:4], "little")

        yield ask


@contextlib.contextmanager
def _by_redis(program: str) -> Iterator[Ask]:
    """Run a Redis of our own that knows the same chunks; no disk, no TCP."""
    keys = np.random.default_rng(3).bytes(CHUNKS * CHUNK_KEY_BYTES)
    names = [keys[at : at + CHUNK_KEY_BYTES] for at in range(0, len(keys), CHUNK_KEY_BYTES)]
    with tempfile.TemporaryDirectory(prefix="kvd-") as directory:
        path = Path(directory) / "redis.sock"
        command = [program, "--port", "0", "--unixsocket", str(path), "--save", ""]
        command += ["--appendonly", "no", "--dir", directory]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=as_child)
        try:
            with _connected(path) as connection:
                stored = b"".join(_command(b"SET", name, b"") for name in names[:KNOWN])
                connection.sendall(stored)
                _answers(connection, len(b"+OK\r\n") * KNOWN)
                question = b"".join(_command(b"EXISTS", name) for name in names)

                def ask() -> int:
                    connection.sendall(question)
                    answers = _answers(connection, len(FOUND) * CHUNKS)
                    return answers.find(MISSING) // len(MISSING)

                yield ask
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
    deadline = time.monotonic() + CONNECT_SECONDS
    with socket.socket(socket.AF_UNIX) as connection:
        while connection.connect_ex(str(path)):
            assert time.monotonic() < deadline, "redis-server does not listen"
            time.sleep(0.01)
        yield connection


def _command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def _answers(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += connection.recv(1 << 16)
    return bytes(data)

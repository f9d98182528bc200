"""The figures of the way of the data through memory: fetch, read, put, against copying the bytes.

One client thread; the daemon runs beside it. All memory is touched before the clock starts, slabs
by reservations that are given back; puts go into free space.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.operators import report_cli
from bench.report import Report, progress, relative_alignment, touched
from bench.scraping import free_address, lag_of, quantile
from bench.serving import served, serving
from kvd.client import BlockShape, Client, Dtype, Fetch, Keyspace, Prepared, Space
from kvd.client.put import Put
from kvd.limits import DIGEST_BYTES, MIB
from kvd.types import CLASS_COUNT

LAYERS, HEADS, WIDTH, CHUNK_TOKENS, CHUNKS = 30, 3, 64, 64, 256
STORED_MIB_MAX = 288  # Of one put, rounded up to what slabs of 64 MiB lose at their ends.
ENCODED_REPEATS = 2
STARTS, STARTS_FULL, START_DRAM = 3, 5, "4GiB"
FETCHES = 9  # In a turn: a fetch is short, and the machine has other things to do.
CONNECT_SECONDS, PUT_SECONDS = 30.0, 120.0
SHAPE = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
KEYSPACE = Keyspace("bench", "r1", SHAPE, chunk_tokens=CHUNK_TOKENS)

Timed = Callable[[], None]


@dataclass(slots=True)
class Step:
    """One thing timed: `act` within the clock, `before` and `after` outside; `times` in a turn."""

    act: Timed
    before: Timed = lambda: None
    after: Timed = lambda: None
    times: int = 1
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(slots=True)
class Scene:
    """What is stored and how it is looked at."""

    client: Client
    space: Space
    chain: bytes
    tensors: list[list[np.ndarray]]
    prepared: Prepared
    rng: np.random.Generator
    fetch: Fetch | None = None

    def open(self) -> None:
        self.fetch = self.space.fetch(self.chain)

    def close(self) -> None:
        assert self.fetch is not None and self.fetch.counts == (CHUNKS,) * CLASS_COUNT
        self.fetch.release()
        # Off the clock: the I/O thread has sent it, and the daemon is done with it.
        self.client.wait_connected(CONNECT_SECONDS)
        self.space.lookup(self.chain[:DIGEST_BYTES])

    def verify(self) -> None:
        assert self.fetch is not None
        good = self.fetch.verify(CLASS_COUNT)
        assert good == CHUNKS, good

    def new_chain(self) -> None:
        """Have the next put store what nobody has."""
        self.chain = self.rng.bytes(CHUNKS * DIGEST_BYTES)

    def put_strips(self) -> None:
        stored = self.space.put_strips(self.chain, self.prepared, deadline_s=PUT_SECONDS)
        assert stored.stored == CHUNKS, stored

    def put(self) -> None:
        stored = self.space.put(self.chain, self.tensors, deadline_s=PUT_SECONDS)
        assert stored.stored == CHUNKS, stored

    def touch_slabs(self, puts: int) -> None:
        """Reserve room for so many puts at once, enter its pages, and give it back."""
        chain = self.rng.bytes(puts * CHUNKS * DIGEST_BYTES)
        sizes = np.tile(self.prepared.sizes, (puts, 1))
        put = Put(self.space.scope, chain, PUT_SECONDS, to_disk=False)
        put.touch(sizes)


def connected_space(client: Client) -> Space:
    """Return the bench's keyspace, once the client has its daemon."""
    assert client.wait_connected(CONNECT_SECONDS), client.status().reason
    return client.keyspace(KEYSPACE)


def run(report: Report, full: bool) -> None:
    """Report all figures of `path`; full takes more repeats."""
    repeats = 9 if full else 5
    report_start(report, STARTS_FULL if full else STARTS)
    puts = repeats + ENCODED_REPEATS + 1
    dram, metrics = f"{puts * STORED_MIB_MAX}MiB", free_address()
    flags = ("--metrics-listen", metrics)
    with served(dram, *flags) as directory, Client(directory, "bench path") as client:
        assert client.wait_connected(CONNECT_SECONDS)
        scene = _scene(client, puts)
        size = int(scene.prepared.sizes.sum(dtype=np.int64))
        assert 256 * MIB <= size <= STORED_MIB_MAX * MIB, size
        source, target = touched(size), touched(size)
        copy = Step(lambda: np.copyto(target, source))
        fetch = Step(scene.open, after=scene.close, times=FETCHES)
        read = Step(scene.verify, before=scene.open, after=scene.close)
        put = Step(scene.put_strips, before=scene.new_chain)
        lag = lag_of(metrics)
        with progress("fetch, read and put in memory", total=repeats) as advance:
            _take_turns(repeats, (copy, fetch, read, put), advance)
        encoded = Step(scene.put, before=scene.new_chain)
        with progress("put with encoding", total=ENCODED_REPEATS) as advance:
            _take_turns(ENCODED_REPEATS, (Step(copy.act), encoded), advance)
        late_s, looks = quantile(lag, lag_of(metrics), 0.99)
        report_cli(report, directory.parent)
    note = (
        f"{size / MIB:.0f} MiB in {CHUNKS} chunks x {CLASS_COUNT} classes, copy's relative "
        f"alignment {relative_alignment(source, target)}"
    )
    _report(report, note, copy.median, (fetch, read, put, encoded))
    told = f"of {looks} looks, while all that was done"
    report.figure("observe.loop_lag_p99_us", 1e6 * late_s, "us", note=told)


def report_start(report: Report, starts: int) -> None:
    """Report how long a daemon takes from its process's start to readiness, nothing being there."""
    seconds = []
    with progress("starting a daemon", total=starts) as advance:
        for _ in range(starts):
            with serving("--dram", START_DRAM) as daemon:
                seconds.append(daemon.ready_seconds)
            advance("")
    note = f"empty directory, dram {START_DRAM}; median of {starts}, worst {max(seconds):.2f} s"
    report.figure("daemon.start_seconds", statistics.median(seconds), "s", note=note)


def _report(report: Report, note: str, copied_s: float, steps: tuple[Step, ...]) -> None:
    fetch, read, put, encoded = (step.median for step in steps)
    for name, value, seconds, extra in (
        ("path.fetch_over_memcpy", fetch / copied_s, fetch, ""),
        ("path.read_over_memcpy", copied_s / read, read, ""),
        ("path.put_over_memcpy", copied_s / put, put, ""),
        ("path.put_encoded_over_memcpy", copied_s / encoded, encoded, "; from BF16 tensors"),
    ):
        told = f"{1e3 * seconds:.2f} ms against {1e3 * copied_s:.1f} ms; {note}{extra}"
        report.figure(name, value, "ratio", baseline=copied_s, note=told)


def _take_turns(repeats: int, steps: tuple[Step, ...], advance: Callable[[str], None]) -> None:
    """Run the steps in turn, so that drift hits all alike."""
    for _ in range(repeats):
        for step in [one for one in steps for _ in range(one.times)]:
            step.before()
            begin = time.perf_counter_ns()
            step.act()
            step.seconds.append((time.perf_counter_ns() - begin) / 1e9)
            step.after()
        advance("")


def _scene(client: Client, puts: int) -> Scene:
    space = client.keyspace(KEYSPACE)
    with progress("making and encoding KV, touching slabs", total=3) as advance:
        tensors = synthetic_kv()
        advance("made")
        scene = Scene(client, space, b"", tensors, space.prepare(tensors), np.random.default_rng(5))
        scene.new_chain()
        advance("encoded")
        scene.touch_slabs(puts)
        scene.put_strips()
        advance("touched")
    return scene


def synthetic_kv() -> list[list[np.ndarray]]:
    """Return tensors[layer][k, v] of BF16 bits: normal, with scales and means per channel."""
    rng = np.random.default_rng(1)
    tokens = CHUNKS * CHUNK_TOKENS
    scale = np.exp(rng.standard_normal((HEADS, 1, WIDTH), np.float32) * 0.7)
    mean = rng.standard_normal((HEADS, 1, WIDTH), np.float32) * (
        rng.random((HEADS, 1, WIDTH)) < 0.2
    )
    tensors = []
    for _ in range(LAYERS):
        row = []
        for _ in range(2):
            values = (rng.standard_normal((HEADS, tokens, WIDTH), np.float32) + 3 * mean) * scale
            out = touched(values.nbytes // 2).view(np.uint16).reshape(values.shape)
            np.copyto(out, (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
            row.append(out)
        tensors.append(row)
    return tensors

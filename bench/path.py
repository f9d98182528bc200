"""The figures of the way of the data through memory: fetch, read, put, against copying the bytes.

One client thread; the daemon runs beside it. All memory is touched before the clock starts: slabs
by a first put, which the timed ones replace.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.report import Report, progress, relative_alignment, touched
from bench.serving import served
from kvd.client import BlockShape, Client, Dtype, Fetch, Keyspace, Prepared, Space
from kvd.limits import MIB
from kvd.types import CLASS_COUNT

LAYERS, HEADS, WIDTH, CHUNK_TOKENS, CHUNKS = 30, 3, 64, 64, 256
DRAM = "1536MiB"  # Three times what is stored: a put finds room beside what it replaces.
CONNECT_SECONDS, PUT_SECONDS = 30.0, 120.0
SHAPE = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
KEYSPACE = Keyspace("bench", "r1", SHAPE, chunk_tokens=CHUNK_TOKENS)

Timed = Callable[[], None]


@dataclass(slots=True)
class Step:
    """One thing timed: `act` within the clock, `before` and `after` outside of it."""

    act: Timed
    before: Timed = lambda: None
    after: Timed = lambda: None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(slots=True)
class Scene:
    """What is stored and how it is looked at."""

    space: Space
    chain: bytes
    tensors: list[list[np.ndarray]]
    prepared: Prepared
    fetch: Fetch | None = None

    def open(self) -> None:
        self.fetch = self.space.fetch(self.chain)

    def close(self) -> None:
        assert self.fetch is not None and self.fetch.counts == (CHUNKS,) * CLASS_COUNT
        self.fetch.release()

    def verify(self) -> None:
        assert self.fetch is not None
        good = self.fetch.verify(CLASS_COUNT)
        assert good == CHUNKS, good

    def condemn(self) -> None:
        """Have what is stored be replaced by the next put."""
        with self.space.fetch(self.chain, class_count=1) as fetch:
            fetch.condemn(range(CHUNKS))
        while self.space.lookup(self.chain).counts[0]:
            pass

    def put_strips(self) -> None:
        stored = self.space.put_strips(self.chain, self.prepared, deadline_s=PUT_SECONDS)
        assert stored.stored == CHUNKS, stored

    def put(self) -> None:
        stored = self.space.put(self.chain, self.tensors, deadline_s=PUT_SECONDS)
        assert stored.stored == CHUNKS, stored


def run(report: Report, full: bool) -> None:
    """Report all figures of `path`; full takes more repeats."""
    repeats = 15 if full else 7
    with served(DRAM) as directory, Client(directory, "bench path") as client:
        assert client.wait_connected(CONNECT_SECONDS)
        scene = _scene(client)
        size = int(scene.prepared.sizes.sum(dtype=np.int64))
        assert size >= 256 * MIB, size
        source, target = touched(size), touched(size)
        copy = Step(lambda: np.copyto(target, source))
        fetch = Step(scene.open, after=scene.close)
        read = Step(scene.verify, before=scene.open, after=scene.close)
        put = Step(scene.put_strips, before=scene.condemn)
        with progress("fetch, read and put in memory", total=repeats) as advance:
            _take_turns(repeats, (copy, fetch, read, put), advance)
        encoded = Step(scene.put, before=scene.condemn)
        with progress("put with encoding", total=3) as advance:
            _take_turns(3, (Step(copy.act), encoded), advance)
    note = (
        f"{size / MIB:.0f} MiB in {CHUNKS} chunks x {CLASS_COUNT} classes, copy's relative "
        f"alignment {relative_alignment(source, target)}"
    )
    _report(report, note, copy.median, (fetch, read, put, encoded))


def _report(report: Report, note: str, copied_s: float, steps: tuple[Step, ...]) -> None:
    fetch, read, put, encoded = (step.median for step in steps)
    for name, value, seconds, extra in (
        ("path.fetch_over_memcpy", fetch / copied_s, fetch, ""),
        ("path.read_over_memcpy", copied_s / read, read, ""),
        ("path.put_over_memcpy", copied_s / put, put, "; replaces what is there"),
        ("path.put_encoded_over_memcpy", copied_s / encoded, encoded, "; from BF16 tensors"),
    ):
        told = f"{1e3 * seconds:.2f} ms against {1e3 * copied_s:.1f} ms; {note}{extra}"
        report.figure(name, value, "ratio", baseline=copied_s, note=told)


def _take_turns(repeats: int, steps: tuple[Step, ...], advance: Callable[[str], None]) -> None:
    """Run the steps in turn, so that drift hits all alike."""
    for _ in range(repeats):
        for step in steps:
            step.before()
            begin = time.perf_counter_ns()
            step.act()
            step.seconds.append((time.perf_counter_ns() - begin) / 1e9)
            step.after()
        advance("")


def _scene(client: Client) -> Scene:
    """Store everything three times: then every place has been written once."""
    space = client.keyspace(KEYSPACE)
    chain = space.chain(np.arange(CHUNKS * CHUNK_TOKENS))
    with progress("making and encoding KV", total=2) as advance:
        tensors = _synthetic_kv()
        advance("made")
        scene = Scene(space, chain, tensors, space.prepare(tensors))
        advance("encoded")
    scene.put_strips()
    for _ in range(3):
        scene.condemn()
        scene.put_strips()
    return scene


def _synthetic_kv() -> list[list[np.ndarray]]:
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

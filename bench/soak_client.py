"""One client of the soak, as a process: looks up, fetches, verifies and puts what requests name.

`python -m bench.soak_client DIRECTORY REPLAY BEGIN INDEX OF`; a line of JSON for each request. What
a call raises ends the process, and so is seen.
"""

import contextlib
import gc
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from bench import soak_content as content
from bench.soak_blows import LONG_LIVED
from bench.soak_trace import Replay
from kvd.client import EXACT, Client, Delivery, Fetch, PlaneClass, Space
from kvd.types import CLASS_COUNT

THREADS = 2  # At a time: an engine stores one request while it loads another.
LATE_S_MAX = 3.0  # What is later is left out: an engine's queue would have gone elsewhere.
DEADLINE_S = 10.0
CONNECT_S = 2.0
DECODE_S_OF_TOKEN = 0.0003  # How long a fetch is held for each token that is generated.
HELD_S_MAX = 0.5
SLOW_BITS = 400_000_000
COUNT_EVERY_S = 5.0  # Blocks of memory; it stops the process for a tenth of a second.
READ_CHUNKS = 8  # At a time, so that comparing takes little memory.
TO_DISK_EVERY, PREFETCH_EVERY, LEASE_EVERY = 5, 11, 7  # Requests; the rest of each is plain.
BYTES_EVERY, ANCHORS_ALONE_EVERY = 4, 9


@dataclass(slots=True)
class Told:
    """What one request was like; counts are chunks by class, times microseconds (0: not done)."""

    request: int
    chunks: int
    late_s: float = 0.0
    skipped: bool = False
    fetched: list[int] = field(default_factory=lambda: [0] * CLASS_COUNT)
    good: int = 0  # Chunks verified, in whatever precision.
    wrong: list[str] = field(default_factory=list)
    stored: int = 0
    had: int = 0
    refused: int = 0
    durable: int = 0
    lookup_us: float = 0.0
    fetch_us: float = 0.0
    put_us: float = 0.0
    begin_s: float = 0.0
    end_s: float = 0.0
    steady: bool = False  # One daemon was there all the time.
    why: list[str] = field(default_factory=list)
    corrupt: int = 0  # Chunks whose checksums failed, of this process so far.
    blocks: int = 0  # That the interpreter has allocated; 0: they were not counted.


class Requests:
    """Carries out requests on one client, each on the thread that calls."""

    def __init__(self, client: Client, replay: Replay, begin_s: float) -> None:
        self._client, self._replay, self._begin_s = client, replay, begin_s
        traces = set(replay.trace.tolist())
        self._spaces = {trace: client.keyspace(content.keyspace_of(trace)) for trace in traces}
        self._at_work: set[int] = set()  # Changed by whole operations, so no lock.
        self._next_count_s = 0.0

    def due_in_s(self, number: int) -> float:
        """Return how long it is until a request is due."""
        return self._begin_s + float(self._replay.due_s[number]) - time.monotonic()

    def largest(self) -> int:
        """Return the number of the request that asks for most chunks."""
        return int(np.diff(self._replay.begins).argmax())

    def carry_out(self, number: int) -> Told:
        """Do all of one request that is not too late, and say what came of it."""
        replay = self._replay
        blocks = replay.blocks_of(number)
        told = Told(number, len(blocks), begin_s=time.monotonic())
        told.late_s = -self.due_in_s(number)
        told.skipped = told.late_s > LATE_S_MAX
        self._at_work.add(number)
        if not told.skipped:
            before = self._client.status()
            self._carry_out(told, int(replay.trace[number]), blocks)
            after = self._client.status()
            told.steady = before.connected and after.connected and before.epoch == after.epoch
            told.corrupt = after.counters.checksum_failures
        told.end_s = time.monotonic()
        if self._at_work == {number} and time.monotonic() > self._next_count_s:
            # Garbage in cycles, up to a quarter of all objects, waits for the collector otherwise.
            gc.collect()
            told.blocks = sys.getallocatedblocks()
            self._next_count_s = time.monotonic() + COUNT_EVERY_S
        self._at_work.discard(number)
        return told

    def _carry_out(self, told: Told, trace: int, blocks: np.ndarray) -> None:
        space, number = self._spaces[trace], told.request
        chain = space.chain(content.tokens_of(blocks))
        values = content.values_of(trace, chain)
        with _timed(told, "lookup_us"):
            found = space.lookup(chain, lease=number % LEASE_EVERY == 0)
        told.why.append(found.reason.name)
        if number % PREFETCH_EVERY == 0:
            space.prefetch(chain)
        if number % ANCHORS_ALONE_EVERY == 0:
            with space.fetch(chain, class_count=1) as fetch:
                _arrived(fetch)
                self._verify(told, fetch, values)
        how = {"lease": found.lease} if found.lease else {}
        if number % BYTES_EVERY == 0:
            how["rate_bits"] = SLOW_BITS if number % (2 * BYTES_EVERY) else 0
        delivery = Delivery.BYTES if number % BYTES_EVERY == 0 else Delivery.MAP
        with _timed(told, "fetch_us"):
            fetch = space.fetch(chain, delivery=delivery, **how)
            for arrival in fetch.arrivals():
                if arrival.plane_class == PlaneClass.ANCHOR and arrival.layer_end == content.LAYERS:
                    self._read(told, fetch, values, content.ANCHOR_PLANES, (0, fetch.counts[0]))
        with fetch:
            told.why.append(fetch.reason.name)
            told.fetched = list(fetch.counts)
            self._verify(told, fetch, values)
            held_s = float(self._replay.output[number]) * DECODE_S_OF_TOKEN
            time.sleep(min(held_s, HELD_S_MAX))
            self._verify(told, fetch, values)  # A lease may have been lost meanwhile.
            whole = fetch.counts[-1]
        if whole < len(blocks):
            self._put(told, space, chain, (values, whole))

    def _put(self, told: Told, space: Space, chain: bytes, what: tuple[np.ndarray, int]) -> None:
        values, first = what
        rest = values[:, :, :, first * content.CHUNK_TOKENS :]
        to_disk = told.request % TO_DISK_EVERY == 0
        durability = "disk" if to_disk else "memory"
        with _timed(told, "put_us"):
            stored = space.put(chain, content.views_of(rest), first, durability)
        told.stored, told.had, told.refused = stored.stored, stored.had, stored.refused
        told.durable = (stored.stored + stored.had) * stored.durable
        told.why.append(stored.reason.name)

    def _verify(self, told: Told, fetch: Fetch, values: np.ndarray) -> None:
        """Compare all that came: exactly where all classes did, else within the planes' bounds."""
        anchor, residual, exact = fetch.counts
        if not anchor >= residual >= exact:
            told.wrong.append(f"request {told.request} is promised {fetch.counts}")
        told.good += self._read(told, fetch, values, EXACT, (0, exact))
        told.good += self._read(told, fetch, values, content.CODE_PLANES, (exact, residual))
        told.good += self._read(told, fetch, values, content.ANCHOR_PLANES, (residual, anchor))

    def _read(
        self, told: Told, fetch: Fetch, values: np.ndarray, planes: int, chunks: tuple[int, int]
    ) -> int:
        """Decode and compare chunks [begin, end), some at a time; return how many were good."""
        begin, end = chunks
        for at in range(begin, end, READ_CHUNKS):
            part = (at, min(at + READ_CHUNKS, end))
            good = self._read_part(told, fetch, values, planes, part)
            if good < part[1] - part[0]:
                return at - begin + good
        return max(end - begin, 0)

    def _read_part(
        self, told: Told, fetch: Fetch, values: np.ndarray, planes: int, chunks: tuple[int, int]
    ) -> int:
        begin, end = chunks
        read = content.blank(end - begin)
        token = -begin * content.CHUNK_TOKENS
        good = fetch.decode(content.ALL_LAYERS, planes, content.views_of(read), token, chunks)
        tokens = slice(begin * content.CHUNK_TOKENS, (begin + good) * content.CHUNK_TOKENS)
        ours, theirs = values[:, :, :, tokens], read[:, :, :, : good * content.CHUNK_TOKENS]
        wrong = content.wrong_chunks(ours, theirs, None if planes == EXACT else planes)
        for chunk in wrong:
            told.wrong.append(f"chunk {begin + chunk} of request {told.request}, {planes} planes")
        return good


@contextlib.contextmanager
def _timed(told: Told, name: str) -> Iterator[None]:
    """Put the time within into a field of what is told."""
    begin_ns = time.perf_counter_ns()
    yield
    setattr(told, name, (time.perf_counter_ns() - begin_ns) / 1e3)


def _arrived(fetch: Fetch) -> None:
    for _ in fetch.arrivals():
        pass


def work(
    requests: Requests,
    numbers: Iterator[int],
    stop: threading.Event,
    told: "Teller",
    *,
    warm: bool,
) -> None:
    """Carry out the requests dealt to this thread, each when it is due, until there are no more.

    `warm`: the largest of all comes first, so that buffers are as large as they will be, and what
    grows later in a client that lives long is a leak.
    """
    if warm:
        told.tell(asdict(requests.carry_out(requests.largest())))
    while not stop.is_set():
        with told.lock:
            number = next(numbers, None)
        if number is None or stop.wait(max(0.0, requests.due_in_s(number))):
            return
        told.tell(asdict(requests.carry_out(number)))


class Teller:
    """Writes lines, each whole, from whatever thread."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.lock, self._write = threading.Lock(), write

    def tell(self, what: dict) -> None:
        line = json.dumps(what)
        with self.lock:
            self._write(line + "\n")


def main(words: list[str]) -> int:
    """Work until all is done or SIGTERM; then leave the daemon in order."""
    directory, path, begin_s = Path(words[0]), Path(words[1]), float(words[2])
    index, clients = int(words[3]), int(words[4])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    replay = Replay.load(path)
    begun = int(np.searchsorted(replay.due_s, time.monotonic() - begin_s))
    numbers = (n for n in itertools.count(begun) if n % clients == index)
    numbers = itertools.takewhile(lambda n: n < len(replay), numbers)
    teller = Teller(lambda line: (sys.stdout.write(line), sys.stdout.flush()))
    with Client(directory, f"soak {index}", DEADLINE_S) as client, ThreadPoolExecutor() as pool:
        client.wait_connected(CONNECT_S)
        requests = Requests(client, replay, begin_s)
        act = partial(work, requests, numbers, stop, teller, warm=index < LONG_LIVED)
        going = [pool.submit(act) for _ in range(THREADS)]
        ended, _ = wait(going, return_when=FIRST_EXCEPTION)
        if not any(each.exception() for each in ended):
            stop.wait()
        stop.set()
        for each in going:
            each.result()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

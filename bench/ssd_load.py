"""Loads from a slow disk, alone and while ten times of what it takes is offered to be stored."""

import multiprocessing
import time
from pathlib import Path

import numpy as np

from bench.path import PUT_SECONDS, connected_space, synthetic_kv
from bench.report import Report, progress
from bench.serving import serving
from kvd.client import Client, Space
from kvd.limits import DIGEST_BYTES, MIB
from kvd.types import CLASS_COUNT

CHUNKS = 4  # Of one load: a few megabytes.
LOADS, LOADS_FULL = 200, 500
READ_RATE, WRITE_RATE = 400 * MIB, 32 * MIB  # Bytes a second that the disk is bounded to.
OFFERED = 10  # Times what it takes.
FETCH_SECONDS = 30.0
STORE_SECONDS = 60.0
QUEUE_SECONDS = 1.0
_WARM_LOADS = 5


def run(report: Report, directory: Path, full: bool) -> None:
    """Report how much longer loads take beside stores, at the 99th percentile."""
    loads = LOADS_FULL if full else LOADS
    flags = ("--dram", "2GiB", "--data", str(directory / "kvd"), "--ssd", "8GiB")
    rng = np.random.default_rng(11)
    chains = [rng.bytes(CHUNKS * DIGEST_BYTES) for _ in range(2 * (loads + _WARM_LOADS))]
    tensors = synthetic_kv()
    with serving(*flags) as daemon, Client(daemon.tenant, "bench load") as client:
        space = connected_space(client)
        prepared = space.prepare([[t[:, : CHUNKS * 64] for t in row] for row in tensors])
        with progress("storing what is to be loaded", total=len(chains)) as advance:
            for chain in chains:
                stored = space.put_strips(chain, prepared, deadline_s=PUT_SECONDS)
                assert stored.stored == CHUNKS, stored
                advance("")
            last = space.put_strips(chains[-1], prepared, durability="disk")
            assert last.reason == "", last
    slow = ("-m", "bench.throttled", str(READ_RATE), str(WRITE_RATE))
    with (
        serving(*flags, program=slow) as daemon,
        Client(daemon.tenant, "bench load") as client,
        progress("loads, alone and beside stores", total=len(chains)) as advance,
    ):
        space = connected_space(client)
        half = len(chains) // 2
        alone = _loads(space, chains[:half], advance)
        going, stop = multiprocessing.Event(), multiprocessing.Event()
        offered = multiprocessing.Value("d", 0.0)
        storing = multiprocessing.Process(target=_store, args=(daemon.tenant, going, stop, offered))
        storing.start()
        try:
            assert going.wait(STORE_SECONDS), "nothing is stored"
            beside = _loads(space, chains[half:], advance)
        finally:
            stop.set()
            storing.join()
    p99, p99_alone = (float(np.percentile(each, 99)) for each in (beside, alone))
    size = int(prepared.sizes.sum(dtype=np.int64))
    note = (
        f"p99 {1e3 * p99:.1f} ms beside {offered.value / MIB:.0f} MiB/s offered to a disk bounded "
        f"to {WRITE_RATE // MIB} MiB/s, {1e3 * p99_alone:.1f} ms alone; p50 "
        f"{1e3 * float(np.median(beside)):.1f} and {1e3 * float(np.median(alone)):.1f} ms; "
        f"{loads} loads of {size / MIB:.1f} MiB each"
    )
    report.figure(
        "ssd.load_p99_over_alone", p99 / p99_alone, "ratio", baseline=p99_alone, note=note
    )


def _loads(space: Space, chains: list[bytes], advance) -> list[float]:  # noqa: ANN001
    seconds = []
    for chain in chains:
        begin = time.perf_counter()
        with space.fetch(chain, deadline_s=FETCH_SECONDS) as fetch:
            for _ in fetch.arrivals():
                pass
            seconds.append(time.perf_counter() - begin)
            assert fetch.counts == (CHUNKS,) * CLASS_COUNT, (fetch.counts, fetch.reason)
        advance("")
    return seconds[_WARM_LOADS:]


def _store(tenant: Path, going, stop, offered) -> None:  # noqa: ANN001
    """Offer so much more than the disk takes, in another process, as another engine would."""
    rng = np.random.default_rng(13)
    with Client(tenant, "bench store") as client:
        space = connected_space(client)
        prepared = space.prepare([[t[:, : 16 * 64] for t in row] for row in synthetic_kv()])
        size = int(prepared.sizes.sum(dtype=np.int64))
        begin, done = time.perf_counter(), 0
        while not stop.is_set():
            space.put_strips(rng.bytes(16 * DIGEST_BYTES), prepared)
            done += size
            if done > OFFERED * WRITE_RATE * QUEUE_SECONDS:
                going.set()  # By now more waits to be written than the disk takes in a while.
            ahead = done / (OFFERED * WRITE_RATE) - (time.perf_counter() - begin)
            if ahead > 0:
                stop.wait(ahead)
        offered.value = done / (time.perf_counter() - begin)

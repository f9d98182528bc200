"""The figures of the ssd tier: fetch and put against fio, stored size, loads beside many stores.

What is fetched lies on disk only: the daemon was started anew.
"""

import statistics
import time
from pathlib import Path

import numpy as np

from bench import ssd_load, ssd_size
from bench.fio import Fio, find_fio
from bench.path import CHUNKS, PUT_SECONDS, connected_space, synthetic_kv
from bench.report import Report, progress
from bench.serving import data_directory, serving
from kvd.arena.pages import pages_note
from kvd.client import Client, Prepared, Space
from kvd.limits import DIGEST_BYTES, MIB
from kvd.types import CLASS_COUNT

FETCH_SECONDS = 60.0


def run(report: Report, full: bool) -> None:
    """Report all figures of `ssd`; full takes more repeats and more loads."""
    with data_directory() as directory:
        _speed(report, directory, 8 if full else 4)
    with data_directory() as directory:
        ssd_load.run(report, directory, full)
    with data_directory() as directory:
        ssd_size.run(report, directory)


def _speed(report: Report, directory: Path, repeats: int) -> None:
    fio = find_fio(directory)
    puts, fetches = repeats, repeats
    dram_mib = (repeats + 1) * 2 * 300
    flags = ("--dram", f"{dram_mib}MiB", "--data", str(directory / "kvd"), "--ssd", "8GiB")
    rng = np.random.default_rng(7)
    chains = [rng.bytes(CHUNKS * DIGEST_BYTES) for _ in range(repeats + 1)]
    put_speeds, fetch_speeds, fio_speeds = [], [], {"read": [], "write": []}
    with serving(*flags) as daemon, Client(daemon.tenant, "bench ssd") as client:
        space = connected_space(client)
        with progress("making and encoding KV"):
            prepared = space.prepare(synthetic_kv())
        size = int(prepared.sizes.sum(dtype=np.int64))
        _put(space, chains[0], prepared)  # Slabs are touched, files exist.
        with progress("put to disk, beside fio", total=puts) as advance:
            for chain in chains[1:]:
                put_speeds.append(size / _put(space, chain, prepared))
                if fio is not None:
                    fio_speeds["write"].append(fio.write(size))
                advance("")
    if fio is not None:
        fio.lay(size)
    with serving(*flags) as daemon, Client(daemon.tenant, "bench ssd") as client:
        space = connected_space(client)
        _fetch(space, chains[0])
        with progress("fetch from disk, beside fio", total=fetches) as advance:
            for chain in chains[1:]:
                fetch_speeds.append(size / _fetch(space, chain))
                if fio is not None:
                    fio_speeds["read"].append(fio.read(size))
                advance("")
    for name, speeds, ours in (("fetch", "read", fetch_speeds), ("put", "write", put_speeds)):
        _report(report, f"ssd.{name}_over_fio", ours, fio_speeds[speeds], size, fio)


def _report(
    report: Report, name: str, ours: list[float], fios: list[float], size: int, fio: Fio | None
) -> None:
    speed = statistics.median(ours)
    note = f"{speed / MIB:.0f} MiB/s of {size / MIB:.0f} MiB in {CHUNKS} chunks x {CLASS_COUNT}"
    note += ", slabs of small pages" if pages_note() else ", slabs of huge pages"
    if fio is None:
        report.figure(name.replace("_over_fio", "_bytes_per_s"), speed, "B/s", note=note)
        return
    # Turn by turn: a disk is not the same twice.
    ratio = statistics.median([a / b for a, b in zip(ours, fios, strict=True)])
    baseline = statistics.median(fios)
    note += f", fio {baseline / MIB:.0f} MiB/s"
    report.figure(name, ratio, "ratio", baseline=baseline, note=note)


def _put(space: Space, chain: bytes, prepared: Prepared) -> float:
    """Return the seconds until a put of prepared strips was durable."""
    begin = time.perf_counter()
    stored = space.put_strips(chain, prepared, deadline_s=PUT_SECONDS, durability="disk")
    assert stored.stored == CHUNKS and stored.durable, stored
    return time.perf_counter() - begin


def _fetch(space: Space, chain: bytes) -> float:
    """Return the seconds from the call until everything had arrived."""
    begin = time.perf_counter()
    with space.fetch(chain, deadline_s=FETCH_SECONDS) as fetch:
        for _ in fetch.arrivals():
            pass
        seconds = time.perf_counter() - begin
        assert fetch.counts == (CHUNKS,) * CLASS_COUNT and fetch.error is None, fetch.reason
        assert fetch.verify(CLASS_COUNT) == CHUNKS
    return seconds

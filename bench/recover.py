"""How long a daemon takes to be ready on a catalog of a million strips, and how much memory.

The catalog is made by the daemon's own hands, in the shape of an 8B model; chains of 64 chunks. Its
strips are a page each, since no segment is read at the start.
"""

import statistics
import threading
from pathlib import Path

import numpy as np

from bench.report import Report, progress
from bench.serving import data_directory, serving
from kvd.catalog.committing import LmdbCatalog, open_catalog
from kvd.catalog.contract import Changes, Committed, map_bytes_of
from kvd.client import BlockShape, Client, Dtype, Keyspace
from kvd.clock import MonotonicClock
from kvd.disk.contract import SegmentPlace
from kvd.disk.directories import DataDirectory, home_of, open_directories
from kvd.disk.files import OsFiles
from kvd.disk.heads import make_segment
from kvd.errors import Fault
from kvd.format.keyspaces import pack_keyspace
from kvd.format.records import empty_segments, seal_segments
from kvd.format.rows import empty_rows, put_lane, seal_rows
from kvd.identity import chain_digests
from kvd.limits import GIB, MIB, PAGE_BYTES
from kvd.types import CLASS_COUNT, Lane, PlaneClass, SegmentState

CHUNKS = 333_334
CHAIN_CHUNKS = 64
SEGMENT_BYTES = 64 * MIB
BUDGET = 16 * GIB
SHAPE = BlockShape.of_attention(layers=32, heads=8, width=128, dtype=Dtype.BF16)
KEYSPACE = Keyspace("bench-8b", "r1", SHAPE)
_STRIPS_OF_SEGMENT = SEGMENT_BYTES // PAGE_BYTES - 1
_ROWS_AT_ONCE = 1 << 13
_COMMIT_SECONDS = 120.0


def run(report: Report, full: bool) -> None:
    """Report the time to readiness and the peak memory; full takes more starts."""
    with data_directory() as directory:
        data = directory / "kvd"
        chain = _make(data)
        flags = ("--dram", "128MiB", "--data", str(data), "--ssd", f"{BUDGET // GIB}GiB")
        seconds, peaks = [], []
        with progress("starting on a million strips", total=5 if full else 3) as advance:
            for _ in range(5 if full else 3):
                with serving(*flags) as daemon, Client(daemon.tenant, "bench recover") as client:
                    seconds.append(daemon.ready_seconds)
                    assert client.wait_connected(10)
                    found = client.keyspace(KEYSPACE).lookup(chain)
                    assert found.counts == (CHAIN_CHUNKS,) * CLASS_COUNT, found
                    peaks.append(daemon.peak_bytes())
                advance("")
    note = f"{CHUNKS * CLASS_COUNT:,} strips, from the start of the process, files cached"
    report.figure("recover.seconds", statistics.median(seconds), "s", note=note)
    told = "peak resident, shared memory not counted"
    report.figure("recover.bytes", max(peaks), "B", note=told)


def _make(data: Path) -> bytes:
    """Fill a data directory; return one chain that is in it."""
    files = OsFiles()
    [directory] = open_directories([data], SEGMENT_BYTES, files)
    told, landed = threading.Event(), []

    def report(committed: Committed) -> None:
        landed.append(committed)
        told.set()

    home = home_of([directory])
    catalog = open_catalog(home, map_bytes_of(BUDGET), report, MonotonicClock())
    assert not isinstance(catalog, Fault), catalog

    def commit(changes: Changes) -> None:
        told.clear()
        catalog.commit(1, changes)
        assert told.wait(_COMMIT_SECONDS) and landed[-1].fault is None, landed[-1:]

    digest, packed = pack_keyspace(KEYSPACE, "default")
    chains = _chains()
    with progress("making a catalog of a million strips", total=CHUNKS // _ROWS_AT_ONCE + 2) as on:
        commit(
            Changes(
                segments=_segments(directory, files),
                keyspaces=((digest, packed),),
                directories=(directory.superblock.directory,),
                generation=CHUNKS + 1,
            )
        )
        on("segments")
        for begin in range(0, CHUNKS, _ROWS_AT_ONCE):
            commit(Changes(rows=_rows(digest, chains, begin, min(begin + _ROWS_AT_ONCE, CHUNKS))))
            on("rows")
    _close(catalog, directory)
    return chains[:CHAIN_CHUNKS].tobytes()


def _close(catalog: LmdbCatalog, directory: DataDirectory) -> None:
    catalog.close()
    directory.release()


def _chains() -> np.ndarray:
    """Return u8[CHUNKS, 32]: digests of many texts, one behind the other."""
    texts = -(-CHUNKS // CHAIN_CHUNKS)
    tokens = np.arange(CHAIN_CHUNKS, dtype=np.uint32)
    whole = b"".join(chain_digests((tokens + text).tolist(), 1) for text in range(texts))
    return np.frombuffer(whole, np.uint8).reshape(-1, 32)[:CHUNKS]


def _segments(directory: DataDirectory, files: OsFiles) -> np.ndarray:
    each = -(-CHUNKS // _STRIPS_OF_SEGMENT)
    records = empty_segments(each * CLASS_COUNT)
    records["segment"] = np.arange(len(records)) + 1
    records["plane_class"] = np.arange(len(records)) // each
    records["state"], records["epoch"] = SegmentState.FULL, 1
    for record in records:
        place = SegmentPlace(0, int(record["segment"]), 1, PlaneClass(int(record["plane_class"])))
        fault = make_segment(files, directory, place)
        assert fault is None, fault
    seal_segments(records)
    return records


def _rows(digest: bytes, chains: np.ndarray, begin: int, end: int) -> np.ndarray:
    rows, at = empty_rows(end - begin), np.arange(begin, end)
    put_lane(rows, digest, Lane())
    rows["chain"] = chains[begin:end]
    first = at % CHAIN_CHUNKS == 0
    rows["parent"][~first] = chains[at[~first] - 1]
    rows["generation"], rows["profile"], rows["heat"] = at + 1, 1, 1.0
    rows["root"] = at[:, None] * CLASS_COUNT + np.arange(CLASS_COUNT)
    each = -(-CHUNKS // _STRIPS_OF_SEGMENT)
    rows["segment"] = 1 + at[:, None] // _STRIPS_OF_SEGMENT + each * np.arange(CLASS_COUNT)
    rows["epoch"], rows["pages"] = 1, 1
    rows["page"] = 1 + at[:, None] % _STRIPS_OF_SEGMENT
    seal_rows(rows)
    return rows

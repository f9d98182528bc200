"""What a soak samples: of processes by /proc, of the daemon by its admin socket, of files by stat.

Every reading is a number by the name of its gauge (`bench/soak_leaks.py`).
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvd.admin.asking import AdminClient
from kvd.config import ADMIN_SOCKET
from kvd.disk.directories import CATALOG_NAME, SEGMENTS_NAME
from kvd.disk.posix import BLOCK_BYTES, allocated_bytes
from kvd.errors import KvdError
from kvd.limits import KIB
from kvd.v1 import admin_pb2 as admin

Reading = dict[str, float]
STATS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Stats:
    """Every number of a daemon at one moment, by name and labels."""

    samples: tuple[tuple[str, tuple[tuple[str, str], ...], float], ...]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the series of `kvd_NAME` that have these labels."""
        wanted = set(labels.items())
        return sum(
            value
            for sample, its_labels, value in self.samples
            if sample == f"kvd_{name}" and wanted <= set(its_labels)
        )

    def by_label(self, name: str, label: str) -> Reading:
        """Return sums of `kvd_NAME` by the values of a label."""
        sums: Reading = defaultdict(float)
        for sample, labels, value in self.samples:
            if sample == f"kvd_{name}":
                sums[dict(labels)[label]] += value
        return dict(sums)


def read_stats(client: AdminClient) -> Stats:
    """Ask a daemon for all its numbers; raise KvdError when it does not answer."""
    reply = client.call("Stats", admin.StatsRequest(), STATS_SECONDS)
    assert isinstance(reply, admin.StatsReply)
    return Stats(
        tuple(
            (each.name, tuple((label.name, label.value) for label in each.labels), each.value)
            for each in reply.samples
        )
    )


def of_process(pid: int) -> Reading | None:
    """Return what /proc says of a process; None when it is gone."""
    directory = Path(f"/proc/{pid}")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):
        status = dict(_fields((directory / "status").read_text()))
        opened = dict(_links(directory / "fd"))
        memfds = [path for path, link in opened.items() if link.startswith("/memfd:")]
        return {
            "private memory": _kib(status["VmRSS"]) - _kib(status["RssShmem"]),
            # What is mapped twice is resident twice, and there once.
            "shared memory": _allocated(memfds),
            "descriptors": len(opened),
            "threads": float(status["Threads"]),
            "mappings of slabs": (directory / "maps").read_text().count("/memfd:"),
            "memfds": len(memfds),
        }
    return None


def of_daemon(stats: Stats) -> Reading:
    states = stats.by_label("dram_bytes", "state")
    return {
        "sessions": stats.total("sessions"),
        "leases": stats.total("leases"),
        "leased bytes": stats.total("lease_bytes"),
        "reservations": stats.total("reservations"),
        "pending fetches": stats.total("pending_fetches"),
        "open deliveries": stats.total("open_deliveries"),
        "filling bytes": states["filling"],
        "freeing bytes": states["freeing"],
        "quarantined bytes": states["quarantined"],
        "orphaned slabs": stats.total("slabs", state="orphan"),
        "chunks known": stats.total("chunks"),
    }


def of_files(data: Path, run: Path) -> Reading:
    """Return what lies on disk; a file that goes meanwhile is not counted."""
    files = list(_files(data))
    catalog = 0
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            catalog += path.stat().st_size * (path.parent.name == CATALOG_NAME)
    on_disk = 0
    with contextlib.suppress(FileNotFoundError):
        on_disk = allocated_bytes(data)
    return {
        "bytes on disk": on_disk,
        "catalog": catalog,
        "files on disk beside segments": sum(path.parent.name != SEGMENTS_NAME for path in files),
        "files of the runtime directory": len(list(_files(run))),
    }


def asked(directory: Path) -> Stats | None:
    """Return the numbers of the daemon of a runtime directory; None when it does not answer."""
    with contextlib.suppress(KvdError), AdminClient(directory / ADMIN_SOCKET) as client:
        return read_stats(client)
    return None


def _files(directory: Path) -> Iterator[Path]:
    for place, _, names in os.walk(directory):
        yield from (Path(place) / name for name in names)


def _links(directory: Path) -> Iterator[tuple[Path, str]]:
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):
            yield directory / name, os.readlink(directory / name)


def _allocated(descriptors: Iterable[Path]) -> float:
    """Return the bytes of the files behind descriptors, each counted once."""
    sizes = {}
    for path in descriptors:
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            sizes[found.st_dev, found.st_ino] = found.st_blocks * BLOCK_BYTES
    return sum(sizes.values())


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, value = line.split(":", 1)
        yield name, value


def _kib(text: str) -> float:
    return float(text.split()[0]) * KIB

"""The disk of host memory: data directories, a writer and readers for each, and one report."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from kvd.clock import NS_PER_S, Clock
from kvd.disk.carrier import Carrier, HostCarrier
from kvd.disk.contract import Names, Places, Report, SegmentPlace, Space, StripsRead, StripsWritten
from kvd.disk.directories import DataDirectory
from kvd.disk.files import Files, OsFiles
from kvd.disk.pieces import Roots, Verdicts
from kvd.disk.read_jobs import ReadBatch
from kvd.disk.reading import Readers
from kvd.disk.segments import SegmentFiles
from kvd.disk.write_batch import Means, WriteBatch
from kvd.disk.writing import Writer
from kvd.errors import Fault, FaultKind
from kvd.format.segment import SEGMENT_MAX
from kvd.limits import DiskBounds

BLOCK_BYTES = 512  # The unit of st_blocks, whatever the file system's is.


class PosixDisk:
    """Strips by pread and pwrite; a `carrier` other than the host's moves other memory."""

    def __init__(
        self,
        directories: Sequence[DataDirectory],
        report: Report,
        clock: Clock,
        bounds: DiskBounds | None = None,
        means: tuple[Files, Carrier] | None = None,
    ) -> None:
        """Take over the directories, in the order that numbers them."""
        bounds = bounds or DiskBounds()
        files, carrier = means or host_means(OsFiles())
        self._directories, self._report, self._clock = list(directories), report, clock
        self._bounds, self._carrier = bounds, carrier
        self._segments = [
            SegmentFiles(directory, files, carrier, bounds.open_segments_max)
            for directory in directories
        ]
        self._writers = [
            Writer(number, directory, Means(segments, files, carrier), bounds, report)
            for number, (directory, segments) in enumerate(
                zip(directories, self._segments, strict=True)
            )
        ]
        self._readers = Readers(self._segments, carrier, clock, bounds, report)

    # ---- segments ----

    def make_segment(self, request: int, place: SegmentPlace) -> None:
        self._writers[place.directory].make(request, place)

    def recycle_segment(self, request: int, place: SegmentPlace) -> None:
        self._writers[place.directory].recycle(request, place)

    def drop_segment(self, request: int, directory: int, segment: int) -> None:
        self._writers[directory].drop(request, segment)

    # ---- strips ----

    def write_strips(self, batch: int, places: Places, names: Names) -> None:
        assert names.cells.all() and len(names.roots) == places.count
        verdicts, inside = self._sorted(places)
        if verdicts.items:
            self._report(StripsWritten(batch, *verdicts.columns()))
        for directory in np.unique(places.directories[inside]).tolist():
            items = inside[places.directories[inside] == directory].tolist()
            self._writers[directory].write(WriteBatch(batch, places, names, items))

    def read_strips(
        self, batch: int, places: Places, names: Names | None, deadline_ns: int
    ) -> None:
        assert names is None or len(names.roots) == places.count
        verdicts, inside = self._sorted(places)
        if verdicts.items:
            self._report(StripsRead(batch, *verdicts.columns(), busy=False))
        roots = None if names is None else Roots(names, self._carrier)
        self._readers.read(ReadBatch(batch, places, roots, deadline_ns), inside.tolist())

    def _sorted(self, places: Places) -> tuple[Verdicts, np.ndarray]:
        """Return verdicts on the items that name no place that can be, and the other items."""
        known = places.directories < len(self._directories)
        known &= places.segments <= SEGMENT_MAX
        sizes = np.array([each.segment_bytes for each in self._segments], np.uint64)
        limits = sizes[np.where(known, places.directories, 0)]
        good = known & (places.offsets + places.sizes <= limits)
        outside = np.flatnonzero(~good).tolist()
        verdicts = Verdicts(outside)
        fault = Fault(FaultKind.FORMAT, "a place outside of its segment or its directory")
        verdicts.fail(outside, fault)
        return verdicts, np.flatnonzero(good)

    # ---- the whole ----

    def probe(self, request: int, directory: int) -> None:
        self._writers[directory].probe(request)

    def space(self) -> tuple[Space, ...]:
        return tuple(
            _space(directory.path, segments.allocated_of_retired())
            for directory, segments in zip(self._directories, self._segments, strict=True)
        )

    def close(self) -> None:
        deadline_ns = self._clock.now_ns() + self._bounds.close_ns_max
        for writer in self._writers:
            writer.close()
        self._readers.close(deadline_ns)
        for writer, segments, directory in zip(
            self._writers, self._segments, self._directories, strict=True
        ):
            ended = writer.join(max(0.0, (deadline_ns - self._clock.now_ns()) / NS_PER_S))
            segments.close()
            if ended:
                directory.release()  # Else only the end of the process may let another one in.


def host_means(files: Files) -> tuple[Files, Carrier]:
    """Return `means` for host memory."""
    return files, HostCarrier(files)


def _space(path: Path, retired_bytes: int) -> Space:
    stat = os.statvfs(path)
    allocated = retired_bytes + allocated_bytes(path)
    return Space(os.stat(path).st_dev, stat.f_bavail * stat.f_frsize, allocated)


def allocated_bytes(path: Path) -> int:
    """Return the blocks of a directory and of everything under it; raise OSError.

    A file with holes counts as a whole: it may have them filled without asking again.
    """
    total = path.stat().st_blocks * BLOCK_BYTES
    with os.scandir(path) as entries:
        for entry in entries:
            # What is dropped while we look is not there.
            with suppress(FileNotFoundError):
                total += _allocated_of(entry)
    return total


def _allocated_of(entry: os.DirEntry[str]) -> int:
    if entry.is_dir(follow_symlinks=False):
        return allocated_bytes(Path(entry.path))
    stat = entry.stat(follow_symlinks=False)
    return max(stat.st_blocks * BLOCK_BYTES, stat.st_size)

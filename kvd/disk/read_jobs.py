"""What one thread reads before it reports: pieces of a batch, and how they are read and checked."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby

from kvd.disk.carrier import Carrier
from kvd.disk.contract import Places
from kvd.disk.files import fault_of
from kvd.disk.pieces import Pieces, Roots, Run, Verdicts
from kvd.disk.segments import Opened, SegmentFiles
from kvd.errors import Fault, FaultKind


class JobState(IntEnum):
    QUEUED = 0
    RUNNING = 1
    HANGING = 2  # Answered, and still running.
    DONE = 3


@dataclass(slots=True)
class Job:
    """Items of one directory."""

    batch: "ReadBatch"
    directory: int
    items: list[int] = field(default_factory=list)
    size_bytes: int = 0
    state: JobState = JobState.QUEUED


@dataclass(slots=True)
class ReadBatch:
    batch: int
    places: Places
    roots: Roots | None
    deadline_ns: int
    pieces: Pieces = field(init=False)
    jobs: list[Job] = field(default_factory=list)
    unanswered: int = 0  # Jobs.

    def __post_init__(self) -> None:
        self.pieces = Pieces.of(self.places)


def cut(batch: ReadBatch, items: list[int], job_bytes: int) -> Iterator[Job]:
    """Yield jobs over `items` in their order, each of one directory and about `job_bytes`."""
    directories = batch.places.directories.tolist()
    growing: dict[int, Job] = {}
    for item in items:
        directory, size = directories[item], batch.pieces.sizes[item]
        job = growing.get(directory)
        if job is None or job.size_bytes + size > job_bytes:
            if job is not None:
                yield job
            job = growing[directory] = Job(batch, directory)
        job.items.append(item)
        job.size_bytes += size
    yield from growing.values()


def read_job(job: Job, segments: SegmentFiles, carrier: Carrier) -> Verdicts:
    """Read all of a job's items; what failed is said of each, and only of it and its neighbours."""
    batch, verdicts = job.batch, Verdicts(job.items)
    for (segment, epoch), runs in groupby(batch.pieces.runs(job.items, job.size_bytes), _place_of):
        opened = segments.borrow(segment, epoch)
        if isinstance(opened, Fault):
            for run in runs:
                verdicts.fail(run.items, opened)
            continue
        for run in runs:
            fault = _read_run(run, opened, carrier)
            if fault is not None:
                verdicts.fail(run.items, fault)
        segments.give_back(opened)
    if batch.roots is not None:
        _check_roots(batch, batch.roots, verdicts)
    return verdicts


def _place_of(run: Run) -> tuple[int, int]:
    return run.segment, run.epoch


def _read_run(run: Run, opened: Opened, carrier: Carrier) -> Fault | None:
    try:
        carrier.read(opened.handle, run.spans, run.offset)
        # Strips of a later epoch may have been written over these while they were read.
        if opened.epoch != run.epoch:
            return Fault(FaultKind.GONE, f"{opened.path}: epoch {run.epoch} ended meanwhile")
    except OSError as error:
        return fault_of(error, opened.path)
    return None


def _check_roots(batch: ReadBatch, roots: Roots, verdicts: Verdicts) -> None:
    read = [i for i in verdicts.items if roots.cells[i] and not verdicts.failed(i)]
    for item in roots.unfit(read, batch.pieces):
        where = f"segment {batch.pieces.segments[item]}"
        verdicts.fail([item], Fault(FaultKind.CHECKSUM, f"{where}: a strip of another root"))

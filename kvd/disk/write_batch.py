"""How strips of one directory are written: compared with their roots, written, synced once."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvd.disk.carrier import Carrier
from kvd.disk.contract import Names, Places
from kvd.disk.files import Files, fault_of
from kvd.disk.pieces import Pieces, Roots, Run, Verdicts
from kvd.disk.segments import Opened, SegmentFiles
from kvd.errors import Fault, FaultKind
from kvd.limits import MIB

_RUN_BYTES_MAX = 4 * MIB  # One call to the kernel: long enough for any disk's full speed.


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """The part of a batch that is for one directory; `items` are places in the whole batch."""

    batch: int
    places: Places
    names: Names
    items: list[int]


@dataclass(frozen=True, slots=True)
class Means:
    segments: SegmentFiles
    files: Files
    carrier: Carrier


def write_batch(part: WriteBatch, means: Means) -> Verdicts:
    """Write and sync all strips that fit their roots; say of each other one what went wrong."""
    verdicts = Verdicts(part.items)
    pieces, roots = Pieces.of(part.places), Roots(part.names, means.carrier)
    unfit = Fault(FaultKind.CHECKSUM, "a strip in memory does not fit its root; it is not written")
    verdicts.fail(roots.unfit_strips(part.items, pieces), unfit)
    fit = [item for item in part.items if not verdicts.failed(item)]
    for runs in _by_segment(pieces.runs(fit, _RUN_BYTES_MAX)):
        opened = means.segments.borrow(runs[0].segment, runs[0].epoch)
        if isinstance(opened, Fault):
            _fail(runs, opened, verdicts)
            continue
        _write(opened, runs, means, verdicts)
        means.segments.give_back(opened)
    return verdicts


def _by_segment(runs: Iterator[Run]) -> list[list[Run]]:
    segments: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        segments.setdefault((run.segment, run.epoch), []).append(run)
    return list(segments.values())


def _write(opened: Opened, runs: list[Run], means: Means, verdicts: Verdicts) -> None:
    """Write the runs of one segment, then sync once; a failed sync is believed of all of them."""
    for run in runs:
        try:
            means.carrier.write(opened.handle, run.spans, run.offset)
        except OSError as error:
            verdicts.fail(run.items, fault_of(error, opened.path))
    try:
        means.files.sync(opened.descriptor)
    except OSError as error:
        _fail(runs, fault_of(error, opened.path), verdicts)


def _fail(runs: list[Run], fault: Fault, verdicts: Verdicts) -> None:
    for run in runs:
        verdicts.fail(run.items, fault)

"""What a data directory set held when the daemon ended, before anything else happens.

The catalog says what there is, the directories say which segments are: what either lacks is left
out and put right. No segment is read.
"""

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvd.arena.pages import pages_note
from kvd.catalog.contract import Changes, Contents
from kvd.catalog.environment import remove_catalog
from kvd.catalog.loading import load_catalog
from kvd.config import SsdSettings
from kvd.core.disk_events import Recovered
from kvd.core.state import SsdConfig
from kvd.daemon.budget import (
    SEGMENT_BYTES_DEFAULT,
    Budget,
    Places,
    default_bytes,
    divide,
    look,
)
from kvd.daemon.reconciling import Reconciled, in_parts, reconcile
from kvd.daemon.translating import recovered_of
from kvd.disk.directories import DataDirectory, arrange, home_of, open_directories
from kvd.disk.files import OsFiles, sync_directory
from kvd.disk.heads import segment_path
from kvd.disk.posix import BLOCK_BYTES
from kvd.disk.recognising import unusable
from kvd.errors import ErrorKind, Fault, FaultKind, KvdError
from kvd.format.records import SEGMENT, Meta
from kvd.format.rows import ROW
from kvd.units import human

_log = logging.getLogger("kvd.recovery")


@dataclass(slots=True)
class FoundTier:
    """Directories that are ours, in the order of their catalog; `purge` puts the catalog right.

    `recovered` can be large, and is given away once.
    """

    directories: list[DataDirectory]
    catalog: Path
    budget: Budget
    config: SsdConfig
    recovered: Recovered | None
    purge: tuple[Changes, ...] = field(default=())

    def give_recovered(self) -> Recovered:
        assert self.recovered is not None
        recovered, self.recovered = self.recovered, None
        return recovered

    def describe(self) -> str:
        """Return one line for a person, before what was recovered is given away."""
        assert self.recovered is not None
        paths = ", ".join(str(directory.path) for directory in self.directories)
        budget, recovered = self.budget, self.recovered
        files = len(recovered.segments) - len(recovered.lost)
        return (
            f"ssd {human(budget.size_bytes)} on {paths}: {len(recovered.rows.parents)} chunks in "
            f"{files} segments of {human(budget.segment_bytes)}, at most {budget.segments_max}"
        )


def find_tier(settings: SsdSettings) -> FoundTier:
    """Open or make the data directories and read their catalog; raise KvdError of one line."""
    with ExitStack() as undo:
        directories, budget, places = _open(settings, undo)
        catalog = home_of(directories)
        try:
            contents, damaged = _load(catalog, directories)
            directories = arrange(directories, contents.meta.directories)
            reconciled = reconcile(contents, [each.found_segments() for each in directories])
            _remove_orphans(directories, reconciled)
            if damaged:  # Last: segments without a catalog are not a start's to remove.
                remove_catalog(catalog)
        except OSError as error:
            raise unusable(Path(error.filename or catalog), error) from None
        _say_what_was_found(directories, contents, reconciled)
        purge = in_parts(reconciled.purge)
        uuids = tuple(directory.superblock.directory for directory in directories)
        if uuids != contents.meta.directories:
            # First: rows of a directory that the catalog does not know are not believed.
            purge = (Changes(directories=uuids), *purge)
        config = SsdConfig(
            len(directories),
            budget.segment_bytes,
            budget.segments_max,
            settings.daily_write_bytes,
            places.spare_bytes,
        )
        recovered = recovered_of(reconciled.contents, reconciled.lost)
        undo.pop_all()
    return FoundTier(directories, catalog, budget, config, recovered, purge)


def _open(settings: SsdSettings, undo: ExitStack) -> tuple[list[DataDirectory], Budget, Places]:
    """Return directories, whose release is in `undo`, and a budget that they can hold.

    A budget that is too small for new directories is refused before they are made.
    """
    paths = settings.directories
    try:
        places = look(paths)
    except OSError as error:
        raise unusable(Path(error.filename or paths[0]), error) from None
    size_bytes = settings.budget_bytes or default_bytes(places)
    segment_bytes = SEGMENT_BYTES_DEFAULT
    if places.is_new:
        segment_bytes = divide(places, size_bytes).segment_bytes
    directories = open_directories(paths, segment_bytes, OsFiles())
    for directory in directories:
        undo.callback(directory.release)
    budget = divide(places, size_bytes, directories[0].superblock.segment_bytes)
    if size_bytes > places.room_bytes:
        _log.warning(
            "ssd is %s, and %s can hold %s: less is used until there is room",
            human(size_bytes), ", ".join(map(str, paths)), human(places.room_bytes, down=True),
        )  # fmt: skip
    return directories, budget, places


def _load(path: Path, directories: list[DataDirectory]) -> tuple[Contents, bool]:
    """Return what the catalog holds, and whether it is damaged; nothing is changed.

    A damaged one holds nothing, nor does one that is not there yet. Raise UNAVAILABLE when it
    cannot be read, or is not there although it was: a mount may be missing.
    """
    contents = load_catalog(path)
    match contents:
        case Fault(FaultKind.FORMAT, message):
            _log.error("%s; all that was in the ssd tier is given up", message)
        case Fault(FaultKind.GONE, message):
            count = sum(len(directory.found_segments()) for directory in directories)
            if count:
                raise KvdError(
                    ErrorKind.UNAVAILABLE,
                    f"{message}, and {count} segments are; bring it back, or have the set begin "
                    "anew with kvd check --repair",
                )
        case Fault(_, message):
            remedy = "nothing was changed; start again when that is mended"
            raise KvdError(ErrorKind.UNAVAILABLE, f"{message}; {remedy}")
        case _:
            return contents, False
    nothing = Contents(Meta(), {}, np.empty(0, ROW), np.empty(0, SEGMENT), {}, Changes())
    return nothing, contents.kind == FaultKind.FORMAT


def _remove_orphans(directories: list[DataDirectory], reconciled: Reconciled) -> None:
    """Remove segments that no catalog knows, and say so; raise OSError."""
    files, count, size_bytes = OsFiles(), 0, 0
    for directory, orphans in zip(directories, reconciled.orphans, strict=True):
        for segment in orphans.tolist():
            path = segment_path(directory, segment)
            size_bytes += Path(path).stat().st_blocks * BLOCK_BYTES
            files.unlink(path)
        if len(orphans):
            sync_directory(files, str(directory.segments))
            count += len(orphans)
    if count:
        _log.info("%d segments that the catalog does not know are removed: %s are free again",
                  count, human(size_bytes))  # fmt: skip


def _say_what_was_found(
    directories: list[DataDirectory], contents: Contents, reconciled: Reconciled
) -> None:
    for note in (pages_note(), *(note for each in directories for note in each.notes)):
        if note:
            _log.warning("%s", note)
    for refusal, count in contents.refused.items():
        _log.warning("catalog: %d entries left out: %s", count, refusal)
    if reconciled.hurt:
        _log.warning("%d segments are gone, and with them the strips of %d chunks",
                     len(reconciled.lost), reconciled.hurt)  # fmt: skip

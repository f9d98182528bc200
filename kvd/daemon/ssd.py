"""Carries out the core's effects on the ssd tier: on data directories and on their catalog.

Decides nothing, blocks nowhere; every effect is answered by an event, from whatever thread.
"""

import logging
from collections.abc import Callable

import numpy as np

from kvd.arena.contract import Arena
from kvd.catalog import contract as catalog_contract
from kvd.catalog.committing import open_catalog
from kvd.clock import Clock
from kvd.core.disk_effects import (
    Commit,
    DiskEffect,
    MakeSegment,
    MeasureSpace,
    ProbeDirectory,
    ReadStrips,
    RecycleSegment,
    RemoveSegment,
    StripColumns,
    WriteStrips,
)
from kvd.core.disk_events import (
    Committed,
    DiskEvent,
    Probed,
    ReadReleased,
    SegmentDone,
    StripsRead,
    StripsWritten,
)
from kvd.daemon.recovery import FoundTier
from kvd.daemon.slab_memory import SlabMemory, Use
from kvd.daemon.space import SpaceLook
from kvd.daemon.translating import changes_of, names_of, places_of
from kvd.disk import contract as disk_contract
from kvd.disk.contract import Disk, Names, Places, SegmentPlace
from kvd.disk.posix import PosixDisk
from kvd.errors import ErrorKind, Fault, KvdError

_AT_START = -1  # The batch of what recovery changes in the catalog; the core's are not negative.

_log = logging.getLogger("kvd.ssd")


class SsdHand:
    """`post` takes events from any thread. Everything else here is called on the loop's thread."""

    def __init__(
        self,
        found: FoundTier,
        arena: Arena,
        clock: Clock,
        post: Callable[[DiskEvent], None],
        open_disk: Callable[..., Disk] = PosixDisk,
    ) -> None:
        """Take over the data directories and open their catalog; raise KvdError."""
        self._post, self._directories = post, found.directories
        self._uuids = tuple(d.superblock.directory for d in found.directories)
        self._memory = SlabMemory(arena)
        self._disk = open_disk(found.directories, self._on_report, clock)
        catalog = open_catalog(found.catalog, found.budget.map_bytes, self._on_committed, clock)
        if isinstance(catalog, Fault):
            self._disk.close()
            raise KvdError(ErrorKind.UNAVAILABLE, catalog.message)
        self._catalog = catalog
        for changes in found.purge:
            self._catalog.commit(_AT_START, changes)
        self._space = SpaceLook([directory.path for directory in found.directories], post)

    def carry_out(self, effect: DiskEffect) -> None:
        """Begin what the core asks for; raise what `fail` then makes an answer of."""
        match effect:
            case WriteStrips(batch, strips):
                places, names = self._hold(Use.WRITE, batch, strips)
                self._disk.write_strips(batch, places, names)
            case ReadStrips(batch, strips, deadline_ns):
                places, names = self._hold(Use.READ, batch, strips)
                self._disk.read_strips(batch, places, names, deadline_ns)
            case Commit(batch):
                self._catalog.commit(batch, changes_of(effect, self._uuids))
            case MakeSegment(request):
                self._disk.make_segment(request, _place_of(effect))
            case RecycleSegment(request):
                self._disk.recycle_segment(request, _place_of(effect))
            case RemoveSegment(request, directory, segment):
                self._disk.drop_segment(request, directory, segment)
            case ProbeDirectory(directory):
                self._disk.probe(directory, directory)
            case MeasureSpace():
                self._space.ask()

    def fail(self, effect: DiskEffect, fault: Fault) -> None:
        """Answer an effect that could not be begun.

        Strips that the disk has already are its to answer: a failure on the way there is a bug.
        """
        match effect:
            case WriteStrips(batch, strips):
                assert not self._memory.holds(Use.WRITE, batch), fault.message
                self._post(StripsWritten(batch, *_all_failed(strips, fault)))
            case ReadStrips(batch, strips):
                assert not self._memory.holds(Use.READ, batch), fault.message
                self._post(StripsRead(batch, *_all_failed(strips, fault), busy=False))
            case Commit(batch):
                self._post(Committed(batch, fault))
            case MakeSegment(request) | RecycleSegment(request) | RemoveSegment(request):
                self._post(SegmentDone(request, fault))
            case ProbeDirectory(directory):
                self._post(Probed(directory, fault))
            case MeasureSpace():
                self._post(Probed(0, fault))

    def forget_slab(self, slab: int) -> None:
        """Let a destroyed slab's memory go, once the disk does not use it any more."""
        self._memory.forget(slab)

    def close(self) -> None:
        """End everything within the bounds of disk and catalog."""
        self._space.close()
        # The disk lets the directories go: nobody else may have them while this catalog is written.
        if not self._catalog.close():
            for directory in self._directories:
                directory.keep()
        self._disk.close()

    def _hold(self, use: Use, batch: int, strips: StripColumns) -> tuple[Places, Names]:
        """Return what the disk needs; its memory is held until the batch's items are reported."""
        slabs = self._memory.map_slabs(np.unique(strips.slabs).tolist(), use)
        addresses = {slab: mapping.ctypes.data for slab, mapping in slabs.items()}
        places = places_of(strips, addresses.__getitem__)
        names = names_of(strips, whole=use == Use.WRITE)
        self._memory.hold(use, batch, slabs.values(), strips.count)
        return places, names

    # ---- reports, from any thread ----

    def _on_report(self, report: disk_contract.DiskReport) -> None:
        match report:
            case disk_contract.StripsWritten(batch, items, kinds, faults):
                self._memory.release(Use.WRITE, batch, len(items))
                self._post(StripsWritten(batch, items, kinds, faults))
            case disk_contract.StripsRead(batch, items, kinds, faults, busy):
                if not busy:
                    self._memory.release(Use.READ, batch, len(items))
                self._post(StripsRead(batch, items, kinds, faults, busy))
            case disk_contract.ReadReleased(batch, items):
                self._memory.release(Use.READ, batch, len(items))
                self._post(ReadReleased(batch, items))
            case disk_contract.SegmentDone(request, fault):
                self._post(SegmentDone(request, fault))
            case disk_contract.Probed(_, directory, fault):
                self._post(Probed(directory, fault))

    def _on_committed(self, committed: catalog_contract.Committed) -> None:
        for batch in committed.batches:
            if batch != _AT_START:
                self._post(Committed(batch, committed.fault))
            elif committed.fault is not None:
                _log.warning("what was found wrong stays: %s", committed.fault.message)


def _place_of(effect: MakeSegment | RecycleSegment) -> SegmentPlace:
    return SegmentPlace(effect.directory, effect.segment, effect.epoch, effect.plane_class)


def _all_failed(
    strips: StripColumns, fault: Fault
) -> tuple[np.ndarray, np.ndarray, tuple[Fault, ...]]:
    """Return items, kinds and faults for a report."""
    kinds = np.full(strips.count, fault.kind, np.uint8)
    return np.arange(strips.count, dtype=np.int64), kinds, (fault,)

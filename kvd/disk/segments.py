"""The open segment files of one data directory, within a bound, and the epoch of each.

A head is read once for each opening. Any thread may borrow a file; whoever changes one has it
forgotten, and then nobody who still holds it can believe what he read.
"""

import os
import threading
from dataclasses import dataclass, field

from kvd.disk.carrier import Carrier
from kvd.disk.directories import DataDirectory
from kvd.disk.files import Files, fault_of
from kvd.disk.heads import read_head, segment_flags, segment_path
from kvd.errors import Fault, FaultKind

_NO_EPOCH = 0
_BLOCK_BYTES = 512


@dataclass(slots=True, eq=False)
class Opened:
    """One open segment file; `epoch` 0 while it is not known, or never again."""

    path: str
    descriptor: int = -1
    handle: object = None
    epoch: int = _NO_EPOCH
    users: int = 0
    opening: threading.Lock = field(default_factory=threading.Lock)


class SegmentFiles:
    def __init__(
        self, directory: DataDirectory, files: Files, carrier: Carrier, open_max: int
    ) -> None:
        self._directory, self._files, self._carrier = directory, files, carrier
        self._open_max = open_max
        self._lock = threading.Lock()
        self._opened: dict[int, Opened] = {}  # Used last comes last.
        self._retired: set[Opened] = set()  # Out of the table, and still in somebody's hands.

    @property
    def path(self) -> str:
        return str(self._directory.path)

    @property
    def segment_bytes(self) -> int:
        return self._directory.superblock.segment_bytes

    def borrow(self, segment: int, epoch: int) -> Opened | Fault:
        """Return the open file of a segment of this epoch, to be given back, or a fault."""
        with self._lock:
            opened = self._opened.pop(segment, None)
            if opened is None:
                opened = Opened(segment_path(self._directory, segment))
            self._opened[segment] = opened
            opened.users += 1
        fault = self._open(opened, segment)
        if fault is None and opened.epoch != epoch:
            message = f"{opened.path}: epoch {epoch} is stale, {opened.epoch} is in its place"
            fault = Fault(FaultKind.GONE, message)
        if fault is not None:
            self.give_back(opened)
            return fault
        return opened

    def give_back(self, opened: Opened) -> None:
        with self._lock:
            opened.users -= 1
            if opened in self._retired:
                self._close_idle(opened)
            self._keep_within_bound()

    def forget(self, segment: int) -> None:
        """Have the next borrower open the file again; nobody who has it now can trust it."""
        with self._lock:
            opened = self._opened.pop(segment, None)
            if opened is not None:
                opened.epoch = _NO_EPOCH
                self._retired.add(opened)
                self._close_idle(opened)

    def allocated_of_retired(self) -> int:
        """Return the bytes of files without a name, which only an open descriptor keeps."""
        with self._lock:
            stats = [os.fstat(o.descriptor) for o in self._retired if o.descriptor >= 0]
        return sum(stat.st_blocks * _BLOCK_BYTES for stat in stats if stat.st_nlink == 0)

    def close(self) -> None:
        """Close what nobody uses; a thread that hangs keeps its own until the process ends."""
        with self._lock:
            segments = list(self._opened)
        for segment in segments:
            self.forget(segment)

    def _open(self, opened: Opened, segment: int) -> Fault | None:
        """Open the file and read its head, unless that was done."""
        if opened.epoch != _NO_EPOCH:
            return None
        with opened.opening:
            if opened.epoch != _NO_EPOCH:
                return None
            try:
                return self._open_now(opened, segment)
            except OSError as error:
                return fault_of(error, opened.path)

    def _open_now(self, opened: Opened, segment: int) -> Fault | None:
        if opened.descriptor < 0:
            flags = segment_flags(self._directory)
            opened.descriptor = self._files.open(opened.path, flags)
        head = read_head(self._files, opened.descriptor, self._directory, segment)
        if isinstance(head, Fault):
            return head
        if opened.handle is None:
            opened.handle = self._carrier.open(opened.path, opened.descriptor)
        with self._lock:
            if opened in self._retired:
                return Fault(FaultKind.GONE, f"{opened.path}: it is being reused")
            opened.epoch = head.epoch
        return None

    def _close_idle(self, opened: Opened) -> None:
        if opened.users == 0:
            self._retired.discard(opened)
            if opened.handle is not None:
                self._carrier.close(opened.handle)
            if opened.descriptor >= 0:
                os.close(opened.descriptor)

    def _keep_within_bound(self) -> None:
        excess = len(self._opened) - self._open_max
        if excess <= 0:
            return
        idle = [segment for segment, opened in self._opened.items() if opened.users == 0]
        for segment in idle[:excess]:
            self._close_idle(self._opened.pop(segment))

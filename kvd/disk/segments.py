"""The segment files of one data directory: made, opened, given another epoch, removed.

Keeps descriptors open, within a bound, and knows the epoch of each; a head is read once for each
opening. Every change of a file is made by one thread; borrowing may be done by any.
"""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from kvd.disk.carrier import Carrier
from kvd.disk.contract import SegmentPlace
from kvd.disk.directories import DataDirectory
from kvd.disk.files import Files, fault_of, read_page, sync_directory, write_page
from kvd.errors import Fault, FaultKind
from kvd.format.page import Refused
from kvd.format.segment import SegmentHead, pack_segment_head, parse_segment_head, segment_name

_NO_EPOCH = 0


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
        self._flags = os.O_RDWR | (os.O_DIRECT if directory.direct else 0)
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
            opened = self._opened.pop(segment, None) or Opened(self._path(segment))
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
        return sum(stat.st_blocks * 512 for stat in stats if stat.st_nlink == 0)

    def close(self) -> None:
        """Close what nobody uses; a thread that hangs keeps its own until the process ends."""
        with self._lock:
            segments = list(self._opened)
        for segment in segments:
            self.forget(segment)

    # ---- changes, by one thread ----

    def make(self, place: SegmentPlace) -> Fault | None:
        """Make a file with all its space and a head; leave none behind when that fails."""
        path = self._path(place.segment)
        try:
            descriptor = self._files.open(path, self._flags | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return Fault(FaultKind.FORMAT, f"{path}: there is one already")
        except OSError as error:
            return fault_of(error, path)
        try:
            self._reserve(descriptor)
            self._write_head(descriptor, place)
            sync_directory(self._files, str(self._directory.segments))
        except OSError as error:
            self._remove_quietly(path)
            return fault_of(error, path)
        finally:
            os.close(descriptor)
        return None

    def recycle(self, place: SegmentPlace) -> Fault | None:
        """Write a head with a higher epoch. After a fault the old strips are stale all the same."""
        path = self._path(place.segment)
        try:
            descriptor = self._files.open(path, self._flags)
            try:
                fault = self._refuse_reuse(descriptor, path, place)
                if fault is None:
                    self._write_head(descriptor, place)
            finally:
                os.close(descriptor)
                # Also whoever opened it a moment ago: strips may be overwritten from here on.
                self.forget(place.segment)
        except OSError as error:
            return fault_of(error, path)
        return fault

    def drop(self, segment: int) -> Fault | None:
        path = self._path(segment)
        self.forget(segment)
        try:
            self._files.unlink(path)
            sync_directory(self._files, str(self._directory.segments))
        except FileNotFoundError:
            return None
        except OSError as error:
            return fault_of(error, path)
        return None

    # ---- inside ----

    def _path(self, segment: int) -> str:
        return str(self._directory.segments / segment_name(segment))

    def _open(self, opened: Opened, segment: int) -> Fault | None:
        """Open the file and read its head, unless that was done."""
        if opened.epoch != _NO_EPOCH:
            return None
        with opened.opening:
            if opened.epoch != _NO_EPOCH:
                return None
            try:
                if opened.descriptor < 0:
                    opened.descriptor = self._files.open(opened.path, self._flags)
                head = self._read_head(opened.descriptor, opened.path, segment)
                if isinstance(head, Fault):
                    return head
                if opened.handle is None:
                    opened.handle = self._carrier.open(opened.path, opened.descriptor)
            except OSError as error:
                return fault_of(error, opened.path)
            with self._lock:
                if opened in self._retired:
                    return Fault(FaultKind.GONE, f"{opened.path}: it is being reused")
                opened.epoch = head.epoch
        return None

    def _read_head(self, descriptor: int, path: str, segment: int) -> SegmentHead | Fault:
        parsed = parse_segment_head(read_page(self._files, descriptor))
        match parsed:
            case Refused(_, message):
                return Fault(FaultKind.FORMAT, f"{path} {message}")
        ours = (self._directory.superblock.directory, segment, self.segment_bytes)
        if (parsed.directory, parsed.segment, parsed.segment_bytes) != ours:
            return Fault(FaultKind.FORMAT, f"{path}: its head is another segment's")
        return parsed

    def _refuse_reuse(self, descriptor: int, path: str, place: SegmentPlace) -> Fault | None:
        """Refuse to take an epoch back; a head that cannot be read has none to compare with."""
        head = self._read_head(descriptor, path, place.segment)
        if isinstance(head, SegmentHead) and head.epoch > place.epoch:
            message = f"{path}: epoch {place.epoch} is not higher than {head.epoch}"
            return Fault(FaultKind.FORMAT, message)
        return None

    def _reserve(self, descriptor: int) -> None:
        if self._directory.preallocates:
            self._files.allocate(descriptor, self.segment_bytes)
        else:
            os.ftruncate(descriptor, self.segment_bytes)

    def _write_head(self, descriptor: int, place: SegmentPlace) -> None:
        uuid = self._directory.superblock.directory
        head = SegmentHead(uuid, place.segment, place.epoch, place.plane_class, self.segment_bytes)
        write_page(self._files, descriptor, pack_segment_head(head))

    def _remove_quietly(self, path: str) -> None:
        with suppress(OSError):  # Else it is an orphan, found when the directory is opened again.
            self._files.unlink(path)

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

"""The simulated hand of disk and catalog: takes the core's effects, answers with events, in time.

One queue of changes for each directory and one for the catalog, as the real hands have; reads
are jobs beside each other. Words are copied when it happens, in parts: in between anything may.
"""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Protocol

from kvd.clock import NS_PER_MS
from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core.state import SsdConfig
from kvd.errors import Fault, FaultKind
from kvd.testing.media import Media, SegmentKey
from kvd.testing.memory import FLIP, Memory
from kvd.testing.oracles import require
from kvd.testing.pieces import Piece, columns, pieces_of
from kvd.testing.tier_reads import ReadJob
from kvd.testing.weather import CATALOG, Weather

Task = Iterator[int]  # Yields how long it takes to its next part, in nanoseconds.
GONE = Fault(FaultKind.GONE, "another epoch, or no segment")
JUNK = 0xDDDD_DDDD_DDDD_DDDD  # What a write that failed, or a crash, may leave behind.


class Host(Protocol):
    """Who lends time, dram and chance, and is told."""

    rng: Random
    memory: Memory
    now_ns: int

    def after(self, delay_ns: int, action: Callable[[], object]) -> None: ...

    def tell(self, event: told.DiskEvent) -> object: ...

    def saw(self, situation: str) -> None: ...


class Judge:
    """Is told what the core caused at the step when it happens; this one has nothing against it."""

    def on_stale(self, piece: Piece) -> None:
        """A piece names a segment that is not there in that life of it."""

    def on_wrong(self, piece: Piece, found: str) -> None:
        """A hand finds other words than those of the piece's strip, in dram or on disk."""

    def on_damaged(self, piece: Piece) -> None:
        """A hand reports that the table of a piece is none of its strip's."""

    def on_written(self, piece: Piece) -> None:
        """A strip is on disk and synced; so it will be reported."""

    def on_committed(self, commit: asked.Commit) -> None:
        """The catalog holds what a commit says, or some of its drops, for good."""


class Tier:
    def __init__(
        self, host: Host, config: SsdConfig, media: Media, weather: Weather, judge: Judge
    ) -> None:
        self.host, self.config, self.media, self.weather = host, config, media, weather
        self.judge = judge
        self.writing: dict[tuple[int, int], Piece] = {}  # Not reported yet, by batch and item.
        self.reading: dict[tuple[int, int], Piece] = {}  # What may yet write into dram.
        self.given_up: set[tuple[int, int]] = set()  # Of them, what was reported as hung.
        self.making: set[SegmentKey] = set()
        self.faults_told = 0
        self._queues = {n: deque[tuple[int, Task]]() for n in (CATALOG, *range(config.directories))}

    @property
    def is_idle(self) -> bool:
        """Return whether it does nothing but look at its health."""
        return not (self.reading or self.writing or self.making or self._queues[CATALOG])

    def is_hanging(self, bound_ns: int) -> bool:
        """Return whether something was asked for so long ago, and waits."""
        asked_ns = [since_ns for tasks in self._queues.values() for since_ns, _ in tasks]
        return any(self.host.now_ns - since_ns >= bound_ns for since_ns in asked_ns)

    def unreported_reads(self) -> list[Piece]:
        return [piece for key, piece in self.reading.items() if key not in self.given_up]

    def carry_out(self, effect: asked.DiskEffect) -> None:
        match effect:
            case asked.WriteStrips():
                self._write(effect)
            case asked.ReadStrips():
                self._read(effect)
            case asked.MakeSegment(directory=directory, segment=segment):
                self.making.add((directory, segment))
                self._enqueue(directory, self._make(effect))
            case asked.RecycleSegment(directory=directory):
                self._enqueue(directory, self._recycle(effect))
            case asked.RemoveSegment(directory=directory):
                self._enqueue(directory, self._remove(effect))
            case asked.ProbeDirectory(directory=directory):
                self._enqueue(directory, self._probe(directory))
            case asked.MeasureSpace():
                self.host.after(self.delay_ns(), self._measure)
            case asked.Commit():
                self._enqueue(CATALOG, self._commit(effect))

    def tell(self, event: told.DiskEvent) -> None:
        faults = getattr(event, "faults", ()) or (getattr(event, "fault", None),)
        self.faults_told += any(fault is not None for fault in faults)
        self.host.tell(event)

    def crash(self) -> None:
        """Leave what the power cut left: pages being written hold any mixture."""
        for piece in self.writing.values():
            self._tear(piece)

    # ---- time ----

    def delay_ns(self) -> int:
        slow = self.weather.dice(self.weather.chances.slow)
        return self.host.rng.choice((40, 300, 1500) if slow else (0, 1, 3, 10)) * NS_PER_MS

    def _enqueue(self, queue: int, task: Task) -> None:
        self._queues[queue].append((self.host.now_ns, task))
        if len(self._queues[queue]) == 1:
            self._advance(queue)

    def _advance(self, queue: int) -> None:
        """Let the first task go on; the next one begins when it has ended."""
        tasks = self._queues[queue]
        while tasks:
            delay_ns = next(tasks[0][1], None)
            if delay_ns is not None:
                stall_ns = self.weather.stall_ns()
                self.host.after(delay_ns + stall_ns, lambda: self._advance(queue))
                return
            tasks.popleft()

    # ---- segments ----

    def _trouble(self, directory: int, chance: float) -> Fault | None:
        return self.weather.trouble(directory, self.host.now_ns, chance)

    def _make(self, effect: asked.MakeSegment) -> Task:
        yield self.delay_ns()
        key, media = (effect.directory, effect.segment), self.media
        fault = self._trouble(effect.directory, self.weather.chances.write)
        if key in media.segments:
            fault = Fault(FaultKind.FORMAT, f"segment {key} is there already")
        elif fault is None and self._free_bytes(effect.directory) < self.config.segment_bytes:
            fault = Fault(FaultKind.NO_SPACE, "the device is full")
        # A file whose making failed is removed; that may fail as well.
        if fault is None or (fault.kind == FaultKind.IO and self.weather.dice(0.2)):
            media.make(key, effect.epoch, effect.plane_class, JUNK)
        yield self.delay_ns()
        self.making.remove(key)
        self.tell(told.SegmentDone(effect.request, fault))

    def _recycle(self, effect: asked.RecycleSegment) -> Task:
        yield self.delay_ns()
        segment = self.media.segments.get((effect.directory, effect.segment))
        fault = self._trouble(effect.directory, self.weather.chances.write)
        if segment is None:
            fault = Fault(FaultKind.GONE, "no such segment")
        elif segment.epoch > effect.epoch:
            fault = Fault(FaultKind.FORMAT, f"epoch {segment.epoch} is there already")
        elif fault is None or self.weather.dice(0.5):
            segment.epoch, segment.plane_class = effect.epoch, effect.plane_class
        yield self.delay_ns()
        self.tell(told.SegmentDone(effect.request, fault))

    def _remove(self, effect: asked.RemoveSegment) -> Task:
        yield self.delay_ns()
        fault = self._trouble(effect.directory, self.weather.chances.write)
        if fault is None or self.weather.dice(0.5):
            self.media.segments.pop((effect.directory, effect.segment), None)
        yield self.delay_ns()
        self.tell(told.SegmentDone(effect.request, fault))

    def _probe(self, directory: int) -> Task:
        yield self.delay_ns()
        fault = self.weather.health(directory, self.host.now_ns)
        self.tell(told.Probed(directory, fault))

    def _measure(self) -> None:
        for directory in range(self.config.directories):
            fault = self.weather.health(directory, self.host.now_ns)
            if fault is not None and fault.kind == FaultKind.IO:
                self.tell(told.Probed(directory, fault))
                return
        free = tuple(self._free_bytes(d) for d in range(self.config.directories))
        self.tell(told.SpaceSeen(self.weather.devices, free))

    def _free_bytes(self, directory: int) -> int:
        device = self.weather.devices[directory]
        mine = [key for key in self.media.segments if self.weather.devices[key[0]] == device]
        return self.weather.free_bytes(device, len(mine) * self.config.segment_bytes)

    # ---- writing ----

    def _write(self, effect: asked.WriteStrips) -> None:
        pieces = pieces_of(effect.strips, self.host.memory)
        for piece in pieces:
            self.writing[effect.batch, piece.item] = piece
        for directory in sorted({piece.place.directory for piece in pieces}):
            part = [piece for piece in pieces if piece.place.directory == directory]
            self._enqueue(directory, self._write_part(effect.batch, directory, part))

    def _write_part(self, batch: int, directory: int, pieces: list[Piece]) -> Task:
        yield self.delay_ns()
        faults: dict[int, Fault] = {}
        for piece in pieces:
            if (fault := self._refusal(piece)) is not None:
                faults[piece.item] = fault
                continue
            middle = self.host.rng.randint(0, piece.sectors)
            self._copy_out(piece, 0, middle)
            if self.weather.dice(0.3):
                yield self.delay_ns()
            self._copy_out(piece, middle, piece.sectors)
            fault = self._trouble(directory, self.weather.chances.write)
            if fault is not None:
                faults[piece.item] = fault
                self._tear(piece)
        yield self.delay_ns()
        if fault := self.weather.health(directory, self.host.now_ns):
            faults |= {piece.item: fault for piece in pieces}  # The sync failed.
            for piece in pieces:
                self._tear(piece)
        for piece in pieces:
            del self.writing[batch, piece.item]
            if piece.item in faults:
                continue
            self.judge.on_written(piece)
            if self.weather.dice(self.weather.chances.rot):
                self._rot(piece)
        self.tell(told.StripsWritten(batch, *columns(pieces, faults)))

    def _refusal(self, piece: Piece) -> Fault | None:
        """Return why a strip is not written at all."""
        if not self.media.has(piece.place):
            self.judge.on_stale(piece)
            return GONE
        fault = piece.damage(piece.in_dram(0, piece.sectors))
        if fault is not None:
            self.host.saw("a strip refused by its root")
            self.judge.on_damaged(piece)
        return fault

    def _copy_out(self, piece: Piece, begin: int, end: int) -> None:
        found = piece.wrong_words(piece.in_dram(begin, end), begin)
        if found is not None:
            self.judge.on_wrong(piece, f"a write found {self.host.memory.origin(found)}")
        piece.on_disk(self.media, begin, end)[:] = piece.in_dram(begin, end)

    def _tear(self, piece: Piece) -> None:
        if self.media.has(piece.place):
            words, rng = piece.on_disk(self.media, 0, piece.sectors), self.host.rng
            begin = rng.randint(0, piece.sectors)
            words[begin : rng.randint(begin, piece.sectors)] = JUNK

    def _rot(self, piece: Piece) -> None:
        """Have one word damaged for good, after it was written well."""
        words = piece.on_disk(self.media, 0, piece.sectors)
        words[self.host.rng.randrange(piece.sectors)] |= FLIP

    # ---- reading ----

    def _read(self, effect: asked.ReadStrips) -> None:
        pieces = pieces_of(effect.strips, self.host.memory)
        require(effect.deadline_ns >= self.host.now_ns, "a read whose time is over")
        for piece in pieces:
            self.reading[effect.batch, piece.item] = piece
        while pieces:
            count = self.host.rng.randint(1, len(pieces))
            ReadJob(self, effect, pieces[:count]).start()
            del pieces[:count]

    # ---- catalog ----

    def _commit(self, effect: asked.Commit) -> Task:
        yield self.delay_ns()
        catalog, drops_only = self.media.catalog, not effect.rows.parents
        fault = self._trouble(CATALOG, self.weather.chances.commit)
        if fault is not None and fault.kind == FaultKind.NO_SPACE and drops_only:
            fault = None  # A full map has room for drops.
        if fault is None or self.weather.dice(0.3):
            if fault is not None:
                self.host.saw("a failed commit that is durable")
            catalog.apply(effect)
            self.judge.on_committed(effect)
        elif drops_only and self.weather.dice(0.2):
            catalog.apply_some_drops(effect, self.host.rng)
            self.judge.on_committed(effect)
        yield self.delay_ns()
        self.tell(told.Committed(effect.batch, fault))

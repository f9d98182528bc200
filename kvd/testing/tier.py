"""The simulated hand of disk and catalog: takes the core's effects, answers with events, in time.

One queue of changes for each directory and one for the catalog, as the real hands have; reads
are jobs beside each other. Words are copied when it happens, in parts: in between anything may.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from kvd.clock import NS_PER_MS
from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core.state import SsdConfig
from kvd.errors import Fault, FaultKind
from kvd.testing import tier_changes as changes
from kvd.testing.media import Media, SegmentKey
from kvd.testing.memory import Memory
from kvd.testing.oracles import require
from kvd.testing.pieces import Piece, pieces_of
from kvd.testing.tier_reads import ReadJob
from kvd.testing.weather import CATALOG, Weather


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
        self._queues = {
            n: deque[tuple[int, changes.Task]]() for n in (CATALOG, *range(config.directories))
        }

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
                self._enqueue(directory, changes.make(self, effect))
            case asked.RecycleSegment(directory=directory):
                self._enqueue(directory, changes.recycle(self, effect))
            case asked.RemoveSegment(directory=directory):
                self._enqueue(directory, changes.remove(self, effect))
            case asked.ProbeDirectory(directory=directory):
                self._enqueue(directory, changes.probe(self, directory))
            case asked.MeasureSpace():
                self.host.after(self.delay_ns(), self._measure)
            case asked.Commit():
                self._enqueue(CATALOG, changes.commit(self, effect))

    def tell(self, event: told.DiskEvent) -> None:
        faults = getattr(event, "faults", ()) or (getattr(event, "fault", None),)
        self.faults_told += any(fault is not None for fault in faults)
        self.host.tell(event)

    def crash(self) -> None:
        """Leave what the power cut left."""
        for situation in self.media.crash(self.host.rng):
            self.host.saw(situation)

    # ---- time ----

    def delay_ns(self) -> int:
        slow = self.weather.dice(self.weather.chances.slow)
        return self.host.rng.choice((40, 300, 1500) if slow else (0, 1, 3, 10)) * NS_PER_MS

    def _enqueue(self, queue: int, task: changes.Task) -> None:
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

    # ---- what is there, and how well ----

    def trouble(self, directory: int, chance: float) -> Fault | None:
        return self.weather.trouble(directory, self.host.now_ns, chance)

    def _measure(self) -> None:
        for directory in range(self.config.directories):
            fault = self.weather.health(directory, self.host.now_ns)
            if fault is not None and fault.kind == FaultKind.IO:
                self.tell(told.Probed(directory, fault))
                return
        free = tuple(self.free_bytes(d) for d in range(self.config.directories))
        self.tell(told.SpaceSeen(self.weather.devices, free))

    def free_bytes(self, directory: int) -> int:
        device = self.weather.devices[directory]
        mine = [key for key in self.media.segments if self.weather.devices[key[0]] == device]
        return self.weather.free_bytes(device, len(mine) * self.config.segment_bytes)

    # ---- strips ----

    def _write(self, effect: asked.WriteStrips) -> None:
        pieces = pieces_of(effect.strips, self.host.memory)
        for piece in pieces:
            self.writing[effect.batch, piece.item] = piece
        for directory in sorted({piece.place.directory for piece in pieces}):
            part = [piece for piece in pieces if piece.place.directory == directory]
            self._enqueue(directory, changes.write(self, effect.batch, directory, part))

    def _read(self, effect: asked.ReadStrips) -> None:
        pieces = pieces_of(effect.strips, self.host.memory)
        require(effect.deadline_ns >= self.host.now_ns, "a read whose time is over")
        for piece in pieces:
            self.reading[effect.batch, piece.item] = piece
        while pieces:
            count = self.host.rng.randint(1, len(pieces))
            ReadJob(self, effect, pieces[:count]).start()
            del pieces[:count]

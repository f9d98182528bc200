"""An ssd tier under a check, at the level of the core's effects and events.

A rig lends dram, carries effects out, collects events, and restarts what is under test on the
same data.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.errors import Fault
from kvd.identity import Keyspace
from kvd.limits import PAGE_BYTES
from kvd.types import CLASS_COUNT, PlaneClass, SegmentState

DIRECTORIES = 2
SEGMENT_PAGES = 64
SEGMENT_BYTES = SEGMENT_PAGES * PAGE_BYTES
GOOD = 0
WAIT_NS = 20 * 10**9


@dataclass(frozen=True, slots=True)
class Source:
    """One strip with its bytes in dram, and what its root binds."""

    name: asked.LaneName
    chain: bytes
    plane_class: PlaneClass
    generation: int
    profile: int
    root: int
    slab: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class At:
    """A place on disk, from a page on."""

    page: int
    directory: int = 0
    segment: int = 1
    epoch: int = 1


class Rig(Protocol):
    keyspace: tuple[Keyspace, str]
    events: list[told.DiskEvent]
    recovered: told.Recovered  # Of the last start.

    def make_strip(
        self, number: int, plane_class: PlaneClass, pages: int, *, damaged: bool = False
    ) -> Source:
        """Return a strip of chunk `number` of one generation, its bytes in dram; the root of a
        `damaged` one is another strip's."""
        ...

    def give_room(self, size_bytes: int) -> tuple[int, int]:
        """Return slab and offset of dram that nothing was put in."""
        ...

    def holds(self, slab: int, offset: int, source: Source, begin: int, size: int) -> bool:
        """Return whether dram holds `size` bytes of a strip from `begin` on."""
        ...

    def carry_out(self, effect: asked.DiskEffect) -> None: ...

    def settle(self, done: Callable[[], bool]) -> None:
        """Let its work proceed until `done`; fail after a bounded time."""
        ...

    def restart(self) -> None:
        """End what runs, and start it again on the same data."""
        ...

    def deadline_ns(self, wait_ns: int) -> int:
        """Return the time so far from now."""
        ...


class Bench:
    """A tier under a check, with numbers for what it is asked."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self._number = rig, 0

    def number(self) -> int:
        self._number += 1
        return self._number

    # ---- segments ----

    def make(self, at: At = At(0), plane_class: PlaneClass = PlaneClass.ANCHOR) -> Fault | None:
        make = asked.MakeSegment
        return self._change(make, at.directory, at.segment, at.epoch, plane_class)

    def recycle(self, at: At, plane_class: PlaneClass = PlaneClass.ANCHOR) -> Fault | None:
        recycle = asked.RecycleSegment
        return self._change(recycle, at.directory, at.segment, at.epoch, plane_class)

    def remove(self, at: At = At(0)) -> Fault | None:
        return self._change(asked.RemoveSegment, at.directory, at.segment)

    def _change(self, kind: type, *fields: object) -> Fault | None:
        request = self.number()
        self.rig.carry_out(kind(request, *fields))

        def found() -> list[told.SegmentDone]:
            events = list(self.rig.events)
            return [e for e in events if isinstance(e, told.SegmentDone) and e.request == request]

        self.rig.settle(lambda: bool(found()))
        [event] = found()
        return event.fault

    # ---- strips ----

    def write(self, sources: list[Source], places: list[At]) -> list[int]:
        """Write whole strips and return the kind of each."""
        pieces = [(s, at, 0, s.size, s.slab, s.offset) for s, at in _pairs(sources, places)]
        batch = self.number()
        self.rig.carry_out(asked.WriteStrips(batch, _columns(pieces)))
        return self._kinds(told.StripsWritten, batch, len(pieces))

    def read(
        self, sources: list[Source], places: list[At], begin: int = 0, wait_ns: int = WAIT_NS
    ) -> tuple[list[int], list[bool]]:
        """Read strips from `begin` on; return the kind of each, and whether its bytes are right."""
        rooms = [self.rig.give_room(source.size - begin) for source in sources]
        pieces = [
            (s, replace(at, page=at.page + begin // PAGE_BYTES), begin, s.size - begin, *room)
            for (s, at), room in zip(_pairs(sources, places), rooms, strict=True)
        ]
        batch, deadline_ns = self.number(), self.rig.deadline_ns(wait_ns)
        self.rig.carry_out(asked.ReadStrips(batch, _columns(pieces), deadline_ns))
        kinds = self._kinds(told.StripsRead, batch, len(pieces))
        right = [
            self.rig.holds(*room, source, begin, source.size - begin)
            for room, source in zip(rooms, sources, strict=True)
        ]
        return kinds, right

    def _kinds(self, kind: type, batch: int, count: int) -> list[int]:
        def reports() -> list:
            return [e for e in list(self.rig.events) if isinstance(e, kind) and e.batch == batch]

        self.rig.settle(lambda: sum(len(r.items) for r in reports()) >= count)
        found: dict[int, int] = {}
        for report in reports():
            told_kinds = dict(zip(report.items.tolist(), report.kinds.tolist(), strict=True))
            assert not found.keys() & told_kinds.keys(), "an item was reported twice"
            assert {f.kind for f in report.faults} == {k for k in told_kinds.values() if k}
            found |= told_kinds
        assert sorted(found) == list(range(count))
        return [found[item] for item in range(count)]

    # ---- catalog ----

    def commit(
        self,
        strips: list[tuple[Source, At]] | tuple = (),
        dropped: tuple[Source, ...] = (),
        segments: tuple[asked.SegmentRecord, ...] = (),
        removed: tuple[tuple[int, int], ...] = (),
        generation: int = 1000,
    ) -> Fault | None:
        """Commit one row for each chunk of which there are strips."""
        batch = self.number()
        names = tuple(dict.fromkeys(source.name for source in dropped))
        name_of = np.array([names.index(s.name) for s in dropped], np.uint32)
        drops = asked.RowKeys(names, name_of, [source.chain for source in dropped])
        rows, keyspaces = rows_of(list(strips)), (self.rig.keyspace,)
        self.rig.carry_out(
            asked.Commit(batch, rows, drops, segments, removed, keyspaces, generation, (7, 4096))
        )

        def found() -> list[told.Committed]:
            events = list(self.rig.events)
            return [e for e in events if isinstance(e, told.Committed) and e.batch == batch]

        self.rig.settle(lambda: bool(found()))
        [event] = found()
        return event.fault

    def restart(self) -> told.Recovered:
        self.rig.restart()
        return self.rig.recovered


def _pairs(sources: list[Source], places: list[At]) -> list[tuple[Source, At]]:
    return list(zip(sources, places, strict=True))


def _columns(pieces: list[tuple[Source, At, int, int, int, int]]) -> asked.StripColumns:
    sources, places, begins, sizes, slabs, offsets = zip(*pieces, strict=True)
    names = tuple(dict.fromkeys(source.name for source in sources))
    return asked.StripColumns(
        names,
        np.array([names.index(source.name) for source in sources], np.uint32),
        [source.chain for source in sources],
        np.array([source.plane_class for source in sources], np.uint8),
        np.array([source.generation for source in sources], np.uint64),
        np.array([source.profile for source in sources], np.uint64),
        np.array([source.root for source in sources], np.uint64),
        np.array(begins, np.uint32),
        np.array([at.directory for at in places], np.uint8),
        np.array([at.segment for at in places], np.uint32),
        np.array([at.epoch for at in places], np.uint32),
        np.array([at.page * PAGE_BYTES for at in places], np.uint64),
        np.array(slabs, np.uint32),
        np.array(offsets, np.uint64),
        np.array(sizes, np.uint32),
    )


def rows_of(strips: list[tuple[Source, At]]) -> asked.RowColumns:
    """Return rows, in the order of their chunks, of the strips of each."""
    chunks = list(dict.fromkeys((s.name, s.chain, s.generation, s.profile) for s, _ in strips))
    names = tuple(dict.fromkeys(name for name, _, _, _ in chunks))
    keys = asked.RowKeys(
        names,
        np.array([names.index(chunk[0]) for chunk in chunks], np.uint32),
        [chunk[1] for chunk in chunks],
    )
    shape = (len(chunks), CLASS_COUNT)
    columns = {name: np.zeros(shape, np.uint64) for name in ("roots", *_PLACE_DTYPES)}
    for source, at in strips:
        chunk = (source.name, source.chain, source.generation, source.profile)
        where = chunks.index(chunk), source.plane_class
        place = (at.directory, at.segment, at.epoch, at.page, source.size // PAGE_BYTES)
        for name, value in zip(columns, (source.root, *place), strict=True):
            columns[name][where] = value
    return asked.RowColumns(
        keys,
        [b"" for _ in chunks],
        np.array([chunk[2] for chunk in chunks], np.uint64),
        np.array([chunk[3] for chunk in chunks], np.uint64),
        np.arange(len(chunks), dtype=np.float64) - 1.5,
        columns["roots"],
        *(columns[name].astype(dtype) for name, dtype in _PLACE_DTYPES.items()),
    )


_PLACE_DTYPES = {
    "directories": np.uint8,
    "segments": np.uint32,
    "epochs": np.uint32,
    "pages": np.uint32,
    "page_counts": np.uint32,
}


def record(
    at: At, state: SegmentState, plane_class: PlaneClass = PlaneClass.ANCHOR
) -> asked.SegmentRecord:
    return asked.SegmentRecord(at.directory, at.segment, plane_class, state, at.epoch)


def chunks_of(rows: asked.RowColumns) -> dict[tuple, tuple]:
    """Return all that rows say, by lane and chain."""
    found = {}
    for at, chain in enumerate(rows.keys.chain):
        name = rows.keys.names[int(rows.keys.name_of[at])]
        places = (
            column[at].tolist()
            for column in (
                rows.roots, rows.directories, rows.segments, rows.epochs, rows.pages,
                rows.page_counts,
            )
        )  # fmt: skip
        said = (rows.parents[at], int(rows.generations[at]), int(rows.profiles[at]))
        found[name, chain] = (*said, float(rows.heats[at]), *places)
    assert len(found) == len(rows.keys.chain)
    return found

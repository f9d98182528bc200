"""What survives a crash of the simulated daemon: pages of segments, and what the catalog holds.

Pages hold words, as slabs do, and every file is there twice: as written and as synced. A crash
leaves any mixture of the two, sector by sector. The catalog refuses, as a violation, what the real
one could not hold, or would not give back.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

import numpy as np

from kvd.core.disk_effects import Commit, LaneName, RowColumns, RowKeys, SegmentRecord
from kvd.core.disk_events import Recovered
from kvd.identity import Keyspace, keyspace_digest
from kvd.testing.memory import SECTORS_PER_PAGE
from kvd.testing.oracles import require
from kvd.types import CLASS_COUNT, Lane, PlaneClass

SegmentKey = tuple[int, int]  # Directory and number.
HEAD_PAGES = 1


class RowKey(NamedTuple):
    keyspace: bytes
    lane: Lane
    chain: bytes


class Place(NamedTuple):
    """Pages of one segment in one of its lives."""

    directory: int
    segment: int
    epoch: int
    page: int
    count: int

    @property
    def key(self) -> SegmentKey:
        return self.directory, self.segment

    @property
    def words(self) -> slice:
        return slice(self.page * SECTORS_PER_PAGE, (self.page + self.count) * SECTORS_PER_PAGE)

    def meets(self, other: "Place") -> bool:
        ends = self.page + self.count, other.page + other.count
        return self.key == other.key and self.page < ends[1] and other.page < ends[0]


@dataclass(frozen=True, slots=True)
class Row:
    """One chunk of one lane; `places` of the classes that are on disk, in order."""

    cells: int
    parent: bytes
    generation: int
    profile: int
    heat: float
    roots: tuple[int, ...]
    places: tuple[Place, ...]


@dataclass(slots=True)
class Segment:
    """A file with its pages; the first is its head, which says class and epoch.

    `head` and `synced` are what no crash takes back; so is the file itself once it is `linked`.
    """

    plane_class: PlaneClass
    epoch: int
    words: np.ndarray
    synced: np.ndarray
    head: tuple[PlaneClass, int]
    linked: bool = False

    def sync(self) -> None:
        self.synced[:], self.head, self.linked = self.words, (self.plane_class, self.epoch), True

    def crash(self, rng: Random) -> int:
        """Keep of each sector what is written or what is synced; return how many went back."""
        if rng.random() < 0.5:
            self.plane_class, self.epoch = self.head
        lost = [at for at in np.flatnonzero(self.words != self.synced) if rng.random() < 0.5]
        self.words[lost] = self.synced[lost]
        self.sync()
        return len(lost)


@dataclass(slots=True)
class Catalog:
    rows: dict[RowKey, Row] = field(default_factory=dict)
    segments: dict[SegmentKey, SegmentRecord] = field(default_factory=dict)
    keyspaces: dict[bytes, tuple[Keyspace, str]] = field(default_factory=dict)
    generation: int = 0
    written: tuple[int, int] = (0, 0)

    @property
    def number(self) -> int:
        """Return the highest number of a segment that anything names."""
        named = [place.segment for row in self.rows.values() for place in row.places]
        return max((*named, *(number for _, number in self.segments)), default=0)

    def places_in(self, key: SegmentKey) -> Iterator[tuple[RowKey, int, Place]]:
        """Yield row, class and place of what lies in a segment, in any of its lives."""
        for row_key, row in self.rows.items():
            for plane_class, place in enumerate(row.places):
                if place.key == key:
                    yield row_key, plane_class, place

    def apply(self, commit: Commit) -> None:
        """Take a commit in whole, drops first."""
        for key in keys_of(commit.dropped):
            self.rows.pop(key, None)
        for key in commit.removed_segments:
            self.segments.pop(key, None)
        for keyspace, tenant in commit.keyspaces:
            self.keyspaces[keyspace_digest(keyspace, tenant)] = (keyspace, tenant)
        for record in commit.segments:
            self.segments[record.directory, record.segment] = record
        self.rows.update(rows_of(commit.rows))
        require(commit.generation >= self.generation, "I2: the catalog's generation goes back")
        self.generation, self.written = commit.generation, commit.written

    def apply_some_drops(self, commit: Commit, rng: Random) -> None:
        """Take in what a failed commit of drops only may leave behind."""
        for key in keys_of(commit.dropped):
            if rng.random() < 0.5:
                self.rows.pop(key, None)


@dataclass(slots=True)
class Media:
    segment_pages: int
    segments: dict[SegmentKey, Segment] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)
    unlinked: dict[SegmentKey, Segment] = field(default_factory=dict)  # Not synced yet.

    def has(self, place: Place) -> bool:
        """Return whether the segment is there, in this life of it."""
        segment = self.segments.get(place.key)
        return segment is not None and segment.epoch == place.epoch

    def make(self, key: SegmentKey, epoch: int, plane_class: PlaneClass, junk: int) -> None:
        assert key not in self.segments
        words = np.full(self.segment_pages * SECTORS_PER_PAGE, junk, np.uint64)
        self.segments[key] = Segment(plane_class, epoch, words, words.copy(), (plane_class, epoch))

    def remove(self, key: SegmentKey) -> None:
        """Unlink a file; until `forget` says that this is synced, a crash may bring it back."""
        if (segment := self.segments.pop(key, None)) is not None:
            self.unlinked[key] = segment

    def forget(self, key: SegmentKey) -> None:
        self.unlinked.pop(key, None)

    def crash(self, rng: Random) -> Counter:
        """Leave what a power cut may; return what was lost, by situation."""
        lost = Counter()
        for key, segment in list(self.unlinked.items()):
            if key not in self.segments and rng.random() < 0.5:
                self.segments[key] = segment
                lost["an unlinked file back after a crash"] += 1
        self.unlinked.clear()
        for key, segment in list(self.segments.items()):
            if not segment.linked and rng.random() < 0.5:
                del self.segments[key]
                lost["a file lost that was not synced"] += 1
            elif segment.crash(rng):
                lost["sectors lost that were not synced"] += 1
        return lost

    def recover(self, rng: Random) -> Recovered:
        """Return what can be believed, rows in no order; files that no record names are removed.

        What lay in a lost file is in the catalog until a commit tells it.
        """
        catalog = self.catalog
        for key in [key for key in self.segments if key not in catalog.segments]:
            del self.segments[key]
        number = catalog.number
        rows = [(key, row) for key, row in catalog.rows.items() if self._believed(key, row)]
        rng.shuffle(rows)
        catalog.rows = dict(rows)
        records = list(catalog.segments.values())
        rng.shuffle(records)
        return Recovered(
            catalog.generation, catalog.written, dict(catalog.keyspaces), columns_of(rows),
            tuple(records), tuple(key for key in catalog.segments if key not in self.segments),
            number,
        )  # fmt: skip

    def _believed(self, key: RowKey, row: Row) -> bool:
        records = self.catalog.segments
        return key.keyspace in self.catalog.keyspaces and all(
            place.key in records
            and records[place.key].epoch == place.epoch
            and records[place.key].plane_class == plane_class
            for plane_class, place in enumerate(row.places)
        )

    def left_of(self, row: Row) -> Row:
        """Return a row without the classes from the first on whose file is gone."""
        there = [place.key in self.segments for place in row.places]
        count = (*there, False).index(False)
        roots = (*row.roots[:count], *(0,) * (CLASS_COUNT - count))
        return replace(row, roots=roots, places=row.places[:count])


def name_of(key: RowKey) -> str:
    return f"chunk {key.chain[:4].hex()} of lane {key.lane.shard.index}"


def keys_of(keys: RowKeys) -> list[RowKey]:
    names = [keys.names[at] for at in keys.name_of.tolist()]
    assert len(names) == len(keys.chain)
    return [
        RowKey(name.keyspace, name.lane, chain)
        for name, chain in zip(names, keys.chain, strict=True)
    ]


def rows_of(columns: RowColumns) -> dict[RowKey, Row]:
    rows: dict[RowKey, Row] = {}
    for at, key in enumerate(keys_of(columns.keys)):
        counts = columns.page_counts[at].tolist()
        classes = [c for c in range(CLASS_COUNT) if counts[c]]
        require(classes == list(range(len(classes))), f"I6: a row of classes {classes}")
        require(key not in rows, "a row twice in one commit")
        places = tuple(
            Place(
                int(columns.directories[at, c]), int(columns.segments[at, c]),
                int(columns.epochs[at, c]), int(columns.pages[at, c]), counts[c],
            )
            for c in classes
        )  # fmt: skip
        heat, generation = float(columns.heats[at]), int(columns.generations[at])
        sound = generation > 0 and not math.isnan(heat)
        sound = sound and all(p.epoch > 0 and p.page >= HEAD_PAGES for p in places)
        require(sound, f"a row that no catalog takes: {generation}, {heat}, {places}")
        cells = columns.keys.names[int(columns.keys.name_of[at])].cells
        roots = tuple(columns.roots[at].tolist())
        require(not any(roots[len(places) :]), "a root of a class that is not on disk")
        profile = int(columns.profiles[at])
        rows[key] = Row(cells, columns.parents[at], generation, profile, heat, roots, places)
    return rows


def columns_of(rows: list[tuple[RowKey, Row]]) -> RowColumns:
    names: dict[LaneName, int] = {}
    name_of = [
        names.setdefault(LaneName(key.keyspace, key.lane, row.cells), len(names))
        for key, row in rows
    ]
    shape = (len(rows), CLASS_COUNT)
    places = np.zeros((*shape, len(Place._fields)), np.uint64)
    for at, (_, row) in enumerate(rows):
        for plane_class, place in enumerate(row.places):
            places[at, plane_class] = place
    keys = RowKeys(tuple(names), np.array(name_of, np.uint32), [key.chain for key, _ in rows])
    return RowColumns(
        keys,
        [row.parent for _, row in rows],
        np.array([row.generation for _, row in rows], np.uint64),
        np.array([row.profile for _, row in rows], np.uint64),
        np.array([row.heat for _, row in rows], np.float64),
        np.array([row.roots for _, row in rows], np.uint64).reshape(shape),
        places[..., 0].astype(np.uint8),
        places[..., 1].astype(np.uint32),
        places[..., 2].astype(np.uint32),
        places[..., 3].astype(np.uint32),
        places[..., 4].astype(np.uint32),
    )

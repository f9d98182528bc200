"""What the core may ask of disk and catalog, judged at the step in which it asks.

By the pages, the catalog and what the hands are doing: nothing that is in use is given away.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.testing.media import HEAD_PAGES, Place, Row, RowKey, SegmentKey, name_of, rows_of
from kvd.testing.memory import SECTOR_BYTES, Fill, first_wrong
from kvd.testing.oracles import require
from kvd.testing.pieces import Piece
from kvd.testing.wear import Wear
from kvd.types import Extent

if TYPE_CHECKING:
    from kvd.testing.world import World


class Demands:
    def __init__(self, world: "World") -> None:
        self.world, self.media, self.memory = world, world.media, world.memory
        self.commit: asked.Commit | None = None  # In flight.
        self._wear = Wear(world)

    def restart(self, day: int) -> None:
        self.commit = None
        self._wear = Wear(self.world)
        self.begin_day(day)

    def begin_day(self, day: int) -> None:
        self._wear.begin_day(day)

    def on_event(self, event: told.DiskEvent) -> None:
        if isinstance(event, told.Committed):
            self.commit = None

    def check(self, effect: asked.DiskEffect) -> None:
        """Judge an effect once the tier has taken it."""
        match effect:
            case asked.WriteStrips(batch):
                pieces = [p for (b, _), p in self.world.tier.writing.items() if b == batch]
                self._check_write(pieces)
            case asked.ReadStrips(batch):
                for (b, _), piece in list(self.world.tier.reading.items()):
                    if b == batch:
                        self._check_read(piece)
            case asked.MakeSegment(directory=directory, segment=segment):
                self._check_make((directory, segment))
            case asked.RecycleSegment(directory=directory, segment=segment):
                self._check_unused((directory, segment), "recycled")
            case asked.RemoveSegment(directory=directory, segment=segment):
                self._check_unused((directory, segment), "removed")
            case asked.Commit():
                require(self.commit is None, "I9: two commits in flight")
                self.commit = effect
                self._check_rows(rows_of(effect.rows), effect.generation)

    def _check_write(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            segment = self.media.segments.get(piece.place.key)
            require(segment is not None, f"a write into {piece.place}, which is not there")
            named = (piece.begin, piece.size, piece.plane_class)
            right = (0, piece.fill.sizes[piece.plane_class], segment.plane_class)
            require(named == right, f"a write of {named} where {right} belongs")
            end = piece.place.page + piece.place.count
            fits = piece.place.page >= HEAD_PAGES and end <= self.media.segment_pages
            require(fits, f"a write outside of its segment: {piece.place}")
            for key, _, place in self.media.catalog.places_in(piece.place.key):
                require(not place.meets(piece.place), f"I7: a write over {place} of {name_of(key)}")
            for (batch, item), other in self.world.tier.writing.items():
                apart = other is piece or not other.place.meets(piece.place)
                require(apart, f"two writes meet at {piece.place}: {batch}, {item}")
        self._wear.check(pieces)

    def _check_read(self, piece: Piece) -> None:
        tier, where = self.world.tier, (piece.slab, piece.offset, piece.size)
        for other in tier.reading.values():
            apart = other is piece or not other.overlaps(*where)
            require(apart, f"I4: two reads into {where}: {piece.fill.name()}, {other.fill.name()}")
        for other in tier.writing.values():
            require(not other.overlaps(*where), f"I4: a read into {where}, which is written")
        for client in self.world.clients.values():
            alone = not client.alive or piece.slab not in client.writable
            require(alone, f"a read into slab {piece.slab}, which {client.session} may write")
        self.memory.tenants[piece.slab].add(piece.fill.tenant)
        tenants = self.memory.tenants[piece.slab]
        require(len(tenants) == 1, f"tenants: slab {piece.slab} holds bytes of {sorted(tenants)}")

    def check_idle(self, slab: int) -> None:
        """Judge that a slab is destroyed."""
        for what, piece in self._in_use():
            require(piece.slab != slab, f"I4: slab {slab} is destroyed, {what} {piece.fill.name()}")

    def check_given(self, extent: Extent, what: str) -> None:
        """Judge that a place in dram is given to a writer."""
        where = extent.slab, extent.offset, extent.size
        for use, piece in self._in_use():
            require(not piece.overlaps(*where), f"I4: {what} is given, {use} {piece.fill.name()}")

    def _in_use(self) -> Iterator[tuple[str, Piece]]:
        """Yield what hands have to do with dram."""
        if (tier := self.world.tier) is not None:
            yield from (("read into:", piece) for piece in tier.reading.values())
            yield from (("being saved:", piece) for piece in tier.writing.values())

    def _check_make(self, key: SegmentKey) -> None:
        making = self.world.tier.making
        count, limit = len(self.media.segments.keys() | making), self.world.tier.config.segments_max
        require(count <= limit, f"I8: {key} makes {count} segments of {limit}")

    def _check_unused(self, key: SegmentKey, what: str) -> None:
        for row_key, plane_class, _ in self.media.catalog.places_in(key):
            require(False, f"I7: {key} is {what} under class {plane_class} of {name_of(row_key)}")
        if self.commit is not None:
            for row_key, row in rows_of(self.commit.rows).items():
                used = any(place.key == key for place in row.places)
                require(not used, f"I7: {key} is {what} while {name_of(row_key)} is committed")
        tier = self.world.tier
        for piece in (*tier.writing.values(), *tier.unreported_reads()):
            require(piece.place.key != key, f"I4: {key} is {what} under {piece.fill.name()}")

    def _check_rows(self, rows: dict[RowKey, Row], generation: int) -> None:
        """Require of what is to be committed that it lies on disk, whole and synced."""
        writing = [piece.place for piece in self.world.tier.writing.values()]
        for key, row in rows.items():
            require(row.generation < generation, f"I2: {name_of(key)} of a generation to come")
            fill = self.memory.find_fill(row.generation, key.chain)
            require(fill is not None and fill.sealed, f"I1: {name_of(key)} was never sealed")
            for plane_class, place in enumerate(row.places):
                self._check_strip(key, fill, plane_class, place)
                require(not any(place.meets(other) for other in writing), f"I7: {place} is written")

    def _check_strip(self, key: RowKey, fill: Fill, plane_class: int, place: Place) -> None:
        name = f"class {plane_class} of {name_of(key)}"
        require(self.media.has(place), f"I7: {name} lies in {place}, which is not there")
        sectors = fill.sizes[plane_class] // SECTOR_BYTES
        words = self.media.segments[place.key].words[place.words]
        require(len(words) == sectors, f"I7: {name} has {place.count} pages")
        wrong = first_wrong(words, fill.words(plane_class, 0, sectors))
        origin = self.memory.origin(wrong or 0)
        require(wrong is None, f"I7: {name} lies in {place}, which holds {origin}")

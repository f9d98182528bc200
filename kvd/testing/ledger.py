"""What must hold of the ssd tier, judged from outside: by its effects, its pages and its catalog.

Knows what was acknowledged as durable, and what the core itself dropped since.
"""

from typing import TYPE_CHECKING

from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core.state import State
from kvd.limits import DIGEST_BYTES
from kvd.testing.media import HEAD_PAGES, Place, Row, RowKey, SegmentKey, keys_of, rows_of
from kvd.testing.memory import Fill, first_wrong
from kvd.testing.oracles import Violation, require
from kvd.testing.pieces import Piece
from kvd.testing.tier import Judge
from kvd.types import CLASS_COUNT, Extent, SegmentState

if TYPE_CHECKING:
    from kvd.testing.world import World


class Ledger(Judge):
    def __init__(self, world: "World") -> None:
        self.world, self.media, self.memory = world, world.media, world.memory
        self.durable: dict[RowKey, int] = {}  # Acknowledged: how many classes are still there.
        self.excused: set[RowKey] = set()  # Condemned or cleared since.
        self.written: set[tuple[int, int]] = set()  # On disk, and not in the catalog yet.
        self._commit: asked.Commit | None = None  # In flight.
        self._day, self._written_bytes = 0, 0  # Since the start, on this day.

    def restart(self, day: int) -> None:
        self._commit = None
        self.written.clear()
        self.begin_day(day)

    def begin_day(self, day: int) -> None:
        then, written_bytes = self.media.catalog.written
        self._day, self._written_bytes = day, written_bytes if then == day else 0

    @property
    def is_committing(self) -> bool:
        return self._commit is not None

    # ---- what the core asks for ----

    def check_asked(self, effect: asked.DiskEffect) -> None:
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
                require(self._commit is None, "I9: two commits in flight")
                self._commit = effect
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
                require(not place.meets(piece.place), f"I7: a write over {place} of {_name(key)}")
            for (batch, item), other in self.world.tier.writing.items():
                apart = other is piece or not other.place.meets(piece.place)
                require(apart, f"two writes meet at {piece.place}: {batch}, {item}")
            self._written_bytes += piece.size
        limit = self.world.tier.config.daily_write_bytes
        before = self._written_bytes - sum(piece.size for piece in pieces)
        fresh = any(not self._is_move(piece) for piece in pieces)
        if any(self._is_move(piece) for piece in pieces):
            self.world.saw("a strip written again")
        spent = fresh and limit and before >= limit
        require(not spent, f"{before} bytes are written of {limit} a day")

    def _is_move(self, piece: Piece) -> bool:
        """Return whether the strip is durable already: it moves out of a segment's way."""
        fill = piece.fill
        row = self.media.catalog.rows.get(RowKey(fill.keyspace, fill.lane, fill.chain))
        known = row is not None and row.generation == fill.generation
        return known and len(row.places) > piece.plane_class

    def _check_read(self, piece: Piece) -> None:
        tier, where = self.world.tier, (piece.slab, piece.offset, piece.size)
        for other in tier.reading.values():
            apart = other is piece or not other.overlaps(*where)
            require(apart, f"I4: two reads into {where}: {piece.name()}, {other.name()}")
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
        tier = self.world.tier
        if tier is not None:
            for piece in (*tier.writing.values(), *tier.reading.values()):
                require(piece.slab != slab, f"I4: slab {slab} is destroyed under {piece.name()}")

    def check_given(self, extent: Extent, what: str) -> None:
        """Judge that a place in dram is given to a writer."""
        tier, where = self.world.tier, (extent.slab, extent.offset, extent.size)
        if tier is not None:
            for piece in tier.reading.values():
                require(not piece.overlaps(*where), f"I4: {what} is read into: {piece.name()}")
            for piece in tier.writing.values():
                require(not piece.overlaps(*where), f"I4: {what} is being saved: {piece.name()}")

    def _check_make(self, key: SegmentKey) -> None:
        making = self.world.tier.making
        count, limit = len(self.media.segments.keys() | making), self.world.tier.config.segments_max
        require(count <= limit, f"I8: {key} makes {count} segments of {limit}")

    def _check_unused(self, key: SegmentKey, what: str) -> None:
        for row_key, plane_class, _ in self.media.catalog.places_in(key):
            require(False, f"I7: {key} is {what} under class {plane_class} of {_name(row_key)}")
        if self._commit is not None:
            for row_key, row in rows_of(self._commit.rows).items():
                used = any(place.key == key for place in row.places)
                require(not used, f"I7: {key} is {what} while {_name(row_key)} is committed")
        tier = self.world.tier
        for piece in (*tier.writing.values(), *tier.unreported_reads()):
            require(piece.place.key != key, f"I4: {key} is {what} under {piece.name()}")

    def _check_rows(self, rows: dict[RowKey, Row], generation: int) -> None:
        """Require of what is to be committed that it lies on disk, whole and synced."""
        writing = [piece.place for piece in self.world.tier.writing.values()]
        for key, row in rows.items():
            require(row.generation < generation, f"I2: {_name(key)} of a generation to come")
            fill = self.memory.find_fill(row.generation, key.chain)
            require(fill is not None and fill.sealed, f"I1: {_name(key)} was never sealed")
            for plane_class, place in enumerate(row.places):
                self._check_strip(key, fill, plane_class, place)
                require(not any(place.meets(other) for other in writing), f"I7: {place} is written")

    def _check_strip(self, key: RowKey, fill: Fill, plane_class: int, place: Place) -> None:
        name = f"class {plane_class} of {_name(key)}"
        require(self.media.has(place), f"I7: {name} lies in {place}, which is not there")
        sectors = fill.sizes[plane_class] // 1024
        words = self.media.segments[place.key].words[place.words]
        require(len(words) == sectors, f"I7: {name} has {place.count} pages")
        wrong = first_wrong(words, fill.words(plane_class, 0, sectors))
        require(wrong is None, f"I7: {name} lies in {place}, which holds {self._origin(wrong)}")

    def _origin(self, word: int | None) -> str:
        return self.memory.origin(word or 0)

    # ---- what happens ----

    def on_stale(self, piece: Piece) -> None:
        raise Violation(f"{piece.name()} is moved at {piece.place}, which is not there")

    def on_wrong(self, piece: Piece, found: str) -> None:
        raise Violation(f"I4: {found} for {piece.name()} at {piece.place}")

    def on_damaged(self, piece: Piece) -> None:
        self.excuse(RowKey(piece.fill.keyspace, piece.fill.lane, piece.fill.chain))

    def on_written(self, piece: Piece) -> None:
        self.written.add((piece.fill.id, piece.plane_class))

    def on_committed(self, commit: asked.Commit) -> None:
        """Judge what the catalog holds now, and take note of what the core dropped."""
        catalog = self.media.catalog
        for key, row in rows_of(commit.rows).items():
            if catalog.rows.get(key) != row:
                continue  # Some drops of a failed commit only.
            require(key.keyspace in catalog.keyspaces, f"I7: {_name(key)} of no known keyspace")
            fill = self.memory.find_fill(row.generation, key.chain)
            for plane_class, place in enumerate(row.places):
                self.written.discard((fill.id, plane_class))
                self._check_place(key, plane_class, place)
        for record in catalog.segments.values():
            free = record.state == SegmentState.FREE
            rows = [] if not free else list(catalog.places_in((record.directory, record.segment)))
            require(not rows, f"I7: {record} is free and holds {[_name(row[0]) for row in rows]}")
        for key in {*keys_of(commit.dropped), *keys_of(commit.rows.keys)} & self.durable.keys():
            row = catalog.rows.get(key)
            self.durable[key] = min(self.durable[key], len(row.places) if row else 0)
            if not self.durable[key]:
                del self.durable[key]

    def _check_place(self, key: RowKey, plane_class: int, place: Place) -> None:
        record = self.media.catalog.segments.get(place.key)
        known = record is not None and (record.epoch, record.plane_class) == (
            place.epoch,
            plane_class,
        )
        require(known, f"I7: {_name(key)} lies in {place}, of which the catalog says {record}")
        for other, other_class, other_place in self.media.catalog.places_in(place.key):
            apart = (other, other_class) == (key, plane_class) or not place.meets(other_place)
            require(apart, f"I7: {_name(key)} and {_name(other)} both lie in {place}")

    def on_event(self, event: told.DiskEvent) -> None:
        if isinstance(event, told.Committed):
            self._commit = None

    # ---- what was promised ----

    def acknowledge(self, keyspace: bytes, lane: object, chain: bytes, fills: list[Fill]) -> None:
        """Judge the answer that all chunks of `chain` are durable, `fills` among them."""
        generations = {fill.chain: fill.generation for fill in fills}
        for at in range(0, len(chain), DIGEST_BYTES):
            key = RowKey(keyspace, lane, chain[at : at + DIGEST_BYTES])
            row = self.media.catalog.rows.get(key)
            least = generations.get(key.chain, 0)
            kept = row is not None and len(row.places) == CLASS_COUNT and row.generation >= least
            require(kept, f"I7: {_name(key)} is answered durable; the catalog has {row}")
            self.durable[key] = CLASS_COUNT
            self.excused.discard(key)

    def excuse(self, key: RowKey) -> None:
        """A chunk was condemned or cleared: nobody needs to find it any more."""
        self.durable.pop(key, None)
        self.excused.add(key)

    def check_recovered(self, state: State) -> None:
        """Require of a core that has just begun that it finds what the catalog holds."""
        catalog, index = self.media.catalog, state.index
        least = self._by_prefix(catalog.rows)
        for key, count in self.durable.items():
            short = least.get(key, 0) < count
            require(
                not short or self._is_excused(key), f"I7: {_name(key)} was durable, and is lost"
            )
        if self._commit is not None and state.ssd.counts["segments chosen"]:
            dropped = keys_of(self._commit.dropped)
            rows = {key: row for key, row in catalog.rows.items() if key not in dropped}
            least = self._by_prefix(rows | rows_of(self._commit.rows))
        for key, count in least.items():
            tree = state.index.trees_by_key.get((key.keyspace, key.lane))
            row = None if tree is None else tree.rows.get(key.chain)
            require(row is not None, f"I7: {_name(key)} is durable and not found")
            right = int(index.generation[row]) == catalog.rows[key].generation
            right = right and bool(index.present[row, :count].all())
            require(right, f"I7: {_name(key)} is durable, and found with less")

    def _by_prefix(self, rows: dict[RowKey, Row]) -> dict[RowKey, int]:
        """Return how many classes of each chunk can be found: as many as of all before it."""
        known: dict[RowKey, int] = {}

        def count(key: RowKey) -> int:
            if key not in known:
                row = rows.get(key)
                known[key] = 0 if row is None else len(row.places)
                if row is not None and row.parent:
                    known[key] = min(known[key], count(key._replace(chain=row.parent)))
            return known[key]

        return {key: count(key) for key in rows if count(key)}

    def _is_excused(self, key: RowKey) -> bool:
        """Return whether it, or a chunk before it, was condemned or cleared."""
        while key not in self.excused:
            row = self.media.catalog.rows.get(key)
            if row is None or not row.parent:
                return False
            key = key._replace(chain=row.parent)
        return True


def _name(key: RowKey) -> str:
    return f"chunk {key.chain[:4].hex()} of lane {key.lane.shard.index}"

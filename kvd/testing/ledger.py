"""What is durable: judged by the catalog, at each commit, each acknowledgement and each restart.

Knows what was acknowledged, and what the core itself dropped since.
"""

from typing import TYPE_CHECKING

from kvd.core import disk_effects as asked
from kvd.core.state import State
from kvd.limits import DIGEST_BYTES
from kvd.testing.media import Place, Row, RowKey, keys_of, name_of, rows_of
from kvd.testing.memory import Fill
from kvd.testing.oracles import Violation, require
from kvd.testing.pieces import Piece
from kvd.testing.tier import Judge
from kvd.types import CLASS_COUNT, SegmentState

if TYPE_CHECKING:
    from kvd.testing.world import World


class Ledger(Judge):
    def __init__(self, world: "World") -> None:
        self.world, self.media, self.memory = world, world.media, world.memory
        self.durable: dict[RowKey, int] = {}  # Acknowledged: how many classes are still there.
        self.excused: set[RowKey] = set()  # Condemned or cleared since.
        self.written: set[tuple[int, int]] = set()  # On disk, and not in the catalog yet.

    # ---- what happens ----

    def on_stale(self, piece: Piece) -> None:
        raise Violation(f"{piece.fill.name()} is moved at {piece.place}, which is not there")

    def on_wrong(self, piece: Piece, found: str) -> None:
        raise Violation(f"I4: {found} for {piece.fill.name()} at {piece.place}")

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
            require(key.keyspace in catalog.keyspaces, f"I7: {name_of(key)} of no known keyspace")
            fill = self.memory.find_fill(row.generation, key.chain)
            for plane_class, place in enumerate(row.places):
                self.written.discard((fill.id, plane_class))
                self._check_place(key, plane_class, place)
        for record in catalog.segments.values():
            free = record.state == SegmentState.FREE
            rows = [] if not free else list(catalog.places_in((record.directory, record.segment)))
            require(not rows, f"I7: {record} is free and holds {[name_of(row[0]) for row in rows]}")
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
        require(known, f"I7: {name_of(key)} lies in {place}, of which the catalog says {record}")
        for other, other_class, other_place in self.media.catalog.places_in(place.key):
            apart = (other, other_class) == (key, plane_class) or not place.meets(other_place)
            require(apart, f"I7: {name_of(key)} and {name_of(other)} both lie in {place}")

    # ---- what was promised ----

    def acknowledge(self, keyspace: bytes, lane: object, chain: bytes, fills: list[Fill]) -> None:
        """Judge the answer that all chunks of `chain` are durable, `fills` among them."""
        sealed = {fill.chain: fill.sealed for fill in fills}
        for at in range(0, len(chain), DIGEST_BYTES):
            key = RowKey(keyspace, lane, chain[at : at + DIGEST_BYTES])
            row = self.media.catalog.rows.get(key)
            kept = row is not None and len(row.places) == CLASS_COUNT
            if kept and key.chain in sealed:  # It may have been replaced since.
                fill = self.memory.find_fill(row.generation, key.chain)
                kept = fill is not None and fill.sealed >= sealed[key.chain]
            require(kept, f"I7: {name_of(key)} is answered durable; the catalog has {row}")
            self.durable[key] = CLASS_COUNT
            self.excused.discard(key)

    def excuse(self, key: RowKey) -> None:
        """A chunk was condemned or cleared: nobody needs to find it any more."""
        self.durable.pop(key, None)
        self.excused.add(key)

    def check_recovered(self, state: State, commit: asked.Commit | None) -> None:
        """Require of a core that has just begun that it finds what the catalog holds."""
        catalog, index = self.media.catalog, state.index
        found = {key: self.media.left_of(row) for key, row in catalog.rows.items()}
        least = self._by_prefix(found)
        for key, count in self.durable.items():
            short = least.get(key, 0) < count
            require(
                not short or self._is_excused(key), f"I7: {name_of(key)} was durable, and is lost"
            )
        if commit is not None and state.counts.ssd_segments_chosen:
            dropped = keys_of(commit.dropped)
            rows = {key: row for key, row in found.items() if key not in dropped}
            least = self._by_prefix(rows | rows_of(commit.rows))
        for key, count in least.items():
            tree = state.index.trees_by_key.get((key.keyspace, key.lane))
            row = None if tree is None else tree.rows.get(key.chain)
            require(row is not None, f"I7: {name_of(key)} is durable and not found")
            right = int(index.generation[row]) == catalog.rows[key].generation
            right = right and bool(index.present[row, :count].all())
            require(right, f"I7: {name_of(key)} is durable, and found with less")

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

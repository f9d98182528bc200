"""How much is written to the disks of the simulated world: once, and again for room."""

from typing import TYPE_CHECKING

from kvd.testing.media import RowKey
from kvd.testing.oracles import require
from kvd.testing.pieces import Piece

if TYPE_CHECKING:
    from kvd.testing.world import World

BEARABLE = 4  # So many times what was written once, and what the tier holds, may be moved.


class Wear:
    def __init__(self, world: "World") -> None:
        self.world = world
        # As the catalog knows it, of the newest day there was.
        self._newest, self.today_bytes = world.media.catalog.written
        self._fresh_bytes = self._moved_bytes = 0  # Since the start.

    def begin_day(self, day: int) -> None:
        """Begin to count anew only with a day that never was: setting a clock wins nothing.

        A date that is more than a day behind the newest shows that the newest was wrong.
        """
        if day > self._newest:
            self._newest, self.today_bytes = day, 0
        elif day < self._newest - 1:
            self._newest = day

    def check(self, pieces: list[Piece]) -> None:
        """Judge what is about to be written: on one day, and again since the start."""
        config, size = self.world.tier.config, sum(piece.size for piece in pieces)
        moved = sum(piece.size for piece in pieces if self._is_move(piece))
        limit, before = config.daily_write_bytes, self.today_bytes
        spent = moved < size and limit and before >= limit
        require(not spent, f"wear: {before} bytes are written of {limit} a day")
        self.today_bytes += size
        self._fresh_bytes += size - moved
        self._moved_bytes += moved
        if moved:
            self.world.saw("a strip written again")
        bearable = BEARABLE * (self._fresh_bytes + config.segments_max * config.segment_bytes)
        again = f"{self._moved_bytes} bytes are written again, {self._fresh_bytes} once"
        require(self._moved_bytes <= bearable, f"wear: {again}")

    def _is_move(self, piece: Piece) -> bool:
        """Return whether the strip is durable already: it moves out of a segment's way."""
        fill = piece.fill
        row = self.world.media.catalog.rows.get(RowKey(fill.keyspace, fill.lane, fill.chain))
        known = row is not None and row.generation == fill.generation
        return known and len(row.places) > piece.plane_class

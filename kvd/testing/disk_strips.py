"""Strips to try a disk with, and places for them: bytes, tables and roots as clients make them."""

from dataclasses import dataclass

import numpy as np

from kvd.checksum import checksum, strip_root
from kvd.disk.contract import Names, Places
from kvd.format.strip import pack_table
from kvd.limits import PAGE_BYTES
from kvd.table import table_bytes
from kvd.types import Lane, Part, PlaneClass, Shard, ShardScheme

CELLS = 3
PROFILE = 1
LANES = (Lane(), Lane(1, Shard(ShardScheme.HEADS, 1, 2), Part(b"profile!", 3)))


@dataclass(frozen=True, slots=True)
class Strip:
    """One strip, what its root binds, and its bytes."""

    key: bytes
    lane: int
    plane_class: PlaneClass
    generation: int
    data: bytes

    @property
    def root(self) -> int:
        table = self.data[: table_bytes(CELLS)]
        return strip_root(
            self.key, LANES[self.lane], self.plane_class, self.generation, PROFILE, table
        )


def make_strip(number: int, pages: int = 2, plane_class: PlaneClass = PlaneClass.ANCHOR) -> Strip:
    """Return a strip of `pages` whose bytes follow from `number`."""
    rng = np.random.default_rng(number)
    room = pages * PAGE_BYTES - table_bytes(CELLS)
    lengths = np.full(CELLS, room // CELLS // 8 * 8, np.uint32)
    offsets = (table_bytes(CELLS) + np.arange(CELLS) * lengths).astype(np.uint32)
    cells = [rng.bytes(int(length)) for length in lengths]
    sums = np.array([checksum(cell) for cell in cells], np.uint64)
    table = pack_table(offsets, lengths, np.zeros(CELLS, bool), sums)
    data = (table.tobytes() + b"".join(cells)).ljust(pages * PAGE_BYTES, b"\0")
    key = number.to_bytes(16, "big")
    return Strip(key, number % len(LANES), plane_class, 1000 + number, data)


def names_of(strips: list[Strip]) -> Names:
    """Return what the roots of strips bind, as columns."""
    return Names(
        np.frombuffer(b"".join(s.key for s in strips), np.uint8).reshape(-1, 16),
        LANES,
        np.array([s.lane for s in strips], np.uint32),
        np.array([s.plane_class for s in strips], np.uint8),
        np.array([s.generation for s in strips], np.uint64),
        np.full(len(strips), PROFILE, np.uint64),
        np.full(len(strips), CELLS, np.uint32),
        np.array([s.root for s in strips], np.uint64),
    )


@dataclass(frozen=True, slots=True)
class At:
    """A place on disk."""

    page: int
    pages: int = 2
    segment: int = 1
    directory: int = 0
    epoch: int = 1


def places_of(places: list[At], addresses: list[int]) -> Places:
    """Return places on disk and in memory as columns."""
    return Places(
        np.array([p.directory for p in places], np.uint8),
        np.array([p.segment for p in places], np.uint32),
        np.array([p.epoch for p in places], np.uint32),
        np.array([p.page * PAGE_BYTES for p in places], np.uint64),
        np.array([p.pages * PAGE_BYTES for p in places], np.uint32),
        np.array(addresses, np.uint64),
    )

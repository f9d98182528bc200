"""Slabs of the simulated world: real memory, in which every word names its origin.

One word (u64) stands for one sector. It says which fill wrote it (a chunk under a generation),
which class and which sector, so that a wrong byte tells where it came from.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kvd.core.effects import WHOLE
from kvd.limits import PAGE_BYTES
from kvd.pieces import read_piece_bytes
from kvd.types import CLASS_COUNT, Lane, PlaneClass

SECTOR_BYTES = 1024
SECTORS_PER_PAGE = PAGE_BYTES // SECTOR_BYTES
POISON = np.uint64(0xEEEE_EEEE_EEEE_EEEE)
FLIP = np.uint64(1 << 63)  # In a word that a disk gave back wrong, and that a checksum shows.


def first_wrong(found: np.ndarray, expected: np.ndarray) -> int | None:
    """Return the first word that another writer wrote, or None; a flipped one is its own."""
    wrong = np.flatnonzero((found | FLIP) != (expected | FLIP))
    return int(found[wrong[0]]) if len(wrong) else None


def is_flipped(found: np.ndarray) -> bool:
    """Return whether a checksum would show it, in words that are otherwise right."""
    return bool((found & FLIP).any())


@dataclass(slots=True)
class Fill:
    """One chunk as one put writes it; `reported` as corrupt.

    `sealed`: with which event the core did so; 0: it has not. A later seal may have the older
    generation, where a reader condemned what was there between.
    """

    id: int
    tenant: str
    keyspace: bytes
    lane: Lane
    chain: bytes
    generation: int
    sizes: tuple[int, ...]
    written: int = 0  # Strips that are completely written, in order of class.
    sealed: int = 0
    reported: bool = False
    cleared: bool = False  # So the core said.

    def name(self) -> str:
        return f"chunk {self.chain[:4].hex()} of generation {self.generation} of {self.tenant}"

    def root(self, plane_class: int) -> int:
        return self.id << 8 | plane_class

    def words(self, plane_class: int, begin: int, end: int) -> np.ndarray:
        """Return what sectors `[begin, end)` of one of its strips must hold."""
        first = self.id << 24 | plane_class << 20
        return np.arange(first + begin, first + end, dtype=np.uint64)


class Memory:
    """All slabs ever made, and all fills ever begun."""

    def __init__(self) -> None:
        self.slabs: dict[int, np.ndarray] = {}
        self.fills: list[Fill] = []
        self._by_place: dict[tuple[int, bytes], Fill] = {}
        self.tenants: dict[int, set[str]] = {}  # Who was given which slab.
        self.unreadable: set[tuple[int, int]] = set()  # Fill and class of which a read failed.

    def restart(self, generation: int, kept: Collection[int] = ()) -> None:
        """Lose all slabs but those kept; who wrote what is still known, below a generation."""
        self.slabs = {slab: self.slabs[slab] for slab in kept}
        self.tenants = {slab: self.tenants[slab] for slab in kept}
        known = self._by_place.items()
        self._by_place = {place: fill for place, fill in known if place[0] < generation}

    def create(self, slab: int, size: int) -> None:
        assert slab not in self.slabs, "slab numbers are not used again"
        self.slabs[slab] = np.full(size // SECTOR_BYTES, POISON)
        self.tenants[slab] = set()

    def begin_fill(self, owner: tuple[str, bytes, Lane], chain: bytes, generation: int) -> Fill:
        tenant, keyspace, lane = owner
        fill = Fill(len(self.fills) + 1, tenant, keyspace, lane, chain, generation, ())
        self.fills.append(fill)
        assert (generation, chain) not in self._by_place, "I2: a generation was given twice"
        self._by_place[generation, chain] = fill
        return fill

    def find_fill(self, generation: int, chain: bytes) -> Fill | None:
        return self._by_place.get((generation, chain))

    def origin(self, word: int) -> str:
        """Say in words who wrote a sector."""
        number = word >> 24
        if not 0 < number <= len(self.fills):
            return f"never written memory ({word:x})"
        fill = self.fills[number - 1]
        plane_class = PlaneClass(word >> 20 & 0xF)
        return (
            f"sector {word & 0xFFFFF} of {plane_class.name} of chunk {fill.chain[:4].hex()} "
            f"of generation {fill.generation} of tenant {fill.tenant}"
        )


@dataclass(frozen=True, slots=True)
class Strip:
    """A strip as one process sees it: through its own mapping, which outlives the slab."""

    slab: int
    mapping: np.ndarray
    offset: int
    size: int
    fill: Fill
    plane_class: int
    lane: int = 0  # Of the promise that names it, like the chunk.
    chunk: int = 0

    @property
    def sectors(self) -> int:
        return self.size // SECTOR_BYTES

    def ready_sectors(self, ready: int) -> int:
        """Return how many of its words are in its first `ready` pieces."""
        if ready == WHOLE:
            return self.sectors
        return min(self.size, ready * read_piece_bytes(self.size)) // SECTOR_BYTES

    def write(self, begin: int, end: int) -> None:
        at = self.offset // SECTOR_BYTES
        self.mapping[at + begin : at + end] = self.fill.words(self.plane_class, begin, end)

    def damage(self) -> None:
        """Have its writer leave a table that does not fit the root."""
        self._found(1)[:] |= FLIP

    def wrong_word(self, sectors: int | None = None) -> int | None:
        """Return the first of its leading words that its fill did not write, or None."""
        end = self.sectors if sectors is None else sectors
        return first_wrong(self._found(end), self.fill.words(self.plane_class, 0, end))

    def is_flipped(self, sectors: int) -> bool:
        """Return whether a reader of the leading words would see that some are damaged."""
        return is_flipped(self._found(sectors))

    def _found(self, sectors: int) -> np.ndarray:
        at = self.offset // SECTOR_BYTES
        return self.mapping[at : at + sectors]


assert CLASS_COUNT <= 16  # Four bits of a word name the class.

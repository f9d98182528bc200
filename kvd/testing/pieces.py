"""Pieces of strips as the simulated disk sees them: where they lie in dram and on disk, and whose
words they are."""

from dataclasses import dataclass

import numpy as np

from kvd.core.disk_effects import StripColumns
from kvd.errors import Fault, FaultKind
from kvd.limits import PAGE_BYTES
from kvd.testing.media import Media, Place
from kvd.testing.memory import SECTOR_BYTES, SECTORS_PER_PAGE, Fill, Memory, first_wrong
from kvd.testing.oracles import require


@dataclass(frozen=True, slots=True)
class Piece:
    """One item of a batch; `begin` bytes behind its strip's table."""

    item: int
    place: Place
    slab: int
    offset: int
    size: int
    begin: int
    fill: Fill
    plane_class: int
    mapping: np.ndarray  # Of its slab: a hand keeps it while it works.

    @property
    def sectors(self) -> int:
        return self.size // SECTOR_BYTES

    @property
    def wants_means(self) -> bool:
        """Return whether what fails alone of it fails for want of the host's means."""
        return self.item % 3 == 2

    def expected(self, begin: int, end: int) -> np.ndarray:
        """Return the words that its fill wrote in `[begin, end)` of the piece."""
        first = self.begin // SECTOR_BYTES
        return self.fill.words(self.plane_class, first + begin, first + end)

    def in_dram(self, begin: int, end: int) -> np.ndarray:
        first = self.offset // SECTOR_BYTES
        return self.mapping[first + begin : first + end]

    def on_disk(self, media: Media, begin: int, end: int) -> np.ndarray:
        first = self.place.words.start
        return media.segments[self.place.key].words[first + begin : first + end]

    def wrong_words(self, words: np.ndarray, begin: int) -> int | None:
        """Return the first of the words that lie `begin` words in it and are another strip's."""
        return first_wrong(words, self.expected(begin, begin + len(words)))

    def damage(self, words: np.ndarray) -> Fault | None:
        """Return what a hand sees that has all its words: it looks at tables only."""
        table = words[:SECTORS_PER_PAGE]
        if self.begin or (table == self.expected(0, len(table))).all():
            return None
        return Fault(FaultKind.CHECKSUM, "a table of another root")

    def overlaps(self, slab: int, offset: int, size: int) -> bool:
        ends = self.offset + self.size, offset + size
        return self.slab == slab and self.offset < ends[1] and offset < ends[0]


def pieces_of(strips: StripColumns, memory: Memory) -> list[Piece]:
    """Return the items of a batch; they are judged by what their generation wrote."""
    pieces = []
    for item, chain in enumerate(strips.chain):
        name = strips.names[int(strips.name_of[item])]
        generation, plane_class = int(strips.generations[item]), int(strips.classes[item])
        fill = memory.find_fill(generation, chain)
        require(fill is not None, f"I2: nobody put chunk {chain[:4].hex()} as {generation}")
        require((fill.keyspace, fill.lane) == (name.keyspace, name.lane), "a piece of another lane")
        require(int(strips.roots[item]) == fill.root(plane_class), "I2: a piece with another root")
        size, at = int(strips.sizes[item]), int(strips.disk_offsets[item])
        require(size and not size % PAGE_BYTES and not at % PAGE_BYTES, "a piece of no pages")
        place = Place(
            int(strips.directories[item]), int(strips.segments[item]), int(strips.epochs[item]),
            at // PAGE_BYTES, size // PAGE_BYTES,
        )  # fmt: skip
        slab, begin = int(strips.slabs[item]), int(strips.begins[item])
        require(slab in memory.slabs, f"I4: slab {slab} is not there for {chain[:4].hex()}")
        within = begin + size <= fill.sizes[plane_class]
        require(within, f"I2: a piece of {begin} + {size} of {fill.sizes[plane_class]} bytes")
        pieces.append(
            Piece(
                item,
                place,
                slab,
                int(strips.offsets[item]),
                size,
                begin,
                fill,
                plane_class,
                memory.slabs[slab],
            )  # fmt: skip
        )
    return pieces


def columns(
    pieces: list[Piece], faults: dict[int, Fault]
) -> tuple[np.ndarray, np.ndarray, tuple[Fault, ...]]:
    """Return items, kinds and faults of a report."""
    items = np.array([piece.item for piece in pieces], np.int64)
    kinds = [int(faults[p.item].kind) if p.item in faults else 0 for p in pieces]
    said = tuple(dict.fromkeys(faults[p.item] for p in pieces if p.item in faults))
    return items, np.array(kinds, np.uint8), said

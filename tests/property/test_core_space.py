"""The space map of a slab against a plain list of pages."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvd.core.extents import ExtentMap
from kvd.limits import PAGE_BYTES

FREE = 0


class SpaceAgainstPages(RuleBasedStateMachine):
    """`pages[i]`: the number of what lies there, or FREE."""

    @initialize(pages=st.integers(1, 24))
    def begin(self, pages: int) -> None:
        self.space = ExtentMap(pages * PAGE_BYTES)
        self.pages = [FREE] * pages
        self.taken: dict[int, tuple[int, int]] = {}
        self.number = 0

    @rule(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
    def take(self, sizes: list[int]) -> None:
        """The first range that holds the first strip gets as many as fit, side by side."""
        ends = np.cumsum(np.array(sizes, np.int64) * PAGE_BYTES)
        offset, count = self.space.take(ends)
        begin = self._first_room(sizes[0])
        if begin is None:
            assert count == 0
            return
        assert offset == begin * PAGE_BYTES
        room = next((i for i, p in enumerate(self.pages[begin:]) if p != FREE), None)
        room = len(self.pages) - begin if room is None else room
        fitting = [n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) <= room]
        assert count == max(fitting)
        at = begin
        for size in sizes[:count]:
            self.number += 1
            self.taken[self.number] = (at, size)
            self.pages[at : at + size] = [self.number] * size
            at += size

    def _first_room(self, size: int) -> int | None:
        free = [page == FREE for page in self.pages]
        starts = range(len(free) - size + 1)
        return next((at for at in starts if all(free[at : at + size])), None)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        """Whole, or in parts: a tail returns on its own."""
        number = data.draw(st.sampled_from(sorted(self.taken)))
        at, size = self.taken.pop(number)
        kept = data.draw(st.integers(0, size - 1))
        self.space.give((at + kept) * PAGE_BYTES, (size - kept) * PAGE_BYTES)
        self.pages[at + kept : at + size] = [FREE] * (size - kept)
        if kept:
            self.taken[number] = (at, kept)

    @invariant()
    def ranges_are_the_free_pages(self) -> None:
        ranges = list(zip(self.space.begins, self.space.sizes, strict=True))
        free = [page == FREE for page in self.pages]
        listed = [False] * len(free)
        for begin, size in ranges:
            first, count = begin // PAGE_BYTES, size // PAGE_BYTES
            assert not any(listed[first : first + count])
            listed[first : first + count] = [True] * count
        assert listed == free
        assert all(b + s < nb for (b, s), (nb, _) in zip(ranges, ranges[1:], strict=False))
        assert self.space.free_bytes == sum(free) * PAGE_BYTES
        assert self.space.room_max >= max(self.space.sizes, default=0)


TestSpaceAgainstPages = SpaceAgainstPages.TestCase

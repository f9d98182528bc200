"""Free space of one slab: sorted, coalesced ranges in whole pages."""

from bisect import bisect_left, bisect_right
from typing import Self

import numpy as np

from kvd.limits import PAGE_BYTES


class ExtentMap:
    """First fit over the free ranges `[begins[i], begins[i] + sizes[i])`, which never touch."""

    __slots__ = ("begins", "free_bytes", "room_max", "size", "sizes")

    def __init__(self, size: int) -> None:
        assert size > 0 and size % PAGE_BYTES == 0
        self.size = size
        self.begins = [0]
        self.sizes = [size]
        self.free_bytes = size
        self.room_max = size  # No range is larger: most full slabs are passed over by it.

    @classmethod
    def holding(cls, size: int, offsets: np.ndarray, sizes: np.ndarray) -> Self:
        """Return a map in which these places are taken; no two of them may meet."""
        made = cls(size)
        order = np.argsort(offsets)
        begins = offsets[order].astype(np.int64)
        ends = begins + sizes[order].astype(np.int64)
        rooms = np.append(begins, size) - np.concatenate(([0], ends))
        assert (rooms >= 0).all() and not (begins % PAGE_BYTES).any(), "places that meet"
        free = rooms > 0
        made.begins = np.concatenate(([0], ends))[free].tolist()
        made.sizes = rooms[free].tolist()
        made.free_bytes = sum(made.sizes)
        made.room_max = max(made.sizes, default=0)
        return made

    def take(self, ends: np.ndarray) -> tuple[int, int]:
        """Take strips that end at `ends` (a running sum of sizes) from one range, side by side.

        Return the offset of the first and how many were taken: as many as the first range holds
        that has room for one; (0, 0) when none has.
        """
        first = int(ends[0])
        assert first > 0 and first % PAGE_BYTES == 0
        if first > self.room_max:
            return 0, 0
        for index, room in enumerate(self.sizes):
            if room < first:
                continue
            count = int(np.searchsorted(ends, room, side="right"))
            offset, size = self.begins[index], int(ends[count - 1])
            assert size % PAGE_BYTES == 0
            if room == size:
                del self.begins[index], self.sizes[index]
            else:
                self.begins[index] += size
                self.sizes[index] -= size
            self.free_bytes -= size
            return offset, count
        self.room_max = max(self.sizes, default=0)
        assert self.room_max < first
        return 0, 0

    def give(self, offset: int, size: int) -> None:
        """Take back `[offset, offset + size)`; the whole of it must have been taken."""
        assert size > 0 and size % PAGE_BYTES == 0 and offset % PAGE_BYTES == 0
        end = offset + size
        assert offset >= 0 and end <= self.size
        index = bisect_left(self.begins, offset)
        before, after = index - 1, index
        before_end = self.begins[before] + self.sizes[before] if index else 0
        assert before_end <= offset, "given back twice"
        assert after == len(self.begins) or end <= self.begins[after], "given back twice"
        joins_before = index > 0 and before_end == offset
        joins_after = after < len(self.begins) and end == self.begins[after]
        if joins_before and joins_after:
            self.sizes[before] += size + self.sizes[after]
            del self.begins[after], self.sizes[after]
        elif joins_before:
            self.sizes[before] += size
        elif joins_after:
            self.begins[after] = offset
            self.sizes[after] += size
        else:
            self.begins.insert(index, offset)
            self.sizes.insert(index, size)
        self.free_bytes += size
        self.room_max = max(self.room_max, self._room_at(offset))
        assert self.free_bytes <= self.size

    def is_taken(self, offset: int, size: int) -> bool:
        """Return whether none of `[offset, offset + size)` is free."""
        behind = bisect_right(self.begins, offset)
        if behind and self.begins[behind - 1] + self.sizes[behind - 1] > offset:
            return False
        return behind == len(self.begins) or offset + size <= self.begins[behind]

    def _room_at(self, offset: int) -> int:
        return self.sizes[bisect_right(self.begins, offset) - 1]

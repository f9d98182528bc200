"""Free space of one slab: sorted, coalesced ranges in whole pages."""

from bisect import bisect_left

from kvd.limits import PAGE_BYTES


class ExtentMap:
    """First fit over the free ranges `[begins[i], begins[i] + sizes[i])`, which never touch."""

    __slots__ = ("begins", "free_bytes", "size", "sizes")

    def __init__(self, size: int) -> None:
        assert size > 0 and size % PAGE_BYTES == 0
        self.size = size
        self.begins = [0]
        self.sizes = [size]
        self.free_bytes = size

    def take(self, size: int) -> int | None:
        """Return the offset of `size` bytes taken from the first range that holds them."""
        assert size > 0 and size % PAGE_BYTES == 0
        if size > self.free_bytes:
            return None
        for index, room in enumerate(self.sizes):
            if room < size:
                continue
            offset = self.begins[index]
            if room == size:
                del self.begins[index], self.sizes[index]
            else:
                self.begins[index] += size
                self.sizes[index] -= size
            self.free_bytes -= size
            return offset
        return None

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
        assert self.free_bytes <= self.size

"""A set of small numbers that can be sampled: each joins, leaves and is found in constant time."""

import numpy as np

NOWHERE = -1


class Bag:
    """Numbers below a `room`; `members` are in no order. Joining twice is once."""

    __slots__ = ("_at", "_count", "_items")

    def __init__(self, room: int) -> None:
        self._items = np.zeros(16, np.int64)
        self._at = np.full(room, NOWHERE, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return bool(self._at[number] != NOWHERE)

    @property
    def members(self) -> np.ndarray:
        """Return i64: all numbers, as a view that the next change invalidates."""
        return self._items[: self._count]

    def widen(self, room: int) -> None:
        assert room >= len(self._at)
        more = np.full(room - len(self._at), NOWHERE, np.int64)
        self._at = np.concatenate((self._at, more))

    def add(self, number: int) -> None:
        if self._at[number] != NOWHERE:
            return
        if self._count == len(self._items):
            self._items = np.concatenate((self._items, np.zeros_like(self._items)))
        self._items[self._count] = number
        self._at[number] = self._count
        self._count += 1

    def add_all(self, numbers: np.ndarray) -> None:
        """Add numbers of which each is named once."""
        fresh = numbers[self._at[numbers] == NOWHERE]
        end = self._count + len(fresh)
        if end > len(self._items):
            grown = np.zeros(max(end, 2 * len(self._items)), np.int64)
            grown[: self._count] = self.members
            self._items = grown
        self._items[self._count : end] = fresh
        self._at[fresh] = np.arange(self._count, end)
        self._count = end

    def discard(self, number: int) -> None:
        at = int(self._at[number])
        if at == NOWHERE:
            return
        self._count -= 1
        last = int(self._items[self._count])
        self._items[at] = last
        self._at[last] = at
        self._at[number] = NOWHERE

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return i64: at most `count` members, each once; all of them when there are so few."""
        if self._count <= count:
            return self.members.copy()
        return np.unique(self._items[rng.integers(0, self._count, count)])

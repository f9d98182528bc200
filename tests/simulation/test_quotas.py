"""A tenant within its quotas hits as often beside a flood as alone."""

import random

import pytest

from kvd.clock import NS_PER_S
from kvd.core.quotas import Quota
from kvd.limits import PAGE_BYTES
from kvd.testing.scene import chain_of
from kvd.types import CLASS_COUNT
from tests.unit.disk_scene import LIMITS, DiskScene

SLABS, SEGMENTS = 8, 24
TEXTS, ROUNDS, FLOOD = 40, 40, 2
CHUNKS_ON_DISK = 18  # Less than the quiet tenant's texts have: it lives at its quotas.
QUOTAS = {
    "red": Quota(2 * LIMITS.slab_bytes, CHUNKS_ON_DISK * CLASS_COUNT * PAGE_BYTES),
    "green": Quota(LIMITS.slab_bytes),
}


class _Neighbours(DiskScene):
    """A quiet tenant that asks for texts, some far more often, and puts what it missed."""

    def __init__(self, seed: int, quotas: dict[str, Quota]) -> None:
        super().__init__(SLABS, SEGMENTS, quotas=quotas)
        self._rng, self._red = random.Random(seed), self.join("red")
        self._others = [self.join("blue"), self.join("green"), self.join("blue")]
        self._text = 1000

    def hits(self, flood: int) -> list[int]:
        """Return what each question found, with so many puts of others between two of them."""
        found = []
        for _ in range(ROUNDS):
            self.now_ns += 7 * NS_PER_S
            chain = chain_of(2, int(TEXTS * self._rng.random() ** 3))
            promise = self.fetch(self._red, chain)
            self.settle()
            found.append(sum(promise.counts))
            if promise.lease:
                self.release(self._red, promise.lease)
            if sum(promise.counts) < 6:
                self.put(self._red, chain)
            for _ in range(flood):
                self._text += 1
                self.put(self._next_other(), chain_of(2, self._text))
            self.settle()
            self.wait()
            self.settle()
        return found

    def _next_other(self) -> int:
        return self._others[self._text % len(self._others)]


@pytest.mark.parametrize("seed", range(2))
def test_a_flood_costs_a_tenant_within_its_quotas_no_hit(seed: int) -> None:
    """What it holds is chosen among its own, by its own questions.

    Of strips of one value the first that is looked at goes, and others' rows move that order: it
    may find a chunk more or less, and nothing that adds up.
    """
    alone = sum(_Neighbours(seed, QUOTAS).hits(flood=0))
    assert 0 < alone < 6 * ROUNDS, "it neither misses everything nor nothing"
    assert abs(sum(_Neighbours(seed, QUOTAS).hits(FLOOD)) - alone) <= 3


def test_without_quotas_the_same_flood_costs_hits() -> None:
    alone, beside = (_Neighbours(0, {}).hits(flood) for flood in (0, FLOOD))
    assert sum(beside) < 0.8 * sum(alone)

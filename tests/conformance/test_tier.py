"""The ssd tier between the core's effects and events: the simulator's, and the daemon's hand."""

import heapq
import itertools
import random

import pytest

from kvd.core.disk_effects import LaneName
from kvd.core.state import SsdConfig
from kvd.identity import Keyspace, chain_digests, keyspace_digest
from kvd.shape import BlockShape
from kvd.testing.media import Media
from kvd.testing.memory import FLIP, SECTOR_BYTES, Memory
from kvd.testing.tier import Judge, Tier
from kvd.testing.tier_bench import DIRECTORIES, SEGMENT_BYTES, SEGMENT_PAGES, Source
from kvd.testing.tier_conformance import CHECKS
from kvd.testing.weather import CALM, Weather
from kvd.types import Dtype, Lane
from tests.unit.ssd_scene import SsdScene

SHAPE = BlockShape.of_attention(layers=2, heads=2, width=8, dtype=Dtype.BF16)
KEYSPACE = Keyspace("m", "r", SHAPE, chunk_tokens=4), "red"
DIGEST = keyspace_digest(*KEYSPACE)
SLAB_BYTES = 1 << 20
CONFIG = SsdConfig(DIRECTORIES, SEGMENT_BYTES, segments_max=16)


class FakeRig:
    """The simulated tier with a heap for a world."""

    keyspace = KEYSPACE

    def __init__(self):
        self.rng, self.memory, self.media = random.Random(1), Memory(), Media(SEGMENT_PAGES)
        self.events, self.now_ns, self._heap, self._order = [], 0, [], itertools.count()
        self.memory.create(1, SLAB_BYTES)
        self._end, self._fills = 0, {}
        self._start()

    def deadline_ns(self, wait_ns):
        return self.now_ns + wait_ns

    def _start(self):
        weather = Weather(self.rng, tuple(range(DIRECTORIES)), 64 * SEGMENT_BYTES)
        weather.chances = CALM
        self.tier = Tier(self, CONFIG, self.media, weather, Judge())
        self.recovered = self.media.recover(self.rng)

    def after(self, delay_ns, action):
        heapq.heappush(self._heap, (self.now_ns + delay_ns, next(self._order), action))

    def tell(self, event):
        self.events.append(event)

    def saw(self, situation):
        pass

    def carry_out(self, effect):
        self.tier.carry_out(effect)

    def settle(self, done):
        while not done():
            self.now_ns, _, action = heapq.heappop(self._heap)
            action()

    def restart(self):
        while self._heap:
            self.now_ns, _, action = heapq.heappop(self._heap)
            action()
        self._start()

    def give_room(self, size_bytes):
        begin, self._end = self._end, self._end + size_bytes
        assert self._end <= SLAB_BYTES
        return 1, begin

    def make_strip(self, number, plane_class, pages, *, damaged=False):
        chain, size = chain_digests([number] * 4, 4), pages * 4096
        if number not in self._fills:
            owner = ("red", DIGEST, Lane())
            self._fills[number] = self.memory.begin_fill(owner, chain, 100 + number)
            self._fills[number].sizes = (1 << 16,) * 3
        fill = self._fills[number]
        slab, offset = self.give_room(size)
        words = fill.words(plane_class, 0, size // SECTOR_BYTES)
        self._words(offset, size)[:] = words | FLIP if damaged else words
        name = LaneName(DIGEST, Lane(), 4)
        return Source(
            name, chain, plane_class, 100 + number, 1, fill.root(plane_class), slab, offset, size
        )

    def _words(self, offset, size):
        return self.memory.slabs[1][offset // SECTOR_BYTES : (offset + size) // SECTOR_BYTES]

    def holds(self, slab, offset, source, begin, size):
        fill = self.memory.find_fill(source.generation, source.chain)
        first = begin // SECTOR_BYTES
        words = fill.words(source.plane_class, first, first + size // SECTOR_BYTES)
        return bool((self._words(offset, size) == words).all())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_simulated_tier(check):
    check(FakeRig())


@pytest.fixture
def scene(tmp_path):
    scene = SsdScene(tmp_path)
    yield scene
    scene.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_daemon_hand(check, scene):
    check(scene)

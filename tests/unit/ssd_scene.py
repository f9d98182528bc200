"""The daemon's hand for the ssd tier over real directories, and what it told."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvd.arena.memfd import map_memory
from kvd.arena.slabs import MemfdArena
from kvd.clock import MonotonicClock
from kvd.config import SsdSettings
from kvd.core.disk_effects import LaneName
from kvd.daemon.recovery import find_tier
from kvd.daemon.ssd import SsdHand
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.disk.posix import PosixDisk
from kvd.format.keyspaces import pack_keyspace
from kvd.identity import Keyspace, chain_digests, chunk_key
from kvd.limits import MIB
from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.testing.disk_strips import CELLS, PROFILE, make_strip
from kvd.testing.tier_bench import DIRECTORIES, SEGMENT_BYTES, Source
from kvd.types import Dtype, Lane, Role

DEADLINE_S = 30.0
SLAB, SLAB_BYTES = 1, 4 * MIB
BUDGET_BYTES = 16 * MIB
SHAPE = BlockShape((KvGroup(CELLS, (TensorShape(Role.K, 1, 8, Dtype.BF16),)),))
KEYSPACE = Keyspace("m", "r", SHAPE), "red"
DIGEST, _ = pack_keyspace(*KEYSPACE)
NAME = LaneName(DIGEST, Lane(), CELLS)


class SsdScene:
    """A rig for the tier's conformance suite, and for what the suite cannot see."""

    keyspace = KEYSPACE

    def __init__(self, root: Path, open_disk=PosixDisk) -> None:
        self.paths = tuple(root / str(number) for number in range(DIRECTORIES))
        self.settings = SsdSettings(self.paths, BUDGET_BYTES)
        # Smaller segments than a budget would choose, as the suite fills one.
        for directory in open_directories(self.paths, SEGMENT_BYTES, OsFiles()):
            directory.release()
        self._open_disk, self._moved = open_disk, threading.Condition()
        self.events = []
        self._strips, self._end = {}, 0
        self.arena = MemfdArena(lambda slab, fault: None, slabs_max=8)
        self.arena.create_slab(SLAB, SLAB_BYTES)
        descriptor = self.arena.slab_descriptor(SLAB, writable=True)
        self.memory = map_memory(descriptor, SLAB_BYTES, writable=True)
        self.open()

    def open(self) -> None:
        self.found = find_tier(self.settings)
        self.recovered = self.found.give_recovered()
        clock = MonotonicClock()
        self.hand = SsdHand(self.found, self.arena, clock, self._told, self._open_disk)

    def restart(self) -> None:
        self.hand.close()
        self.open()

    def close(self) -> None:
        self.hand.close()
        self.arena.close()

    def carry_out(self, effect) -> None:
        self.hand.carry_out(effect)

    def settle(self, done) -> None:
        with self._moved:
            assert self._moved.wait_for(done, DEADLINE_S), self.events

    def deadline_ns(self, wait_ns: int) -> int:
        return MonotonicClock().now_ns() + wait_ns

    def give_room(self, size_bytes: int) -> tuple[int, int]:
        begin, self._end = self._end, self._end + size_bytes
        assert self._end <= SLAB_BYTES
        return SLAB, begin

    def make_strip(self, number, plane_class, pages, *, damaged=False) -> Source:
        chain = chain_digests([number] * 64, 64)
        strip = replace(
            make_strip(number, pages, plane_class), key=chunk_key(DIGEST, chain), lane=0
        )
        slab, offset = self.give_room(len(strip.data))
        self.memory[offset : offset + len(strip.data)] = np.frombuffer(strip.data, np.uint8)
        self._strips[chain, plane_class] = strip.data
        root = strip.root ^ damaged
        size, generation = len(strip.data), strip.generation
        return Source(NAME, chain, plane_class, generation, PROFILE, root, slab, offset, size)

    def holds(self, slab, offset, source, begin, size) -> bool:
        data = self._strips[source.chain, source.plane_class]
        return self.memory[offset : offset + size].tobytes() == data[begin : begin + size]

    def _told(self, event) -> None:
        with self._moved:
            self.events.append(event)
            self._moved.notify_all()

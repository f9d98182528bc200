"""Random work under random faults: what was said to be written is read, or its segment is gone."""

import errno
import random

import pytest

from kvd.errors import FaultKind
from kvd.limits import PAGE_BYTES, DiskBounds
from kvd.testing.disk_conformance import GOOD, Bench
from kvd.testing.disk_strips import At, make_strip, names_of
from tests.unit.disk_double import DiskRig, Elsewhere, Short, failure

SEGMENTS = range(1, 4)
STRIPS = 10
STEPS = 40


class Weather:
    """Makes few calls fail, in one of many ways."""

    def __init__(self, rng):
        self._rng, self.on = rng, True

    def __call__(self, call):
        if not self.on or self._rng.random() > 0.06:
            return None
        kind = self._rng.choice(("io", "space", "short", "none", "elsewhere"))
        if kind == "elsewhere" and call.name == "preadv" and call.offset:
            return Elsewhere(2 * PAGE_BYTES)
        if kind in ("short", "none") and call.name in ("preadv", "pwritev") and call.offset:
            return Short(PAGE_BYTES if kind == "short" else 0)
        return failure(errno.ENOSPC if kind == "space" else errno.EIO)


class World:
    """A disk, and what it said of each place: a strip, or None when that is not known."""

    def __init__(self, tmp_path, seed):
        self.rng = random.Random(seed)
        self.weather = Weather(self.rng)
        self.weather.on = False
        rig = DiskRig(tmp_path, self.weather, DiskBounds(open_segments_max=2, read_threads=2))
        self.bench, self.number = Bench(rig), 0
        self.weather.on = True
        self.epochs = dict.fromkeys(SEGMENTS, 0)  # 0: not there, or not known to be.
        self.last = dict.fromkeys(SEGMENTS, 0)
        self.said = {}

    def step(self):
        segment = self.rng.choice(SEGMENTS)
        act = self.rng.choice((self.write, self.write, self.read, self.read, self.renew, self.drop))
        act(segment)

    def renew(self, segment):
        change = self.bench.recycle if self.epochs[segment] else self.bench.make
        self.last[segment] += 1
        epoch = self.last[segment]
        fault = change(epoch=epoch, segment=segment)
        self.forget(segment)
        self.epochs[segment] = epoch if fault is None else 0
        if fault is not None:
            self.drop(segment)

    def drop(self, segment):
        self.forget(segment)
        while self.bench.drop(segment) is not None:
            pass  # It may have been removed all the same; asking again must do no harm.
        self.epochs[segment] = 0

    def forget(self, segment):
        self.said = {at: strip for at, strip in self.said.items() if at.segment != segment}

    def write(self, segment):
        epoch = self.epochs[segment] or 1
        count = self.rng.randint(1, STRIPS)
        places = [At(1 + 2 * i, segment=segment, epoch=epoch) for i in range(count)]
        self.rng.shuffle(places)
        self.number += count
        strips = [make_strip(self.number + i) for i in range(count)]
        kinds = self.bench.write(strips, places)
        for place, strip, kind in zip(places, strips, kinds, strict=True):
            self.said.pop(place, None)
            if kind == GOOD:
                assert self.epochs[segment] == epoch
                self.said[place] = strip
        if not self.epochs[segment]:
            assert GOOD not in kinds

    def read(self, segment):
        known = [(at, strip) for at, strip in self.said.items() if at.segment == segment]
        self.rng.shuffle(known)
        if not known:
            return
        places, strips = zip(*known, strict=True)
        kinds, data = self.bench.read(list(places), names_of(list(strips)))
        for kind, found, strip in zip(kinds, data, strips, strict=True):
            if kind == GOOD:
                assert found == strip.data
            else:
                assert self.weather.on and kind in (
                    FaultKind.IO, FaultKind.NO_SPACE, FaultKind.CHECKSUM, FaultKind.GONE,
                )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_random_work_under_faults(tmp_path, seed):
    world = World(tmp_path, seed)
    for _ in range(STEPS):
        world.step()
    world.weather.on = False
    for segment in SEGMENTS:
        world.read(segment)
    before = dict(world.said)
    world.bench.disk.close()

    again = Bench(world.bench.rig)
    for place, strip in before.items():
        assert again.read([place], names_of([strip])) == ([GOOD], [strip.data])
    again.disk.close()

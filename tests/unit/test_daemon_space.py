"""Free space is looked at, whatever directory fails or hangs: the budget is of all of them (I8)."""

import errno
import os
import threading

import pytest

from kvd.core.disk_effects import MeasureSpace, ProbeDirectory
from kvd.core.disk_events import Probed, SpaceSeen
from kvd.errors import FaultKind
from kvd.limits import MIB
from tests.unit.ssd_scene import DEADLINE_S, SsdScene


@pytest.fixture
def scene(tmp_path):
    scene = SsdScene(tmp_path)
    yield scene
    scene.close()


class FileSystems:
    """What is free where, by directory: a number of a device and bytes, or what goes wrong."""

    def __init__(self, scene, monkeypatch):
        self.of = {path: (number, MIB) for number, path in enumerate(scene.paths)}
        self.over, self.hung = threading.Event(), threading.Semaphore(0)
        self._scene = scene
        monkeypatch.setattr("kvd.daemon.space.free_space", self.look)

    def look(self, path):
        match self.of[path]:
            case "hangs":
                self.hung.release()
                assert self.over.wait(DEADLINE_S)
                return 9, 9 * MIB
            case OSError() as error:
                raise error
            case seen:
                return seen

    def show(self, devices, sizes):
        """Look until this is told; a look that was under way may tell what was before."""
        expected = SpaceSeen(devices, tuple(size * MIB for size in sizes))
        seen = []
        for _ in range(3):
            del self._scene.events[:]
            self._scene.carry_out(MeasureSpace())
            self._scene.settle(lambda: any(isinstance(e, SpaceSeen) for e in self._scene.events))
            seen += [e for e in self._scene.events if isinstance(e, SpaceSeen)]
            if seen[-1] == expected:
                return
        raise AssertionError(seen)


@pytest.fixture
def systems(scene, monkeypatch):
    systems = FileSystems(scene, monkeypatch)
    yield systems
    systems.over.set()


GONE = OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def test_a_directory_whose_space_cannot_be_seen_is_named_and_the_others_are_watched(scene, systems):
    first, second = scene.paths
    systems.show((0, 1), (1, 1))
    systems.of |= {first: GONE, second: (1, 5 * MIB)}
    systems.show((0, 1), (1, 5))
    [fault] = [e for e in scene.events if isinstance(e, Probed)]
    assert fault.directory == 0 and fault.fault.kind == FaultKind.GONE
    systems.of |= {first: (0, 3 * MIB), second: GONE}
    systems.show((0, 1), (3, 5))


def test_directories_of_one_device_have_one_number(scene, systems):
    """Else the core would count the device twice."""
    first, second = scene.paths
    systems.of |= {first: (7, MIB), second: (7, MIB)}
    systems.show((7, 7), (1, 1))
    systems.of |= {first: GONE, second: (7, 2 * MIB)}
    systems.show((7, 7), (2, 2))


def test_a_directory_that_was_never_seen_adds_nothing(scene, systems):
    systems.of[scene.paths[0]] = GONE
    systems.show((1, 1), (1, 1))


def test_a_directory_that_hangs_hides_no_other_one(scene, systems):
    first, second = scene.paths
    systems.show((0, 1), (1, 1))
    systems.of[first] = "hangs"
    scene.carry_out(MeasureSpace())
    assert systems.hung.acquire(timeout=DEADLINE_S)
    for size in (2, 3):
        systems.of[second] = (1, size * MIB)
        systems.show((0, 1), (1, size))
    del scene.events[:]
    systems.over.set()
    scene.settle(lambda: scene.events == [SpaceSeen((9, 1), (9 * MIB, 3 * MIB))])


def test_file_systems_that_hang_block_nobody(scene, systems):
    systems.of = dict.fromkeys(scene.paths, "hangs")
    for _ in range(5):
        scene.carry_out(MeasureSpace())
    for _ in scene.paths:
        assert systems.hung.acquire(timeout=DEADLINE_S)
    scene.carry_out(ProbeDirectory(0))
    scene.settle(lambda: scene.events == [Probed(0, None)])
    systems.over.set()
    scene.settle(lambda: SpaceSeen((9, 9), (9 * MIB, 9 * MIB)) in scene.events[1:])

"""A flipped bit in every kind of file, each kind cut short, and gone: a miss, and a put heals.

Never wrong bytes, never a hang, never a traceback. `--points N` tries more places.
"""

import copy
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from kvd.catalog.contract import DATA_NAME
from kvd.catalog.environment import LOCK_NAME
from kvd.catalog.loading import load_catalog
from kvd.client import Stored
from kvd.errors import Fault
from kvd.format.segment import segment_name
from kvd.limits import MIB, PAGE_BYTES
from kvd.table import TABLE_ENTRY
from kvd.types import CLASS_COUNT, PlaneClass
from tests.crash.model import KEPT, Model, Prompt
from tests.crash.node import Node
from tests.crash.places import made_node, memory_or
from tests.crash.work import fetched
from tests.e2e.process import DEADLINE_S
from tests.e2e.ssd_node import until

CELLS = 4
ANSWER_S_MAX = 10.0
ROUNDS = 2
HEALINGS = 3
DEGRADED = "/catalog is degraded"
PROMPTS = [
    Prompt(KEPT, tuple(range(10, 16))),
    Prompt(KEPT, (10, 11, 12, 23, 24)),
    *(Prompt(KEPT, tuple(range(first, first + 5))) for first in range(100, 160, 10)),
]


@dataclass(frozen=True, slots=True)
class Place:
    """A strip on disk."""

    path: Path
    plane_class: int
    offset: int
    size_bytes: int


@dataclass(slots=True)
class Scene:
    """A node that ended well, its data directory, and what is in it."""

    node: Node
    model: Model
    data: Path
    chance: random.Random
    strips: list[Place]

    @property
    def catalog(self) -> Path:
        return self.data / "catalog" / DATA_NAME

    def strip(self, plane_class: int | None = None) -> Place:
        some = [s for s in self.strips if plane_class is None or s.plane_class == plane_class]
        return self.chance.choice(some)


def flip(path: Path, begin: int, end: int, chance: random.Random) -> None:
    """Flip one bit of a file's bytes [begin, end)."""
    descriptor = os.open(path, os.O_RDWR)
    at = chance.randrange(begin, end)
    [byte] = os.pread(descriptor, 1, at)
    os.pwrite(descriptor, bytes([byte ^ 1 << chance.randrange(8)]), at)
    os.close(descriptor)


# ---- what is damaged ----


def flip_file(name: str) -> Callable[[Scene], None]:
    def damage(scene: Scene) -> None:
        path = scene.data / name
        flip(path, 0, path.stat().st_size, scene.chance)

    return damage


def flip_head(scene: Scene) -> None:
    flip(scene.strip().path, 0, PAGE_BYTES, scene.chance)


def flip_table(scene: Scene) -> None:
    strip = scene.strip()
    end = strip.offset + CELLS * TABLE_ENTRY.itemsize
    flip(strip.path, strip.offset, end, scene.chance)


def flip_cell(plane_class: int) -> Callable[[Scene], None]:
    def damage(scene: Scene) -> None:
        strip = scene.strip(plane_class)
        data = strip.path.read_bytes()[strip.offset :]
        table = np.frombuffer(data[: CELLS * TABLE_ENTRY.itemsize], TABLE_ENTRY)
        entry = scene.chance.choice([each for each in table if each["length"] & (1 << 28) - 1])
        begin = strip.offset + int(entry["offset"])
        flip(strip.path, begin, begin + (int(entry["length"]) & (1 << 28) - 1), scene.chance)

    return damage


def flip_catalog(scene: Scene) -> None:
    data = scene.catalog.read_bytes()
    pages = [at for at in range(0, len(data), PAGE_BYTES) if any(data[at : at + PAGE_BYTES])]
    at = scene.chance.choice(pages)
    used = [at + i for i, byte in enumerate(data[at : at + PAGE_BYTES]) if byte]
    begin = scene.chance.choice(used)
    flip(scene.catalog, begin, begin + 1, scene.chance)


def cut(name: str) -> Callable[[Scene], None]:
    def damage(scene: Scene) -> None:
        path = scene.data / name
        os.truncate(path, scene.chance.choice((0, scene.chance.randrange(path.stat().st_size))))

    return damage


def cut_segment(scene: Scene) -> None:
    strip = scene.strip()
    ends = (0, PAGE_BYTES, strip.offset, strip.offset + strip.size_bytes - 1)
    os.truncate(strip.path, scene.chance.choice(ends))


def remove(name: str) -> Callable[[Scene], None]:
    return lambda scene: (scene.data / name).unlink()


def remove_segment(scene: Scene) -> None:
    scene.strip().path.unlink(missing_ok=True)


HARMLESS = {  # Nothing is missed.
    "a flipped lock": flip_file("lock"),
    "a flipped canary": flip_file("canary"),
    "a cut lock": cut("lock"),
    "a cut canary": cut("canary"),
    "no lock": remove("lock"),
    "no canary": remove("canary"),
    "a flipped lock of the catalog": flip_file(f"catalog/{LOCK_NAME}"),
    "a cut lock of the catalog": cut(f"catalog/{LOCK_NAME}"),
    "no lock of the catalog": remove(f"catalog/{LOCK_NAME}"),
}
REFUSED = {  # One line says what is wrong.
    "a flipped superblock": flip_file("superblock"),
    "a cut superblock": cut("superblock"),
    "no superblock": remove("superblock"),
}
MISSED = {
    "a flipped head": flip_head,
    "a flipped table": flip_table,
    **{f"a flipped cell of {c.name.lower()}": flip_cell(c) for c in PlaneClass},
    "a cut segment": cut_segment,
    "no segment": remove_segment,
}
PERHAPS = {  # What it costs depends on where it is.
    "a flipped catalog": flip_catalog,
    "a cut catalog": cut(f"catalog/{DATA_NAME}"),
}


# ---- the scene ----


@pytest.fixture(scope="module")
def whole(nursery, tmp_path_factory):
    """Yield a data directory with much in it, of a daemon that was killed."""
    root = memory_or(tmp_path_factory.mktemp("whole"))
    node = made_node(nursery, root, 40)
    model = Model(node.drops)
    assert node.start()
    for prompt in PROMPTS:
        assert model.put(node.client.keyspace(KEPT), prompt, "disk", DEADLINE_S).durable
    node.end()
    node.close()
    yield node, model
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def new_scene(whole, nursery, quick_directory, chance) -> Iterator[Callable[[], Scene]]:
    source, known = whole
    made: list[Node] = []

    def new() -> Scene:
        ignored = shutil.ignore_patterns("run")
        root = quick_directory / str(len(made))
        shutil.copytree(source.setting.root, root, ignore=ignored)
        data = root / source.setting.paths[0].name
        node = Node(nursery, replace(source.setting, root=root, run=root / "run", paths=(data,)))
        made.append(node)
        model = copy.deepcopy(known)
        model.drops = node.drops
        return Scene(node, model, data, chance, strips_of(data))

    yield new
    for node in made:
        node.close()


def strips_of(data: Path) -> list[Place]:
    contents = load_catalog(data / "catalog")
    assert not isinstance(contents, Fault), contents
    places = []
    for row in contents.rows:
        for plane_class in range(CLASS_COUNT):
            path = data / "segments" / segment_name(int(row["segment"][plane_class]))
            offset, size = int(row["page"][plane_class]), int(row["pages"][plane_class])
            places.append(Place(path, plane_class, offset * PAGE_BYTES, size * PAGE_BYTES))
    return places


@pytest.fixture
def rounds(request):
    return range(request.config.getoption("points") or ROUNDS)


# ---- what comes of it ----


@pytest.mark.parametrize("what", HARMLESS)
def test_it_costs_nothing(what, new_scene):
    scene = new_scene()
    HARMLESS[what](scene)
    _start(scene)
    assert not _missed(scene)
    assert_right(scene, what)
    code, found = _ended(scene).check()
    assert code == 0 and not found["left"], found


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_one_line(what, new_scene, rounds):
    for _ in rounds:
        scene = new_scene()
        REFUSED[what](scene)
        scene.node.budget_bytes = 16 * MIB  # As if it were new, which it is not.
        assert not scene.node.start()
        [line] = scene.node.daemon.lines
        assert scene.node.end() == 2 and str(scene.data) in line and "superblock" in line, line


def test_no_catalog_is_refused_until_a_person_calls_it_lost(new_scene):
    scene, what = new_scene(), "no catalog"
    scene.catalog.unlink()
    assert not scene.node.start()
    line = scene.node.daemon.lines[-1]
    assert scene.node.end() == 2 and str(scene.data) in line and "kvd check --repair" in line
    assert len(list((scene.data / "segments").iterdir())) >= CLASS_COUNT
    code, found = scene.node.check("--repair")
    assert code == 1 and found["wrong"] == {"catalog": 1}, found
    _start(scene)
    assert _missed(scene)
    _heal(scene, what)
    assert_right(scene, what)


@pytest.mark.parametrize("what", MISSED)
def test_it_is_missed_and_the_next_put_heals(what, new_scene, rounds):
    scene = new_scene()
    for _ in rounds:  # All in one: each costs what it touches only.
        MISSED[what](scene)
    code, found = scene.node.check()
    assert code == 1 and set(found["wrong"]) <= {"segment", "strip", "cell"}, found
    _start(scene)
    assert _missed(scene), scene.node.daemon.lines
    assert_right(scene, what)
    _heal(scene, what)


@pytest.mark.parametrize("what", PERHAPS)
def test_whatever_it_costs_the_next_put_heals(what, new_scene, rounds):
    for _ in rounds:
        scene = new_scene()
        PERHAPS[what](scene)
        _start(scene)
        _missed(scene)
        assert_right(scene, what)
        _heal(scene, what)


def _start(scene: Scene) -> None:
    scene.model.damaged()
    assert scene.node.start(), scene.node.daemon.lines


def _missed(scene: Scene) -> int:
    """Fetch everything, compare what is good of it, and return how many strips are not."""
    missed = 0
    for prompt in PROMPTS:
        begin = time.monotonic()
        with fetched(lambda p=prompt: scene.node.client.keyspace(KEPT).fetch(p.chain)) as fetch:
            list(fetch.arrivals())
            for class_count in range(1, CLASS_COUNT + 1):
                good = scene.model.compare_good(prompt, fetch, class_count, "after damage")
                missed += len(prompt.numbers) - good
        assert time.monotonic() - begin < ANSWER_S_MAX
    return missed


def _heal(scene: Scene, what: str) -> None:
    """Put what is missed, and find it, now and after a kill.

    Again, as what lies behind a chunk that is missed is read only once that one is back.
    """
    node, model = scene.node, scene.model
    for _ in range(HEALINGS):
        for prompt in PROMPTS:
            until(lambda p=prompt: _put(scene, p).durable, f"{what}: what is put again is durable")
        if not _missed(scene):
            break
    assert not _missed(scene), what
    _ended(scene)
    model.restarted()
    assert node.start(), node.daemon.lines
    assert not _missed(scene), what
    assert_right(scene, what)
    _, found = _ended(scene).check()
    # A file that was cut keeps its size until it is removed.
    assert set(found["wrong"]) <= ({"segment"} if what == "a cut segment" else set()), found


def _put(scene: Scene, prompt: Prompt) -> Stored:
    """Put a prompt; of a catalog whose damage was found late, after a person has repaired it."""
    stored = scene.model.put(scene.node.client.keyspace(KEPT), prompt, "disk", DEADLINE_S)
    if not stored.durable and any(DEGRADED in line for line in scene.node.daemon.lines):
        _ended(scene)
        code, found = scene.node.check("--repair")
        assert code == 1 and found["wrong"] == {"catalog": 1}, found
        _start(scene)
    return stored


def _ended(scene: Scene) -> Node:
    assert not scene.node.said_badly()
    scene.node.end()
    return scene.node


def assert_right(scene: Scene, what: str) -> None:
    assert not scene.model.wrong, (what, scene.model.wrong)

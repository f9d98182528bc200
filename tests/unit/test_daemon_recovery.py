"""Recovery believes what catalog and directories agree on, and puts the rest right."""

import errno
import logging
import os

import numpy as np
import pytest

from kvd.catalog.contract import Changes, Table
from kvd.catalog.environment import Environment, make_environment
from kvd.catalog.loading import load_catalog
from kvd.config import SsdSettings
from kvd.core.disk_effects import Commit
from kvd.core.disk_events import Recovered
from kvd.core.state import CoreConfig, new_state
from kvd.core.step import step
from kvd.daemon import recovery
from kvd.daemon.reconciling import in_parts
from kvd.daemon.recovery import find_tier
from kvd.daemon.translating import changes_of
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.errors import ErrorKind, Fault, FaultKind, KvdError
from kvd.format.rows import keys_of, put_lane, seal_rows
from kvd.limits import KIB, MIB
from kvd.types import Lane
from tests.unit.catalog_scene import DATA, DIGEST, rows_of, segments_of
from tests.unit.disk_double import is_locked

BUDGET = 32 * MIB
MAP = 4 * MIB


class Scene:
    """Two data directories, of which the first holds a catalog; segments lie by their number."""

    def __init__(self, root):
        self.paths = (root / "a", root / "b")
        directories = open_directories(self.paths, 1 * MIB, OsFiles())
        self.uuids = tuple(each.superblock.directory for each in directories)
        for directory in directories:
            directory.release()
        self.catalog = self.paths[0] / "catalog"
        make_environment(self.catalog, MAP)
        foundation = Changes(
            segments=segments_of(), keyspaces=((DIGEST, DATA),), directories=self.uuids,
            generation=100, written=(3, 4096),
        )  # fmt: skip
        self.put(foundation)
        for segment in range(3):
            self.segment(segment).touch()

    def segment(self, number, directory=0):
        return self.paths[directory] / "segments" / f"{number:08d}"

    def put(self, changes):
        environment = Environment(self.catalog, MAP)
        environment.apply([changes])
        environment.close()

    def find(self, paths=None, budget=BUDGET):
        self.found = found = find_tier(SsdSettings(paths or self.paths, budget))
        self.recovered = found.give_recovered()
        for directory in found.directories:
            directory.release()
        return self.recovered

    def purge(self):
        """Do to the catalog what was found to be needed."""
        for changes in self.found.purge:
            self.put(changes)
        return load_catalog(self.catalog)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def there(recovered: Recovered) -> list[list[int]]:
    return (recovered.rows.page_counts != 0).sum(axis=0).tolist()


def test_what_is_whole_is_given_as_it_was_put(scene):
    rows = rows_of(range(40))
    scene.put(Changes(rows=rows))
    recovered = scene.find()
    columns = recovered.rows
    assert scene.found.purge == ()
    assert (recovered.generation, recovered.written) == (100, (3, 4096))
    assert [s.segment for s in recovered.segments] == [0, 1, 2]
    [name] = columns.keys.names
    assert (name.keyspace, name.lane, name.cells) == (DIGEST, Lane(), 4)
    order = np.argsort([row.tobytes() for row in rows["chain"]])
    assert columns.keys.chain == [row.tobytes() for row in rows["chain"][order]]
    assert columns.parents == [row.tobytes() for row in rows["parent"][order]]
    for name in ("generation", "profile", "heat", "root", "directory", "segment", "epoch", "page"):
        plural = {"directory": "directories"}.get(name, name + "s")
        assert (getattr(columns, plural) == rows[name][order]).all(), name
    assert (columns.page_counts == 2).all()


def test_the_first_chunk_has_no_parent(scene):
    rows = rows_of(range(2))
    rows["parent"][0] = 0
    seal_rows(rows)
    scene.put(Changes(rows=rows))
    assert sorted(map(len, scene.find().rows.parents)) == [0, 32]


def test_lanes_are_told_apart(scene):
    deep, odd = rows_of(range(3)), rows_of(range(3))
    put_lane(odd, DIGEST, Lane(kv_group=1))  # Of a group that its keyspace has not.
    seal_rows(odd)
    scene.put(Changes(rows=np.concatenate([deep, odd])))
    recovered = scene.find()
    assert len(recovered.rows.parents) == 3
    contents = scene.purge()
    assert len(contents.rows) == 3 and scene.find() and scene.found.purge == ()


@pytest.mark.parametrize(
    ("gone", "left"), [(0, [0, 0, 0]), (1, [40, 0, 0]), (2, [40, 40, 0])], ids=str
)
def test_a_segment_that_is_gone_takes_its_class_and_those_behind_it(scene, caplog, gone, left):
    rows = rows_of(range(40))
    rows["parent"], rows["page"] = 0, 1 + 2 * np.arange(40)[:, None]
    seal_rows(rows)
    scene.put(Changes(rows=rows))
    scene.segment(gone).unlink()
    recovered = scene.find()
    assert recovered.lost == ((0, gone),) and recovered.number == 2
    assert "1 segments are gone, and with them the strips of 40 chunks" in caplog.text
    assert scene.found.purge == (), "the core has it told, until it is heard"
    state = new_state(CoreConfig(64 * MIB, ssd=scene.found.config), 1)
    [commit] = [e for e in step(state, recovered, 1) if isinstance(e, Commit)]
    scene.put(changes_of(commit, scene.uuids))
    contents = load_catalog(scene.catalog)
    assert (contents.rows["pages"] != 0).sum(axis=0).tolist() == left
    assert contents.refused == {}
    caplog.clear()
    assert there(scene.find()) == left and scene.found.purge == ()
    assert "are gone" not in caplog.text


def test_what_only_refused_rows_name_counts_as_named(scene):
    lost = rows_of(range(3))
    lost["segment"], lost["epoch"] = 9, 4
    seal_rows(lost)
    scene.put(Changes(rows=lost))
    assert scene.find().number == 9


def test_many_changes_are_committed_in_parts():
    keys, entry = keys_of(rows_of(range(20_000))), (Table.SEGMENTS, bytes(8))
    parts = in_parts(Changes(dropped_rows=keys, dropped=(entry,)))
    assert [part.items for part in parts] == [16_384, 3_616, 1]
    assert np.concatenate([part.dropped_rows for part in parts]).tobytes() == keys.tobytes()
    assert in_parts(Changes()) == ()


def test_segments_that_no_catalog_knows_are_removed(scene, caplog):
    caplog.set_level(logging.INFO)
    scene.put(Changes(rows=rows_of(range(4))))
    scene.segment(7).write_bytes(bytes(64 * KIB))
    scene.segment(1, directory=1).touch()
    (scene.paths[1] / "segments" / "notes").touch()
    assert there(scene.find()) == [4, 4, 4]
    assert len(os.listdir(scene.paths[0] / "segments")) == 3
    assert os.listdir(scene.paths[1] / "segments") == ["notes"]
    said = "2 segments that the catalog does not know are removed: 64KiB are free again"
    assert said in caplog.text


def test_more_segments_than_the_budget_allows_are_all_told(scene):
    segments = segments_of(30)
    scene.put(Changes(segments=segments))
    for number in range(3, 30):
        scene.segment(number).touch()
    recovered = scene.find(budget=16 * MIB)
    assert len(recovered.segments) == 30 > scene.found.config.segments_max >= 6


def test_segments_without_a_catalog_are_left_alone_and_refused(scene):
    """As of a mount that is missing: only a person may call it lost."""
    (scene.catalog / "data.mdb").unlink()
    with pytest.raises(
        KvdError, match="is not there, and 3 segments are.*kvd check --repair"
    ) as no:
        scene.find()
    assert no.value.kind == ErrorKind.UNAVAILABLE and "\n" not in no.value.message
    assert len(os.listdir(scene.paths[0] / "segments")) == 3
    assert not any(is_locked(path / "lock") for path in scene.paths)


def test_without_a_catalog_and_segments_everything_begins_anew(scene):
    (scene.catalog / "data.mdb").unlink()
    for segment in range(3):
        scene.segment(segment).unlink()
    recovered = scene.find()
    assert not recovered.segments and not recovered.keyspaces and not recovered.rows.parents
    assert recovered.generation == 0
    assert [part.directories for part in scene.found.purge] == [scene.uuids]


def test_a_damaged_catalog_goes_only_after_its_segments(scene, monkeypatch):
    """What ends a start in between leaves what the next one calls damaged again, not gone."""
    (scene.catalog / "data.mdb").write_bytes(b"\xa5" * MAP)
    gone = []

    def unlink(self, path):
        if gone:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        gone.append(os.unlink(path))

    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "unlink", unlink)
        with pytest.raises(KvdError, match="cannot be used"):
            scene.find()
    assert gone and (scene.catalog / "data.mdb").exists()
    assert not scene.find().segments and not os.listdir(scene.paths[0] / "segments")


def test_a_damaged_catalog_is_removed_with_its_segments_and_said_once(scene, caplog):
    scene.put(Changes(rows=rows_of(range(4))))
    (scene.catalog / "data.mdb").write_bytes(b"\xa5" * MAP)
    assert not scene.find().segments
    assert not scene.catalog.exists() and not os.listdir(scene.paths[0] / "segments")
    assert [r.levelno for r in caplog.records].count(logging.ERROR) == 1


def test_a_catalog_that_cannot_be_read_is_left_alone_and_refused(scene, monkeypatch):
    def fails(path):
        return Fault(FaultKind.IO, "the catalog cannot be read today")

    monkeypatch.setattr(recovery, "load_catalog", fails)
    with pytest.raises(KvdError, match="cannot be read today; nothing was changed") as refused:
        scene.find()
    assert refused.value.kind == ErrorKind.UNAVAILABLE
    assert (scene.catalog / "data.mdb").exists() and scene.segment(1).exists()
    assert not any(is_locked(path / "lock") for path in scene.paths)


def test_a_directory_that_is_not_given_is_named(scene):
    with pytest.raises(KvdError, match=scene.uuids[1].hex()):
        scene.find(paths=scene.paths[:1])
    assert not is_locked(scene.paths[0] / "lock")


def test_a_new_directory_comes_behind_and_the_catalog_is_told(scene, tmp_path):
    scene.put(Changes(rows=rows_of(range(4))))
    fresh = tmp_path / "0"
    assert there(scene.find(paths=(fresh, *scene.paths[::-1]))) == [4, 4, 4]
    assert [each.path for each in scene.found.directories] == [*scene.paths, fresh]
    told = scene.purge().meta.directories
    assert told[:2] == scene.uuids and len(told) == 3


def test_nothing_is_made_for_a_budget_that_is_refused(tmp_path):
    for budget in (9 * MIB, 1 << 60):
        with pytest.raises(KvdError, match="--ssd"):
            find_tier(SsdSettings((tmp_path / "new",), budget))
    assert not (tmp_path / "new").exists()


def test_what_a_keyspace_does_not_cover_is_dropped_from_the_catalog(scene, caplog):
    rows = rows_of(range(8))
    rows["keyspace"][3:] ^= 1
    seal_rows(rows)
    scene.put(Changes(rows=rows))
    assert len(scene.find().rows.parents) == 3
    assert "5 entries left out: of no known keyspace" in caplog.text
    dropped = np.concatenate([part.dropped_rows for part in scene.found.purge])
    assert {key.tobytes() for key in dropped} == {key.tobytes() for key in keys_of(rows[3:])}

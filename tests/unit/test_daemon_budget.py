"""A budget is divided so that all of it fits, or refused with the numbers on both sides."""

from pathlib import Path

import pytest

from kvd.daemon.budget import FileSystem, Places, default_bytes, divide, look
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.errors import ErrorKind, KvdError
from kvd.limits import GIB, MIB

TIB = 1024 * GIB


def places(free=1 * TIB, total=2 * TIB, ours=0, paths=1, old_map=0, is_new=True):
    system = FileSystem(1, total, free)
    names = tuple(Path(f"/data{number}") for number in range(paths))
    return Places(names, (system,), ours, old_map, is_new)


@pytest.mark.parametrize("paths", [1, 2, 8])
@pytest.mark.parametrize(
    ("size", "segment"),
    [(12 * MIB, 1), (16 * MIB, 1), (64 * MIB, 4), (256 * MIB, 16), (1 * GIB, 64), (16 * GIB, 64)],
)
def test_segments_are_as_large_as_twelve_of_them_can_be(size, segment, paths):
    budget = divide(places(paths=paths), size)
    assert budget.segment_bytes in (segment * MIB, segment * MIB // 2)
    assert budget.segments_max >= 6
    used = budget.map_bytes + budget.segments_max * budget.segment_bytes
    assert used < size and size - used < budget.segment_bytes + paths * MIB
    if budget.segment_bytes > MIB:
        assert budget.segments_max >= 12


@pytest.mark.parametrize(
    ("arguments", "size", "words"),
    [
        ({}, 10 * MIB, ("ssd is 10MiB", "10.2MiB are needed", "6 segments of 1MiB", "--ssd")),
        ({"paths": 9}, 10 * MIB, ("10.7MiB",)),
        ({"old_map": 300 * MIB}, 300 * MIB, ("306.2MiB",)),
        ({"free": 6 * GIB - 1}, 6 * GIB, ("ssd is 6GiB", "/data0 can hold 5.9GiB", "KVD_SSD")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_numbers(arguments, size, words):
    with pytest.raises(KvdError) as refused:
        divide(places(**arguments), size)
    assert refused.value.kind == ErrorKind.INVALID
    assert all(word in refused.value.message for word in words), refused.value.message


def test_directories_that_exist_keep_their_segments():
    old = places(is_new=False)
    assert divide(old, 1 * GIB, 1 * MIB).segment_bytes == 1 * MIB
    with pytest.raises(KvdError, match=r"segments of 64MiB; .* or empty the data directories"):
        divide(old, 256 * MIB, 64 * MIB)


def test_old_directories_are_used_whatever_others_took_meanwhile():
    """Or a crash on a full disk would take the whole daemon; the tier fits itself to the room."""
    full = places(free=0, ours=5 * GIB, is_new=False)
    assert divide(full, 6 * GIB, 64 * MIB) == divide(places(is_new=False), 6 * GIB, 64 * MIB)


def test_who_names_no_budget_gets_a_tenth_of_what_is_free_and_it_stays():
    assert default_bytes(places(free=20 * GIB)) == 2 * GIB
    assert default_bytes(places(free=18 * GIB, ours=2 * GIB)) == 2 * GIB
    assert default_bytes(places(free=1 * TIB)) == 16 * GIB
    assert default_bytes(places(free=0, ours=1 * GIB)) == 1 * GIB
    assert default_bytes(places(free=0, ours=1 * TIB)) == 16 * GIB


@pytest.mark.parametrize(
    ("total", "spare"), [(20 * MIB, 1), (1 * GIB, 51), (4 * GIB, 64), (1000 * GIB, 10 * 1024)]
)
def test_some_space_is_left_to_others_but_not_all_of_a_small_file_system(total, spare):
    assert places(total=total).spare_bytes // MIB == spare


def test_what_is_there_is_looked_at_before_anything_is_made(tmp_path):
    paths = [tmp_path / "new" / "a", tmp_path / "new" / "b"]
    found = look(paths)
    assert found.is_new and found.ours_bytes == 0 and len(found.file_systems) == 1
    assert not (tmp_path / "new").exists()
    for directory in open_directories(paths[:1], 2 * MIB, OsFiles()):
        directory.release()
    (paths[0] / "catalog").mkdir()
    (paths[0] / "catalog" / "data.mdb").write_bytes(bytes(MIB))
    (tmp_path / "new" / "b").mkdir()
    (tmp_path / "new" / "b" / "someone's").write_bytes(bytes(MIB))
    found = look(paths)
    assert not found.is_new and found.old_map_bytes == MIB
    assert MIB < found.ours_bytes < 2 * MIB

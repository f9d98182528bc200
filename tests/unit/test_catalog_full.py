"""A catalog on a real file system of a few MiB that is full."""

import os

import pytest

from kvd.catalog.committing import open_catalog
from kvd.catalog.contract import Changes
from kvd.catalog.loading import load_catalog
from kvd.clock import MonotonicClock
from kvd.errors import Fault, FaultKind
from kvd.limits import MIB, PAGE_BYTES
from tests.small import small_file_system
from tests.unit.catalog_scene import FOUNDATION, CatalogScene, rows_of

FILE_SYSTEM_BYTES = 3 * MIB


@pytest.fixture
def small(tmp_path):
    """Yield a tmpfs of a few MiB, or skip."""
    with small_file_system(tmp_path, FILE_SYSTEM_BYTES) as directory:
        yield directory


def fill(directory, free_pages):
    """Leave so many pages, and return the file that takes the others."""
    filler = directory / "filler"
    free = os.statvfs(directory).f_bavail - free_pages
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free) * PAGE_BYTES)
    return filler


@pytest.mark.parametrize("free_pages", [0, 1, 2, 3, 4, 6, 8, 12, 100, 255, 257, 258, 259])
def test_it_is_made_whole_or_not_at_all(small, free_pages):
    filler = fill(small, free_pages)
    catalog = open_catalog(small / "catalog", MIB, lambda c: None, MonotonicClock())
    assert isinstance(catalog, Fault) and catalog.kind == FaultKind.NO_SPACE, catalog
    assert os.listdir(small) == ["filler"]
    filler.unlink()
    scene = CatalogScene(small, map_bytes=MIB)
    assert scene.commit(FOUNDATION) is None
    scene.catalog.close()


def test_what_was_made_works_where_there_is_no_room(small):
    scene = CatalogScene(small, map_bytes=MIB)
    assert scene.commit(FOUNDATION) is None
    scene.catalog.close()
    fill(small, 0)
    scene = CatalogScene(small, map_bytes=2 * MIB)
    assert scene.catalog.map_bytes == MIB
    for number in range(0, 1000, 100):
        assert scene.commit(Changes(rows=rows_of(range(number, number + 100)))) is None
    scene.catalog.close()
    assert len(load_catalog(scene.path).rows) == 1000

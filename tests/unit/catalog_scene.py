"""A catalog to try, what can be put into it, and a report that is waited for."""

import threading

import numpy as np

from kvd.catalog.committing import open_catalog
from kvd.catalog.contract import Changes
from kvd.clock import MonotonicClock
from kvd.errors import Fault
from kvd.format.keyspaces import pack_keyspace
from kvd.format.records import empty_segments, seal_segments
from kvd.format.rows import empty_rows, put_lane, seal_rows
from kvd.identity import Keyspace
from kvd.limits import MIB, CatalogBounds
from kvd.shape import BlockShape
from kvd.types import Dtype, Lane

DEADLINE_S = 30.0
KEYSPACE = Keyspace("model", "revision", BlockShape.of_attention(2, 1, 8, Dtype.BF16))
DIGEST, DATA = pack_keyspace(KEYSPACE, "tenant")
DIRECTORY = b"d" * 16


def rows_of(numbers, generation=7):
    """Return sealed rows; what they say follows from their numbers."""
    numbers = np.asarray(numbers)
    rows = empty_rows(len(numbers))
    put_lane(rows, DIGEST, Lane())
    digests = numbers[:, None] * 2654435761 + np.arange(32) * 97
    rows["chain"], rows["parent"] = digests & 0xFF, (digests >> 8) & 0xFF
    rows["chain"][:, :4] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    rows["generation"], rows["profile"], rows["heat"] = generation, 1, numbers / 3
    rows["root"] = numbers[:, None] + np.arange(3)
    rows["segment"], rows["epoch"] = np.arange(3), 1
    rows["page"], rows["pages"] = 1 + numbers[:, None], 2
    seal_rows(rows)
    return rows


def segments_of(count=3, epoch=1):
    segments = empty_segments(count)
    segments["segment"] = np.arange(count)
    segments["plane_class"], segments["state"], segments["epoch"] = np.arange(count) % 3, 2, epoch
    seal_segments(segments)
    return segments


FOUNDATION = Changes(
    segments=segments_of(), keyspaces=((DIGEST, DATA),), directories=(DIRECTORY,), generation=100
)


class CatalogScene:
    def __init__(self, tmp_path, map_bytes=4 * MIB, bounds=None):
        self.path, self._moved = tmp_path / "catalog", threading.Condition()
        self.seen, self._number = [], 0
        self._map_bytes, self._bounds = map_bytes, bounds or CatalogBounds()
        self.open()

    def open(self):
        catalog = open_catalog(
            self.path, self._map_bytes, self._told, MonotonicClock(), self._bounds
        )
        assert not isinstance(catalog, Fault), catalog
        self.catalog = catalog

    def _told(self, committed):
        with self._moved:
            self.seen.append(committed)
            self._moved.notify_all()

    def ask(self, changes):
        self._number += 1
        self.catalog.commit(self._number, changes)
        return self._number

    def answer(self, batch):
        """Return the fault of a batch, or None."""
        with self._moved:
            assert self._moved.wait_for(lambda: self._faults(batch), DEADLINE_S)
        [fault] = self._faults(batch)
        return fault[0]

    def commit(self, changes):
        return self.answer(self.ask(changes))

    def _faults(self, batch):
        return [(c.fault,) for c in self.seen if batch in c.batches]

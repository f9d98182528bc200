"""The SDK's own way of reading strips takes and refuses the vectors as the format says."""

import numpy as np
import pytest

from kvd.client.arrays import CellViews
from kvd.client.messages import WHOLES, Promised
from kvd.client.outcomes import Reason
from kvd.client.reading import Area, Strips, classes_needed
from kvd.codec import EXACT, PROFILES
from kvd.shape import cell_grid
from kvd.types import PlaneClass
from tests.golden import accepted, refused
from tests.golden.descriptions import lane_of, shape_of
from tests.golden.test_vectors import digest, entry, strips
from tests.golden.vectors import ACCEPT, READINGS, REFUSE

SLACK = 4096


@pytest.fixture(autouse=True)
def _test_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, profile in accepted.TEST_PROFILES.items():
        monkeypatch.setitem(PROFILES, number, profile)


class Reader:
    """A chunk in memory as a fetch finds it; behind its sequence's first one when it is not."""

    def __init__(self, path: str, name: str) -> None:
        known = entry(path, name)
        lane = lane_of(known["lane"])
        self.grid = cell_grid(shape_of(known["shape"]), lane)
        self.tokens = known["tokens"]
        self.chunk = 0 if known["first_chunk"] else 1
        count = self.chunk + 1
        texts = [strips(path, name)[c.name.lower()] for c in PlaneClass]
        self._memory = [np.frombuffer(text + bytes(SLACK), np.uint8) for text in texts]
        homes = [np.full(count, memory.ctypes.data, np.uint64) for memory in self._memory]
        places = [known["strips"][c.name.lower()] for c in PlaneClass]
        promised = Promised(
            lease=1,
            lease_ttl_s=1.0,
            counts=(count, count, count),
            reason=Reason.NONE,
            ready=WHOLES,
            generations=np.full(count, known["generation"], np.uint64),
            profiles=np.full(count, known["profile"], np.uint64),
            slabs=(np.ones(count, np.uint32),) * 3,
            offsets=(np.zeros(count, np.uint64),) * 3,
            sizes=tuple(np.full(count, place["size"], np.uint32) for place in places),
            roots=tuple(np.full(count, int(p["root"], 16), np.uint64) for p in places),
        )
        keys = [bytes.fromhex(known["chunk_key"])] * count
        self.strips = Strips((self.grid, self.tokens, lane), lambda: keys, promised, tuple(homes))

    def read(self, planes: int) -> bytes | None:
        """Return the bits of all cells, or None when the chunk is not good."""
        tensors = [self.grid.tensors[t] for _ in range(self.grid.layers) for _, t in self.grid.row]
        sizes = [t.width * self.tokens * t.dtype.size_bytes for t in tensors]
        out = np.zeros(sum(sizes), np.uint8)
        begins = np.cumsum([0, *sizes[:-1]]) + out.ctypes.data
        widths = np.array([t.width for t in tensors], np.int64)
        items = np.array([t.dtype.size_bytes for t in tensors], np.int64)
        views = CellViews(begins, widths, widths * items, self.tokens, [out])
        needed = classes_needed(self.grid, self.strips.profiles, planes)
        area = Area(0, self.grid.layers, self.chunk, self.chunk + 1)
        end = self.strips.decode(area, planes, needed, views, -self.chunk * self.tokens)
        assert end in (self.chunk, self.chunk + 1)
        return out.tobytes() if end > self.chunk else None


@pytest.mark.parametrize("name", accepted.ACCEPTED)
def test_accepts(name):
    reader = Reader(ACCEPT, name)
    for text, expected in entry(ACCEPT, name)["readings"].items():
        data = reader.read(READINGS[text])
        assert data is not None and digest(data) == expected, text
    assert not reader.strips.corrupt


@pytest.mark.parametrize("name", [n for n in refused.REFUSED if n != "profile-unknown"])
def test_refuses(name):
    reader = Reader(REFUSE, name)
    readings = entry(REFUSE, name)["readings"]
    for text, planes in READINGS.items():
        data = reader.read(planes)
        assert (data is None) == (text not in readings), text
        assert data is None or digest(data) == readings[text]
    assert reader.read(EXACT) is None and reader.strips.corrupt

"""A row of the table: a catalog on its way into a core that goes on with it, and commits again.

What a catalog names is believed if it is whole; so everything that it can say must leave a daemon
that can read, put, make segments and say so in its next commit.
"""

import numpy as np

from kvd.catalog.contract import Contents
from kvd.core import disk_effects as asked
from kvd.core.disk_events import SpaceSeen
from kvd.core.ssd import SsdConfig
from kvd.daemon.reconciling import reconcile
from kvd.daemon.translating import changes_of, recovered_of
from kvd.errors import KvdError
from kvd.format.records import Meta, pack_meta
from kvd.format.segment import SegmentHead, pack_segment_head
from kvd.limits import PAGE_BYTES
from kvd.testing.scene import chain_of
from tests.fuzz.on_disk import contents_of, entries, mend_entries
from tests.fuzz.parser import Parser
from tests.unit.disk_scene import DiskScene

SEGMENT_PAGES, SEGMENTS = 64, 24
UUID = b"d" * 16


def _take_catalog(data: bytes) -> bool:
    contents = contents_of(data)
    if contents is None:
        return False
    directories = max(1, len(contents.meta.directories))
    found = [_of_directory(contents, number) for number in range(directories)]
    reconciled = reconcile(contents, found)
    recovered = recovered_of(reconciled.contents)
    config = SsdConfig(directories, SEGMENT_PAGES * PAGE_BYTES, SEGMENTS)
    scene = _Scene(6, SEGMENTS, SEGMENT_PAGES, config, recovered)
    scene.save()
    scene.go_on()
    return len(recovered.rows.parents) > 0 and not contents.refused


def _of_directory(contents: Contents, number: int) -> np.ndarray:
    records = contents.segments
    return np.unique(records["segment"][records["directory"] == number])


class _Scene(DiskScene):
    """Packs whatever disk and catalog are asked for, as their hands do."""

    def answer(self, effect, fault=None) -> list:
        match effect:
            case asked.MakeSegment() | asked.RecycleSegment():
                head = SegmentHead(
                    UUID, effect.segment, effect.epoch, effect.plane_class,
                    SEGMENT_PAGES * PAGE_BYTES,
                )  # fmt: skip
                pack_segment_head(head)
            case asked.Commit():
                uuids = tuple(bytes([at + 1]) * 16 for at in range(len(self.state.ssd.directories)))
                changes = changes_of(effect, uuids)
                day, size_bytes = changes.written or (0, 0)
                pack_meta(Meta(changes.generation, uuids, day, size_bytes))
            case asked.MeasureSpace():
                count = len(self.state.ssd.directories)
                return self.tell(SpaceSeen((1,) * count, (1 << 40,) * count))
            case asked.ReadStrips(_, strips):
                assert (np.asarray(strips.sizes) > 0).all()
        return super().answer(effect, fault)

    def go_on(self) -> None:
        """Put chunks, have them written, and look for what was there before."""
        session = self.join()
        for text in range(3):
            try:
                self.put(session, chain_of(2, 100 + text))
            except KvdError:
                return  # There is no room; but nothing broke.
            self.save()


PARSERS = (
    Parser(
        "recovery", _take_catalog, entries,
        ("daemon/reconciling.py:reconcile", "daemon/translating.py:recovered_of",
         "core/recover.py:on_recovered"),
        mend=mend_entries,
        tries=10,
    ),
)  # fmt: skip

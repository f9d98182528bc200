"""A core with an ssd tier whose hands answer when the test says so."""

import numpy as np

from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.core.drops import free_copy
from kvd.core.events import Started
from kvd.core.quotas import Quotas
from kvd.core.ssd import SsdConfig
from kvd.core.state import CoreConfig, new_state
from kvd.errors import Fault, FaultKind
from kvd.limits import DIGEST_BYTES, PAGE_BYTES, Limits
from kvd.testing.scene import KEYSPACE, Scene, chain_of
from kvd.types import CLASS_COUNT

GOOD = np.uint8(0)
DISK_EFFECTS = (
    asked.WriteStrips, asked.ReadStrips, asked.MakeSegment, asked.RecycleSegment,
    asked.RemoveSegment, asked.ProbeDirectory, asked.MeasureSpace, asked.Commit,
)  # fmt: skip
LIMITS = Limits(slab_bytes=16 * PAGE_BYTES, write_batch_bytes=8 * PAGE_BYTES)

_NONE, _NONES = np.zeros(0, np.uint64), np.zeros((0, 3), np.uint32)
_ROWS = asked.RowColumns(
    asked.RowKeys((), np.zeros(0, np.uint32), []), [], _NONE, _NONE, np.zeros(0),
    _NONES.astype(np.uint64), _NONES.astype(np.uint8), _NONES, _NONES, _NONES, _NONES,
)  # fmt: skip
EMPTY = told.Recovered(0, (0, 0), {}, _ROWS, ())


def fault_of(kind: FaultKind) -> Fault:
    return Fault(kind, f"injected {kind.name}")


class DiskScene(Scene):
    """`asked` holds what disk and catalog were asked and did not answer yet, in order."""

    def __init__(
        self,
        slabs: int = 6,
        segments: int = 8,
        segment_pages: int = 9,
        ssd: SsdConfig | None = None,
        event: told.Recovered | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.ssd_config = ssd or SsdConfig(1, segment_pages * PAGE_BYTES, segments)
        self.asked: list[asked.DiskEffect] = []
        self.commits: list[asked.Commit] = []
        super().__init__(slabs, limits=LIMITS)
        config = CoreConfig(slabs * LIMITS.slab_bytes, LIMITS, self.ssd_config, quotas or {})
        self.state = new_state(config, epoch=1)
        self.tell(event or EMPTY)
        self.tell(told.DayBegan(1))
        self.tell(Started())
        self.settle()

    def tell(self, event: object) -> list:
        effects = super().tell(event)
        self.asked += [effect for effect in effects if isinstance(effect, DISK_EFFECTS)]
        return effects

    def take(self, kind: type) -> "asked.DiskEffect":
        """Return the oldest question of a kind, which is not answered any more by `settle`."""
        found = next(effect for effect in self.asked if isinstance(effect, kind))
        self.asked.remove(found)
        return found

    def has(self, kind: type) -> bool:
        return any(isinstance(effect, kind) for effect in self.asked)

    def answer(self, effect: "asked.DiskEffect", fault: Fault | None = None) -> list:
        """Answer one question, all of it alike."""
        match effect:
            case asked.WriteStrips(batch, strips):
                return self.tell(told.StripsWritten(batch, *_verdicts(strips.count, fault)))
            case asked.ReadStrips(batch, strips):
                return self.tell(told.StripsRead(batch, *_verdicts(strips.count, fault), False))
            case asked.Commit(batch):
                if fault is None:
                    self.commits.append(effect)
                return self.tell(told.Committed(batch, fault))
            case asked.ProbeDirectory(directory):
                return self.tell(told.Probed(directory, fault))
            case asked.MeasureSpace():
                return self.tell(told.SpaceSeen((1,), (1 << 40,)))
        return self.tell(told.SegmentDone(effect.request, fault))

    def settle(self, *but: type) -> None:
        """Answer everything well, and what comes of it, but for some kinds."""
        while waiting := [effect for effect in self.asked if not isinstance(effect, but)]:
            self.asked.remove(waiting[0])
            self.answer(waiting[0])

    def save(self) -> None:
        """Let time pass until everything that was put is durable."""
        for _ in range(4):
            self.settle()
            self.wait()
        self.settle()


def _verdicts(count: int, fault: Fault | None) -> tuple:
    kind = 0 if fault is None else fault.kind
    faults = () if fault is None else (fault,)
    return np.arange(count), np.full(count, kind, np.uint8), faults


def demote(scene: DiskScene) -> None:
    """Push all copies out of dram, as making room would."""
    for strip in scene.state.index.copies.members.copy().tolist():
        free_copy(scene.state, *divmod(strip, CLASS_COUNT))


def recovered(scene: DiskScene, without: bytes = b"") -> told.Recovered:
    """Return what the catalog holds after the scene's commits."""
    rows: dict[bytes, tuple] = {}
    segments: dict[tuple[int, int], asked.SegmentRecord] = {}
    names: tuple = ()
    for commit in scene.commits:
        for digest in commit.dropped.chain:
            rows.pop(digest, None)
        columns = commit.rows
        names = columns.keys.names or names
        for at, digest in enumerate(columns.keys.chain):
            rows[digest] = (
                columns.parents[at], columns.generations[at], columns.profiles[at],
                columns.heats[at], columns.roots[at], columns.directories[at],
                columns.segments[at], columns.epochs[at], columns.pages[at],
                columns.page_counts[at],
            )  # fmt: skip
        segments.update({(s.directory, s.segment): s for s in commit.segments})
    rows.pop(without, None)
    chain = sorted(rows)
    columns = list(zip(*(rows[digest] for digest in chain), strict=True))
    arrays = [np.array(column) for column in columns[1:]]
    keys = asked.RowKeys(names, np.zeros(len(chain), np.uint32), chain)
    digest = names[0].keyspace
    return told.Recovered(
        scene.commits[-1].generation, scene.commits[-1].written, {digest: (KEYSPACE, "red")},
        asked.RowColumns(keys, list(columns[0]), *arrays), tuple(segments.values()),
    )  # fmt: skip


def on_disk_only(chunks: int = 30, slabs: int = 6) -> tuple[DiskScene, int, bytes]:
    scene = DiskScene(slabs, segments=40)
    session, chain = scene.join(), chain_of(chunks)
    for at in range(0, chunks, 3):
        end = min(at + 3, chunks)
        scene.put(session, chain[: end * DIGEST_BYTES])
        scene.save()
    demote(scene)
    assert scene.counts(session, chain) == (chunks,) * 3
    return scene, session, chain

"""What the simulated hands do with a directory and the catalog, a step at a time.

Each is a task that yields how long it takes to its next part; a crash leaves it where it is.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvd.clock import NS_PER_MS
from kvd.core import disk_effects as asked
from kvd.core import disk_events as told
from kvd.errors import Fault, FaultKind
from kvd.testing.memory import FLIP, SECTORS_PER_PAGE
from kvd.testing.pieces import Piece, columns
from kvd.testing.weather import CATALOG

if TYPE_CHECKING:
    from kvd.testing.tier import Tier

Task = Iterator[int]  # Nanoseconds.
GONE = Fault(FaultKind.GONE, "another epoch, or no segment")
JUNK = 0xDDDD_DDDD_DDDD_DDDD  # What a write that failed, or a crash, may leave behind.


def make(tier: "Tier", effect: asked.MakeSegment) -> Task:
    yield tier.delay_ns()
    key, media = (effect.directory, effect.segment), tier.media
    fault = tier.trouble(effect.directory, tier.weather.chances.write)
    if key in media.segments:
        fault = Fault(FaultKind.FORMAT, f"segment {key} is there already")
    elif fault is None and tier.free_bytes(effect.directory) < tier.config.segment_bytes:
        fault = Fault(FaultKind.NO_SPACE, "the device is full")
    # A file whose making failed is removed; that may fail as well.
    if fault is None or (fault.kind == FaultKind.IO and tier.weather.dice(0.2)):
        media.make(key, effect.epoch, effect.plane_class, JUNK)
    yield tier.delay_ns()
    if fault is None:
        media.segments[key].sync()
    tier.making.remove(key)
    tier.tell(told.SegmentDone(effect.request, fault))


def recycle(tier: "Tier", effect: asked.RecycleSegment) -> Task:
    yield tier.delay_ns()
    segment = tier.media.segments.get((effect.directory, effect.segment))
    fault = tier.trouble(effect.directory, tier.weather.chances.write)
    if segment is None:
        fault = Fault(FaultKind.GONE, "no such segment")
    elif segment.epoch > effect.epoch:
        fault = Fault(FaultKind.FORMAT, f"epoch {segment.epoch} is there already")
    elif fault is None or tier.weather.dice(0.5):
        segment.epoch, segment.plane_class = effect.epoch, effect.plane_class
    yield tier.delay_ns()
    if fault is None:
        segment.sync()
    tier.tell(told.SegmentDone(effect.request, fault))


def remove(tier: "Tier", effect: asked.RemoveSegment) -> Task:
    yield tier.delay_ns()
    fault = tier.trouble(effect.directory, tier.weather.chances.write)
    if fault is None or tier.weather.dice(0.5):
        tier.media.remove((effect.directory, effect.segment))
    yield tier.host.rng.choice((5, 200, 1000)) * NS_PER_MS  # A journal takes its time.
    if fault is None:
        tier.media.forget((effect.directory, effect.segment))
    tier.tell(told.SegmentDone(effect.request, fault))


def probe(tier: "Tier", directory: int) -> Task:
    yield tier.delay_ns()
    fault = tier.weather.health(directory, tier.host.now_ns)
    tier.tell(told.Probed(directory, fault))


def write(tier: "Tier", batch: int, directory: int, pieces: list[Piece]) -> Task:
    yield tier.delay_ns()
    faults: dict[int, Fault] = {}
    for piece in pieces:
        if (fault := _refusal(tier, piece)) is not None:
            faults[piece.item] = fault
            continue
        if tier.weather.dice(tier.weather.chances.miswrite):
            _misdirect(tier, piece)
            continue
        middle = tier.host.rng.randint(0, piece.sectors)
        _copy_out(tier, piece, 0, middle)
        if tier.weather.dice(0.3):
            yield tier.delay_ns()
        _copy_out(tier, piece, middle, piece.sectors)
        fault = tier.trouble(directory, tier.weather.chances.write)
        if fault is not None:
            if piece.wants_means and not tier.weather.health(directory, tier.host.now_ns):
                fault = Fault(FaultKind.CANCELLED, "once, for want of something else")
                tier.host.saw("a write that the host had no means for")
            faults[piece.item] = fault
            tear(tier, piece)
    yield tier.delay_ns()
    if fault := tier.weather.health(directory, tier.host.now_ns):
        faults |= {piece.item: fault for piece in pieces}  # The sync failed.
        for piece in pieces:
            tear(tier, piece)
    for piece in pieces:
        del tier.writing[batch, piece.item]
        if piece.item in faults:
            continue
        tier.media.segments[piece.place.key].sync()
        tier.judge.on_written(piece)
        if tier.weather.dice(tier.weather.chances.rot):
            _rot(tier, piece)
    tier.tell(told.StripsWritten(batch, *columns(pieces, faults)))


def _refusal(tier: "Tier", piece: Piece) -> Fault | None:
    """Return why a strip is not written at all."""
    if not tier.media.has(piece.place):
        tier.judge.on_stale(piece)
        return GONE
    fault = piece.damage(piece.in_dram(0, piece.sectors))
    if fault is not None:
        tier.host.saw("a strip refused by its root")
        tier.judge.on_damaged(piece)
    return fault


def _copy_out(tier: "Tier", piece: Piece, begin: int, end: int) -> None:
    found = piece.wrong_words(piece.in_dram(begin, end), begin)
    if found is not None:
        tier.judge.on_wrong(piece, f"a write found {tier.host.memory.origin(found)}")
    piece.on_disk(tier.media, begin, end)[:] = piece.in_dram(begin, end)


def tear(tier: "Tier", piece: Piece) -> None:
    """Leave anything in some sectors of a write that failed."""
    if tier.media.has(piece.place):
        words, rng = piece.on_disk(tier.media, 0, piece.sectors), tier.host.rng
        begin = rng.randint(0, piece.sectors)
        words[begin : rng.randint(begin, piece.sectors)] = JUNK


def _rot(tier: "Tier", piece: Piece) -> None:
    """Have one word damaged for good, after it was written well."""
    segment = tier.media.segments[piece.place.key]
    at = piece.place.words.start + tier.host.rng.randrange(piece.sectors)
    for image in (segment.words, segment.synced):
        image[at] |= FLIP


def _misdirect(tier: "Tier", piece: Piece) -> None:
    """Have a write end somewhere else, and said to be well done.

    What was hit, and what lies where it should have been written, no longer fits its checksums;
    whose bytes they are makes no difference to the core, which sees none.
    """
    tier.host.saw("a misdirected write")
    intended = piece.on_disk(tier.media, 0, piece.sectors)
    intended[:] = piece.expected(0, piece.sectors) | FLIP
    directory = piece.place.directory
    keys = sorted(key for key in tier.media.segments if key[0] == directory)
    victim = tier.media.segments[tier.host.rng.choice(keys)]
    first = tier.host.rng.randrange(SECTORS_PER_PAGE, len(victim.words))
    for image in (victim.words, victim.synced):
        image[first : first + piece.sectors] |= FLIP


def commit(tier: "Tier", effect: asked.Commit) -> Task:
    yield tier.delay_ns()
    catalog, drops_only = tier.media.catalog, not effect.rows.parents
    fault = tier.trouble(CATALOG, tier.weather.chances.commit)
    if fault is not None and fault.kind == FaultKind.NO_SPACE and drops_only:
        fault = None  # A full map has room for drops.
    if fault is None or tier.weather.dice(0.3):
        if fault is not None:
            tier.host.saw("a failed commit that is durable")
        catalog.apply(effect)
        tier.judge.on_committed(effect)
    elif drops_only and tier.weather.dice(0.2):
        catalog.apply_some_drops(effect, tier.host.rng)
        tier.judge.on_committed(effect)
    yield tier.delay_ns()
    tier.tell(told.Committed(effect.batch, fault))

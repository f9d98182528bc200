"""One job of reads of the simulated disk: well, slowly, wrongly, or hanging past its deadline."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from kvd.clock import NS_PER_MS
from kvd.core.disk_effects import ReadStrips
from kvd.core.disk_events import ReadReleased, StripsRead
from kvd.errors import Fault, FaultKind
from kvd.testing.memory import FLIP
from kvd.testing.pieces import Piece, columns

if TYPE_CHECKING:
    from kvd.testing.tier import Tier

GARBAGE = 0xBBBB_BBBB_BBBB_BBBB
LATE = Fault(FaultKind.TIMEOUT, "the read is late")


class ReadJob:
    """Reports its pieces once each, together, at the latest at the deadline of their batch."""

    def __init__(self, tier: "Tier", effect: ReadStrips, pieces: list[Piece]) -> None:
        self._tier, self._host = tier, tier.host
        self._batch, self._deadline_ns, self._pieces = effect.batch, effect.deadline_ns, pieces
        self._started = self._late = False
        self._hangs = tier.weather.dice(tier.weather.chances.hang)
        self._faults: dict[int, Fault] = {}
        self._steps = self._work()

    def start(self) -> None:
        self._host.after(max(0, self._deadline_ns - self._host.now_ns), self._expire)
        self._host.after(self._tier.delay_ns(), self._advance)

    def _advance(self) -> None:
        if self._late and not self._started:
            return  # Nobody waits for it, and nothing was touched.
        delay_ns = next(self._steps, None)
        if delay_ns is not None:
            self._host.after(delay_ns, self._advance)
        else:
            self._end()

    def _work(self) -> Iterator[int]:
        self._started = True
        if self._hangs:
            left_ns = max(0, self._deadline_ns - self._host.now_ns)
            yield left_ns + self._host.rng.choice((0, 30, 900, 4000)) * NS_PER_MS
        pieces = list(self._pieces)
        self._host.rng.shuffle(pieces)
        for piece in pieces:
            self._copy_in(piece)
            if self._tier.weather.dice(0.3):
                yield self._tier.delay_ns()

    def _expire(self) -> None:
        if self._late or self._steps is None:
            return
        self._late = True
        if self._started:
            self._tier.given_up.update((self._batch, piece.item) for piece in self._pieces)
        else:
            self._forget()
        late = {piece.item: LATE for piece in self._pieces}
        self._host.saw("a hung read" if self._started else "a read that never began")
        busy = self._started
        self._note_failed(self._pieces)
        self._tier.tell(StripsRead(self._batch, *columns(self._pieces, late), busy))

    def _end(self) -> None:
        self._steps = None
        self._forget()
        if not self._late:
            report = columns(self._pieces, self._faults)
            self._note_failed(piece for piece in self._pieces if piece.item in self._faults)
            self._tier.tell(StripsRead(self._batch, *report, busy=False))
            return
        self._host.saw("a hung read released")
        items = np.array([piece.item for piece in self._pieces], np.int64)
        self._tier.tell(ReadReleased(self._batch, items))

    def _note_failed(self, pieces: Iterable[Piece]) -> None:
        self._host.memory.unreadable |= {(piece.fill.id, piece.plane_class) for piece in pieces}

    def _forget(self) -> None:
        for piece in self._pieces:
            del self._tier.reading[self._batch, piece.item]
            self._tier.given_up.discard((self._batch, piece.item))

    def _copy_in(self, piece: Piece) -> None:
        """Read one piece as the disk is now; what failed leaves anything in the memory."""
        tier, chances, dice = self._tier, self._tier.weather.chances, self._tier.weather.dice
        target = piece.in_dram(0, piece.sectors)
        if not tier.media.has(piece.place):
            tier.judge.on_stale(piece)
            self._faults[piece.item] = Fault(FaultKind.GONE, "another epoch, or no segment")
            return
        if self._late and dice(0.5):
            target[:] = GARBAGE
        source = piece.on_disk(tier.media, 0, piece.sectors)
        if dice(chances.read):
            end = self._host.rng.randint(0, piece.sectors)
            target[:end] = source[:end]
            target[end:] = GARBAGE
            kind = FaultKind.CANCELLED if piece.wants_means else FaultKind.IO
            self._faults[piece.item] = Fault(kind, "a short read")
            return
        target[:] = source
        self._spoil(target)
        if (found := piece.wrong_words(target, 0)) is not None:
            tier.judge.on_wrong(piece, f"a read found {self._host.memory.origin(found)}")
        if (fault := piece.damage(target)) is not None:
            tier.judge.on_damaged(piece)
            self._faults[piece.item] = fault

    def _spoil(self, target: np.ndarray) -> None:
        """Have a read that says that all is well bring something else: a checksum shows it."""
        chances, dice, rng = self._tier.weather.chances, self._tier.weather.dice, self._host.rng
        if dice(chances.flip):
            target[rng.randrange(len(target))] |= FLIP
        if dice(chances.short):
            self._host.saw("a short read that nobody told of")
            target[rng.randrange(len(target)) :] |= FLIP
        if dice(chances.misread):
            self._host.saw("a misdirected read")
            target |= FLIP

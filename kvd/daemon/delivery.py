"""One byte delivery: takes piece after piece to a sink, at its pace, while there is room.

A class is touched once all of it is there. Ends exactly once, by itself or by being stopped; after
that no extent of it is read.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from kvd.clock import NS_PER_S, Clock
from kvd.core.effects import WHOLE, Deliver
from kvd.core.events import DeliveryEnded, DeliveryMoved, Event
from kvd.daemon.inbox import PieceSink, Place
from kvd.daemon.pace import Pace
from kvd.daemon.pieces import BrokenStrip, Piece
from kvd.errors import Fault, FaultKind
from kvd.limits import Limits
from kvd.wire import FRAME_HEAD, PIECE_HEAD

HEAD_BYTES = FRAME_HEAD.size + PIECE_HEAD.size  # A link carries them too.


class Delivery:
    def __init__(
        self,
        deliver: Deliver,
        pieces: Sequence[Iterator[Piece]],
        post: Callable[[Event], None],
        clock: Clock,
        limits: Limits,
    ) -> None:
        """Send `pieces`, which are by class."""
        self.session, self._request = deliver.session, deliver.request
        self._ready = deliver.ready
        self._pieces, self._post, self._clock = pieces, post, clock
        self._class = 0
        self._moved_every_ns = limits.tick_ns
        self._pace = Pace(deliver.rate_bits, clock.now_ns(), limits.piece_bytes_max)
        self._sink: PieceSink | None = None
        self._next: Piece | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stalled = self._pumping = self._ended = False
        self._delivered_bytes = self._told_bytes = 0
        self._told_ns = clock.now_ns()

    def start(self, sink: PieceSink) -> None:
        self._sink = sink
        self._advance()
        self.pump()

    def stop(self) -> None:
        """Send no more; the event that says so follows at once."""
        self._end(Fault(FaultKind.CANCELLED, "delivery was stopped"))

    def more(self, ready: tuple[int, int, int]) -> None:
        """Take news of what is there."""
        if not self._ended:
            self._ready = ready
            self._advance()
            self.pump()

    def pump(self) -> None:
        """Send what is there as pace and room allow, and see to being called again."""
        if self._pumping or self._sink is None:
            return  # The sink woke us while we send: the loop below looks again.
        self._pumping = True
        while self._next is not None and not self._ended and self._send_one(*self._next):
            self._next = None
            self._advance()
        self._pumping = False
        self._tell()
        if self._class == len(self._pieces):
            self._end(None)

    def _send_one(self, place: Place, data: memoryview) -> bool:
        """Send the piece if it may go now; otherwise a timer or the sink calls `pump` later."""
        assert self._sink is not None
        if not self._sink.has_room():
            self._stalled = True
            return False
        now_ns, size = self._clock.now_ns(), HEAD_BYTES + len(data)
        if self._stalled:
            self._stalled = False
            self._pace.resume(now_ns)
        due_ns = self._pace.due_ns(size)
        if due_ns > now_ns:
            self._wait(due_ns - now_ns)
            return False
        # Last, and no stall of the reader: a schedule begun anew would never be due in its turn.
        if not self._sink.has_turn():
            return False
        self._sink.send(place, data)
        self._pace.sent(size, now_ns)
        self._delivered_bytes += len(data)
        return True

    def _advance(self) -> None:
        """Look for the next piece, unless there is one; none is while its class is not there."""
        try:
            while self._next is None and self._class < len(self._pieces):
                if self._ready[self._class] != WHOLE:
                    self._stalled = True  # Nor could a link send what is not there yet.
                    return
                self._next = next(self._pieces[self._class], None)
                if self._next is None:
                    self._class += 1
        except BrokenStrip as broken:
            self._end(Fault(FaultKind.CHECKSUM, str(broken)), broken.place)

    def _wait(self, delay_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay_ns / NS_PER_S, self.pump)

    def _tell(self) -> None:
        """Report progress, which renews the lease, but not for every piece."""
        now_ns = self._clock.now_ns()
        if now_ns - self._told_ns < self._moved_every_ns:
            return
        if self._delivered_bytes > self._told_bytes:
            self._told_ns, self._told_bytes = now_ns, self._delivered_bytes
            self._post(DeliveryMoved(self._request))

    def _end(self, fault: Fault | None, broken: tuple[int, int] | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        self._sink, self._next = None, None
        if self._timer is not None:
            self._timer.cancel()
        self._post(DeliveryEnded(self._request, self._delivered_bytes, fault, broken))

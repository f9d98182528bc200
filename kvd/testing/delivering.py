"""Byte delivery in the simulated world as the daemon's hands do it: class by class, once whole.

The daemon's own reading is trusted to find right bytes until it says that it ended.
"""

from typing import TYPE_CHECKING

from kvd.clock import NS_PER_MS
from kvd.core.effects import WHOLE, Deliver
from kvd.core.events import DeliveryEnded, DeliveryMoved
from kvd.errors import Fault, FaultKind
from kvd.testing.memory import Strip
from kvd.testing.oracles import require, strips_of

if TYPE_CHECKING:
    from kvd.testing.world import World


class ByteDelivery:
    """The hands' side of one delivery: reads strips bit by bit, until done or stopped."""

    def __init__(self, world: "World", deliver: Deliver, chain: bytes) -> None:
        self.world, self.request = world, deliver.request
        self._strips = strips_of(world.memory, deliver, chain, world.memory.slabs)
        self._ready = deliver.ready
        self._waits = False  # For the next class to be whole.
        self._delivered_bytes = 0
        self._fault: Fault | None = None
        self._stalls = world.rng.random() < 0.25
        if world.rng.random() < 0.1:
            self._fault = Fault(FaultKind.CHECKSUM, "a strip failed its checksum")
        world.after(world.rng.randint(1, 30) * NS_PER_MS, self._send)

    def stop(self) -> None:
        """Take note, as a thread would: one more piece may be under way."""
        self._fault = self._fault or Fault(FaultKind.CANCELLED, "delivery was stopped")
        self._stalls = False
        del self._strips[1:]
        if self._strips and not self._may_send(self._strips[0]):
            self._strips.clear()
        self._wake()

    def go_on(self, ready: tuple[int, int, int]) -> None:
        grown = all(now >= before for now, before in zip(ready, self._ready, strict=True))
        require(grown, f"I1: ready shrinks from {self._ready} to {ready}")
        self._ready = ready
        self.world.saw("a delivery that waited for a disk")
        self._wake()

    def _wake(self) -> None:
        if self._waits:
            self._waits = False
            self.world.after(0, self._send)

    def _may_send(self, strip: Strip) -> bool:
        return self._ready[strip.plane_class] == WHOLE

    def _send(self) -> None:
        world = self.world
        if not self._strips:
            self._end()
            return
        sent = 0
        for _ in range(min(len(self._strips), world.rng.randint(1, 6))):
            if not self._may_send(self._strips[0]):
                break
            self._send_one(self._strips.pop(0))
            sent += 1
        if not sent:
            self._waits = True
            return
        world.tell(DeliveryMoved(self.request))
        delay_ms = world.rng.randint(1, 60)
        if self._stalls and world.rng.random() < 0.5:
            delay_ms = 2500
        world.after(delay_ms * NS_PER_MS, self._send)

    def _send_one(self, strip: Strip) -> None:
        word = strip.wrong_word()
        if word is not None:
            found = self.world.memory.origin(word)
            require(False, f"I4: a delivery read {found} for {strip.fill.name()}")
        self._delivered_bytes += strip.size

    def _end(self) -> None:
        world = self.world
        lease = world.state.leases[world.state.delivering[self.request]]
        if lease.state != "granted":
            world.saw("a delivery that outlived its lease")
        if world.state.sessions[lease.session].state != "open":
            world.saw("a delivery that outlived its session")
        del world.deliveries[self.request]
        world.tell(DeliveryEnded(self.request, self._delivered_bytes, self._fault))

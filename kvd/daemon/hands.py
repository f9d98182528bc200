"""Carries out the core's effects, in their order, on the arena and on the links to sessions.

Decides nothing. One of the borders where any exception is taken: a fault becomes an event, or the
end of the session it belongs to.
"""

import logging
from collections.abc import Callable, Container
from functools import partial

from kvd.arena.contract import Arena, ControlPage
from kvd.clock import Clock
from kvd.core.disk_effects import DiskEffect
from kvd.core.effects import (
    Answer,
    CloseSession,
    CreateSlab,
    Deliver,
    DeliverMore,
    DestroySlab,
    DropSlab,
    Effect,
    GiveSlab,
    LeaseLost,
    RecallSlab,
    Revoke,
    StopDelivery,
    Tell,
    TellDraining,
    TellReady,
)
from kvd.core.events import DeliveryEnded, Event, SlabFailed, SlabTouched
from kvd.daemon.delivery import Delivery
from kvd.daemon.inbox import Link
from kvd.daemon.lending import Lending
from kvd.daemon.pieces import class_pieces
from kvd.daemon.ssd import SsdHand
from kvd.errors import ErrorKind, Fault, FaultKind, KvdError
from kvd.limits import Limits
from kvd.types import PlaneClass

_log = logging.getLogger("kvd.hands")


class Hands:
    def __init__(
        self,
        arena: Arena,
        clock: Clock,
        limits: Limits,
        post: Callable[[Event], None],
        ssd: SsdHand | None = None,
    ) -> None:
        self._arena, self._clock, self._limits, self._post = arena, clock, limits, post
        self._ssd = ssd
        self.lending = Lending(arena)
        self.links: dict[int, Link] = {}
        self._pages: dict[int, ControlPage] = {}
        self._deliveries: dict[int, Delivery] = {}
        self._making: set[int] = set()
        self._last_fault: Fault | None = None  # The core tries again; it is said once.

    # ---- what is not an effect ----

    def join(self, session: int, link: Link, epoch: int) -> int:
        """Make the session's control page and return a descriptor of it; raise OSError."""
        page, descriptor = self._arena.create_page(epoch)
        self.links[session], self._pages[session] = link, page
        return descriptor

    def leave(self, session: int) -> None:
        """Forget the link. The page stays: the process may read mappings for a while yet."""
        self.links.pop(session, None)

    def keep_pages(self, sessions: Container[int]) -> None:
        """Forget the pages of all other sessions."""
        for session in [s for s in self._pages if s not in sessions]:
            del self._pages[session]

    def slab_reported(self, slab: int, fault: Fault | None) -> None:
        """Pass on what the arena said of a slab, unless it was destroyed meanwhile."""
        if slab not in self._making:
            return
        self._making.remove(slab)
        if fault is not None and fault != self._last_fault:
            _log.warning("slab not made: %s", fault.message)
        self._last_fault = fault
        self._post(SlabTouched(slab) if fault is None else SlabFailed(slab, fault))

    def is_idle(self) -> bool:
        return not self._deliveries and all(link.is_idle() for link in self.links.values())

    def close_all(self, error: KvdError) -> None:
        for session in list(self.links):
            self._contain(CloseSession(session, error))

    # ---- effects ----

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._contain(effect)

    def _contain(self, effect: Effect) -> None:
        try:
            self._carry(effect)
        except Exception as error:
            self._on_fault(effect, error)

    def _carry(self, effect: Effect) -> None:
        match effect:
            case Answer(request, session, outcome):
                if link := self.links.get(session):
                    link.answer(request, outcome)
            case Tell(request, session, promise):
                if link := self.links.get(session):
                    link.promise(request, promise)
            case GiveSlab(session, slab, writable):
                self._give(session, slab, writable=writable)
            case (
                LeaseLost(session) | TellDraining(session) | RecallSlab(session) | DropSlab(session)
                | TellReady(_, session)
            ):  # fmt: skip
                if link := self.links.get(session):
                    link.notify(effect)
            case CloseSession(session, error):
                if link := self.links.get(session):
                    link.close(error)
            case Revoke(session, counter):
                self._pages[session].revoke(counter)
            case CreateSlab(slab, size):
                self._making.add(slab)
                self._arena.create_slab(slab, size)
            case DestroySlab(slab):
                self._making.discard(slab)
                self.lending.forget(slab)
                self._arena.destroy_slab(slab)
                if self._ssd is not None:
                    self._ssd.forget_slab(slab)
            case Deliver():
                self._deliver(effect)
            case StopDelivery(request):
                if delivery := self._deliveries.get(request):
                    delivery.stop()
            case DeliverMore(request, ready):
                if delivery := self._deliveries.get(request):
                    delivery.more(ready)
            case _:
                assert self._ssd is not None, effect
                self._ssd.carry_out(effect)

    def _give(self, session: int, slab: int, *, writable: bool) -> None:
        link = self.links.get(session)
        if link is None:
            return
        size_bytes = self._arena.view_slab(slab).nbytes
        if writable:
            with self.lending.lend(session, slab) as descriptor:
                link.give_slab(slab, size_bytes, lambda: descriptor, writable=True)
        else:
            find = partial(self._arena.slab_descriptor, slab, writable=False)
            link.give_slab(slab, size_bytes, find, writable=False)

    def _deliver(self, deliver: Deliver) -> None:
        link = self.links.get(deliver.session)
        if link is None:
            fault = Fault(FaultKind.GONE, "the session ended before its delivery began")
            self._post(DeliveryEnded(deliver.request, 0, fault))
            return
        view, size = self._arena.view_slab, self._limits.piece_bytes_max
        pieces = [
            class_pieces(deliver, each, view, size) for each in PlaneClass if deliver.counts[each]
        ]
        delivery = Delivery(deliver, pieces, self._post_delivery, self._clock, self._limits)
        self._deliveries[deliver.request] = delivery
        delivery.start(link.open_sink(deliver.request, delivery.pump))

    def _post_delivery(self, event: Event) -> None:
        if isinstance(event, DeliveryEnded):
            del self._deliveries[event.request]
        self._post(event)

    def _on_fault(self, effect: Effect, error: Exception) -> None:
        """Turn a failure into news for the core; one that would leave it wrong is raised again."""
        what = f"{type(error).__name__}: {error}"
        match effect:
            case Revoke() | DestroySlab() | StopDelivery():
                raise error  # Readers would trust bytes that change, or extents be reused in use.
            case CreateSlab(slab):
                self.slab_reported(slab, Fault(FaultKind.DEVICE, what))
            case Deliver(request) | DeliverMore(request) if request in self._deliveries:
                delivery = self._deliveries[request]
                delivery.stop()
                self._close(delivery.session, what)
            case Deliver(request):
                self._post(DeliveryEnded(request, 0, Fault(FaultKind.IO, what)))
            case _ if isinstance(effect, DiskEffect):
                assert self._ssd is not None, what
                self._ssd.fail(effect, Fault(FaultKind.IO, what))
            case _:
                self._close(effect.session, what)

    def _close(self, session: int, what: str) -> None:
        _log.warning("session %d closed: %s", session, what, extra={"session": session})
        link = self.links.get(session)
        if link is not None:
            link.close(KvdError(ErrorKind.UNAVAILABLE, f"the session broke: {what}"))

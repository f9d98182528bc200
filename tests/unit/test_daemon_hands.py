"""Effects whose carrying out fails become events, or the end of a session; bugs end the process."""

import asyncio
import errno

import numpy as np
import pytest

from kvd.clock import MonotonicClock
from kvd.core.effects import (
    Answer,
    CreateSlab,
    Deliver,
    DestroySlab,
    GiveSlab,
    LaneColumns,
    Released,
    Revoke,
    StopDelivery,
    TellDraining,
)
from kvd.core.events import DeliveryEnded, ProcessGone, SlabFailed, SlabTouched, Ticked
from kvd.daemon.hands import Hands
from kvd.daemon.loop import Daemon
from kvd.errors import ErrorKind, Fault, FaultKind
from kvd.limits import MIB, Limits


class Arena:
    """Slabs that cannot be had, and pages that cannot be written."""

    def create_slab(self, slab, size_bytes):
        raise OSError(errno.EIO, "no")

    def destroy_slab(self, slab):
        raise KeyError(slab)

    def slab_descriptor(self, slab, *, writable):
        return 0

    def view_slab(self, slab):
        return memoryview(bytes(64))

    def create_page(self, epoch):
        return self, 0

    def revoke(self, counter):
        raise ValueError("the page is gone")


class Link:
    """A session whose peer cannot be reached."""

    def __init__(self):
        self.closed = []

    def close(self, error):
        self.closed.append(error)

    def __getattr__(self, name):
        def fail(*arguments, **options):
            raise BrokenPipeError(errno.EPIPE, "gone")

        return fail


@pytest.fixture
def parts():
    events = []
    hands = Hands(Arena(), MonotonicClock(), Limits(), events.append)
    link = Link()
    hands.join(4, link, 1)
    return hands, link, events


NONE = np.zeros(0, np.uint64)
EMPTY = LaneColumns(NONE, NONE, (NONE,) * 3, (NONE,) * 3, (NONE,) * 3, (NONE,) * 3)


def deliver(session: int) -> Deliver:
    return Deliver(9, session, (1, 0, 0), (EMPTY,), 0, 1, (1,), (1,))


def test_a_slab_that_cannot_be_made_is_a_fault(parts):
    hands, _, events = parts
    hands.carry_out([CreateSlab(1, MIB)])
    [failed] = events
    assert isinstance(failed, SlabFailed) and failed.fault.kind == FaultKind.DEVICE


def test_a_report_of_a_slab_nobody_waits_for_is_dropped(parts):
    hands, _, events = parts
    hands.slab_reported(3, None)
    hands.slab_reported(3, Fault(FaultKind.IO, "late"))
    assert events == []


@pytest.mark.parametrize(
    "effect",
    [Answer(1, 4, Released()), GiveSlab(4, 1, True), TellDraining(4)],
    ids=lambda effect: type(effect).__name__,
)
def test_a_session_that_cannot_be_told_is_closed(parts, effect):
    hands, link, _ = parts
    hands.carry_out([effect])
    assert [error.kind for error in link.closed] == [ErrorKind.UNAVAILABLE]


@pytest.mark.parametrize(
    "effect",
    [Answer(1, 5, Released()), GiveSlab(5, 1, True), TellDraining(5), StopDelivery(7)],
    ids=lambda effect: type(effect).__name__,
)
def test_effects_on_a_session_that_left_do_nothing(parts, effect):
    hands, link, events = parts
    hands.carry_out([effect])
    assert link.closed == [] and events == []


@pytest.mark.parametrize(("session", "kind"), [(5, FaultKind.GONE), (4, FaultKind.CANCELLED)])
def test_a_delivery_that_cannot_begin_ends_once(parts, session, kind):
    hands, _, events = parts
    hands.carry_out([deliver(session), StopDelivery(9)])
    [ended] = events
    assert isinstance(ended, DeliveryEnded) and ended.fault.kind == kind


@pytest.mark.parametrize(
    ("effect", "raised"), [(Revoke(4, 1), ValueError), (DestroySlab(3), KeyError)]
)
def test_what_readers_rely_on_may_not_fail(parts, effect, raised):
    hands, _, _ = parts
    with pytest.raises(raised):
        hands.carry_out([effect])


def test_pages_go_with_their_sessions(parts):
    hands, _, _ = parts
    hands.leave(4)
    hands.keep_pages({4})
    with pytest.raises(ValueError):
        hands.carry_out([Revoke(4, 1)])
    hands.keep_pages(set())
    with pytest.raises(KeyError):
        hands.carry_out([Revoke(4, 1)])


class Stopped(Exception):
    """In place of the end of the process."""


def test_whatever_leaves_the_core_is_a_bug():
    async def main():
        def on_bug(error):
            raise Stopped from error

        daemon = Daemon(64 * MIB, Limits(), asyncio.get_running_loop(), on_bug)
        daemon.post(ProcessGone(12))
        daemon.post(Ticked())
        with pytest.raises(Stopped) as stopped:
            daemon.post(SlabTouched(99))
        assert isinstance(stopped.value.__cause__, AssertionError)
        daemon.close()

    asyncio.run(main())

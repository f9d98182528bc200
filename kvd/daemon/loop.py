"""The daemon: one loop on which events are taken in, the core decides and hands carry out.

Owns the state and its time. Knows sessions by their links only.
"""

import asyncio
import contextlib
import logging
import os
import resource
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Self

# What the first np.unique would import: there may be no descriptor to read a module's file by then.
import numpy.ma  # noqa: F401
import uvloop

from kvd.arena.slabs import MemfdArena
from kvd.clock import NS_PER_S, MonotonicClock, days_since_1970
from kvd.core.disk_events import DayBegan, DiskEvent
from kvd.core.events import DrainStarted, Event, SessionEnded, SessionOpened, Started, Ticked
from kvd.core.handover import is_detached
from kvd.core.quotas import Quotas
from kvd.core.sampling import check_some
from kvd.core.save import is_saved
from kvd.core.state import CoreConfig, new_state
from kvd.core.step import step
from kvd.daemon.crossing import Crossing
from kvd.daemon.desk import Desk
from kvd.daemon.gathering import Gathering
from kvd.daemon.gauges import read_counts, read_gauges
from kvd.daemon.hands import Hands
from kvd.daemon.health import Health
from kvd.daemon.inbox import Admitted, Link
from kvd.daemon.lag import LoopLag
from kvd.daemon.recovery import FoundTier
from kvd.daemon.ssd import SsdHand
from kvd.daemon.succession import Succession
from kvd.errors import ErrorKind, KvdError
from kvd.limits import Limits
from kvd.observe.observer import Observer
from kvd.observe.samples import Reading

EXIT_BUG = 70  # EX_SOFTWARE: the service manager starts it again.
IDLE_LOOKS_PER_TICK = 10  # While draining.
TICKS_PER_SAMPLE = 4  # A part of the tables is looked at once a second.
DETACH_NS = NS_PER_S // 2  # After all puts have ended; one that does not know of it loses little.

_log = logging.getLogger("kvd.daemon")


def run(main: Coroutine[None, None, None]) -> None:
    """Run `main` on the daemon's kind of loop until it returns."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def exit_on_bug(error: BaseException) -> None:
    """Log one line and leave at once: no answer of a state that is wrong may go out."""
    frames = " < ".join(
        f"{os.path.basename(f.filename)}:{f.lineno}:{f.name}"
        for f in reversed(traceback.extract_tb(error.__traceback__))
    )
    _log.critical("bug: %s: %s at %s", type(error).__name__, error, frames)
    os._exit(EXIT_BUG)


class _BugBorder:
    """Sees every exception that leaves the core or the hands: whatever it is, it is a bug."""

    def __init__(self, on_bug: Callable[[BaseException], None]) -> None:
        self._on_bug = on_bug

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._on_bug(error)


class Daemon:
    """The inbox of all sessions. Made and used on the thread of `loop`."""

    def __init__(
        self,
        dram_bytes: int,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        on_bug: Callable[[BaseException], None] = exit_on_bug,
        found: FoundTier | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """Take over the data directories that were `found`; raise KvdError for their catalog.

        Quotas that cannot be kept raise it as well.
        """
        self.limits = limits
        # Random, so that it differs from that of any daemon before, clocks notwithstanding.
        self.epoch = int.from_bytes(os.urandom(8), "little") >> 1 | 1
        self._loop, self._clock = loop, MonotonicClock()
        config = CoreConfig(dram_bytes, limits, found.config if found else None, quotas or {})
        self._state = new_state(config, self.epoch)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Two for each slab: a quarter of all, as those who connect need the rest.
        self._crossing = Crossing(loop)
        self._arena = MemfdArena(
            lambda *report: self._crossing.call(self._hands.slab_reported, *report),
            slabs_max=descriptors // 8,
        )
        self._ssd = None
        if found is not None:
            health = Health([each.path for each in found.directories], found.catalog)
            gathering = Gathering(self._crossing, partial(self._take_report, health))
            self._ssd = SsdHand(found, self._arena, self._clock, gathering.post)
        self._hands = Hands(self._arena, self._clock, self.limits, self.post, self._ssd)
        paths = tuple(str(each.path) for each in found.directories) if found else ()
        self.desk = Desk(self._state, self._clock, self._hands.links, paths)
        self.succession = Succession(self._state, self._arena, self.post)
        self._border = _BugBorder(on_bug)
        self._queue: deque[Event] = deque()
        self._stepping = False
        self._request = self._session = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._day = self._ticks = 0
        self._budget_bytes = found.budget.size_bytes if found else 0
        self._lag = LoopLag(loop, self._clock)
        self.observer = Observer()  # `kvd serve` knows one who knows names.

    # ---- inbox ----

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def next_request(self) -> int:
        self._request += 1
        return self._request

    def post(self, event: Event) -> None:
        if self.succession.is_left:
            return  # Nothing may change any more that the next daemon believes.
        self._queue.append(event)
        if self._stepping:
            return  # Its turn comes after the effects under way.
        self._stepping = True
        with self._border:
            while self._queue:
                event, begin_ns = self._queue.popleft(), self._clock.now_ns()
                effects = step(self._state, event, begin_ns)
                decided_ns = self._clock.now_ns()
                self._hands.carry_out(effects)
                done_ns = self._clock.now_ns()
                name = type(event).__name__
                self.observer.stepped(name, decided_ns - begin_ns, done_ns - decided_ns)
        self._stepping = False

    def admit(self, tenant: str, link: Link) -> Admitted:
        session = self._session + 1
        descriptor = self._hands.join(session, link, self.epoch)
        self._session = session
        self.post(SessionOpened(session, tenant))
        return Admitted(session, self.epoch, descriptor)

    def end(self, session: int, *, gone: bool = False) -> None:
        self._hands.leave(session)
        self.post(self._hands.lending.end(session) if gone else SessionEnded(session))

    def is_draining(self) -> bool:
        return self._state.draining

    def read_metrics(self) -> Reading:
        """Return what the metrics are now, for `observer.expand`."""
        return {
            **self.observer.read(), **read_counts(self._state.counts), **read_gauges(self._state),
            "kvd_ssd_budget_bytes": {(): self._budget_bytes},
        }  # fmt: skip

    # ---- life ----

    def recover(self, found: FoundTier) -> None:
        """Tell the core what the ssd tier holds, before anything else."""
        self.post(found.give_recovered())
        self._tell_day()

    def start(self) -> None:
        self.post(Started())
        self._tick()
        self._lag.start(self.observer.lag)

    async def drain(self, hurry: asyncio.Event, *, is_kept: bool = False) -> None:
        """Take no new wishes, wait for those under way within the bound, then close sessions.

        Where dram `is_kept` for the next daemon, clients have a moment to detach from it.
        """

        def is_settled() -> bool:
            """Return whether nobody waits or puts, and all that was sealed is on disk."""
            filling = any(not each.lost for each in self._state.reservations.values())
            return self._hands.is_idle() and not filling and is_saved(self._state)

        self.post(DrainStarted())
        deadline_ns = self.desk.drain_end_ns = self.now_ns() + self.limits.drain_ns
        look_s = self.limits.tick_ns / NS_PER_S / IDLE_LOOKS_PER_TICK
        while not (is_settled() or hurry.is_set() or self.now_ns() >= deadline_ns):
            await _wait(hurry, look_s)
        deadline_ns = min(deadline_ns, self.now_ns() + DETACH_NS) if is_kept else 0
        while not (is_detached(self._state) or hurry.is_set() or self.now_ns() >= deadline_ns):
            await _wait(hurry, look_s)
        if not is_saved(self._state):
            _log.warning("not all that was sealed is on disk; the next daemon will not find it")
        self._hands.close_all(KvdError(ErrorKind.UNAVAILABLE, "the daemon has stopped"))

    def close(self) -> None:
        self._crossing.close()
        if self._ticker is not None:
            self._ticker.cancel()
        self._lag.stop()
        if self._ssd is not None:
            self._ssd.close()
        self._arena.close()

    def _tick(self) -> None:
        if self._ssd is not None:
            self._tell_day()
        for event in self._hands.lending.look():
            self.post(event)
        self.post(Ticked())
        self._ticks += 1
        if self._ticks % TICKS_PER_SAMPLE == 0:
            # Whose tables are wrong cannot know whose bytes it hands out: it ends, and begins cold.
            with self._border:
                check_some(self._state, self._ticks // TICKS_PER_SAMPLE)
        self._hands.keep_pages(self._state.sessions)
        self._ticker = self._loop.call_later(self.limits.tick_ns / NS_PER_S, self._tick)

    def _take_report(self, health: Health, event: DiskEvent) -> None:
        self.post(event)
        health.look(self._state.ssd, event)

    def _tell_day(self) -> None:
        day = days_since_1970()
        if day != self._day:
            self._day = day
            self.post(DayBegan(day))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)

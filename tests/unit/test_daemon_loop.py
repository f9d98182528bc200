"""The loop with an ssd tier: recovery comes first, days are told, a drain waits for the disk."""

import asyncio
import contextlib

import pytest

from kvd.config import SsdSettings
from kvd.core.disk_events import DayBegan, Recovered
from kvd.daemon import loop as loop_module
from kvd.daemon.loop import TICKS_PER_SAMPLE, Daemon
from kvd.daemon.recovery import find_tier
from kvd.limits import MIB, Limits
from tests.unit.disk_double import is_locked


@pytest.fixture
def posted(monkeypatch):
    """Return the events that the core was told, in order."""
    events, step = [], loop_module.step

    def noting(state, event, now_ns):
        events.append(event)
        return step(state, event, now_ns)

    monkeypatch.setattr(loop_module, "step", noting)
    return events


def with_daemon(tmp_path, use):
    """Run `use` on a daemon with an ssd tier, and see that it lets go of its directory."""

    async def main():
        found = find_tier(SsdSettings((tmp_path / "data",), 16 * MIB))
        daemon = Daemon(8 * MIB, Limits(), asyncio.get_running_loop(), found=found)
        try:
            daemon.recover(found)
            assert found.recovered is None, "it is kept in memory"
            await use(daemon)
        finally:
            daemon.close()
        assert not is_locked(tmp_path / "data" / "lock")

    asyncio.run(main())


def test_what_was_recovered_and_the_day_come_before_all_else(tmp_path, posted):
    async def use(daemon):
        daemon.start()

    with_daemon(tmp_path, use)
    assert [type(event) for event in posted[:2]] == [Recovered, DayBegan]


def test_a_day_is_told_once(tmp_path, posted, monkeypatch):
    async def use(daemon):
        daemon.start()
        for day in (30_000, 30_000, 29_999):
            monkeypatch.setattr(loop_module, "days_since_1970", lambda today=day: today)
            daemon._ticker.cancel()
            daemon._tick()

    with_daemon(tmp_path, use)
    days = [event.day for event in posted if isinstance(event, DayBegan)]
    assert days[1:] == [30_000, 29_999]


def test_tables_that_are_wrong_end_the_daemon(monkeypatch):
    """Within some seconds, by the same way as any bug: nothing is left to the next one."""
    bugs = []

    async def main():
        daemon = Daemon(8 * MIB, Limits(), asyncio.get_running_loop(), on_bug=bugs.append)
        daemon.start()
        assert not bugs
        daemon._state.index.slab[daemon._state.index.free_rows[0], 0] = 1
        for _ in range(TICKS_PER_SAMPLE):
            daemon._ticker.cancel()
            with contextlib.suppress(AssertionError):
                daemon._tick()
        daemon.close()

    asyncio.run(main())
    assert len(bugs) == 1 and "I11" in str(bugs[0])


def test_what_is_left_of_a_drain_counts_from_its_beginning(tmp_path, monkeypatch):
    left = []

    async def use(daemon):
        drain_ns = daemon.limits.drain_ns
        now = [daemon.now_ns()]
        monkeypatch.setattr(daemon._clock, "now_ns", lambda: now[0])

        def is_saved(state):
            now[0] += drain_ns // 4  # As one look at it after the other.
            daemon.desk.stop()  # As an operator does who comes later.
            left.append(daemon.desk.progress().left_ns)
            return False

        monkeypatch.setattr(loop_module, "is_saved", is_saved)
        daemon.start()
        assert daemon.desk.progress().left_ns == drain_ns
        await daemon.drain(asyncio.Event())
        assert left[:4] == [drain_ns - drain_ns // 4 * part for part in (1, 2, 3, 4)]

    with_daemon(tmp_path, use)


def test_a_drain_waits_for_what_is_not_saved_and_no_longer_than_its_bound(
    tmp_path, monkeypatch, caplog
):
    looks = []

    def is_saved(state):
        looks.append(state)
        return 3 <= len(looks) <= 4

    async def use(daemon):
        daemon.start()
        await daemon.drain(asyncio.Event())
        assert len(looks) == 4 and "not all that was sealed" not in caplog.text
        hurry = asyncio.Event()
        hurry.set()
        await daemon.drain(hurry)
        assert len(looks) == 6 and "not all that was sealed" in caplog.text

    monkeypatch.setattr(loop_module, "is_saved", is_saved)
    with_daemon(tmp_path, use)

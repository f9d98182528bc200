"""The loop with an ssd tier: recovery comes first, days are told, a drain waits for the disk."""

import asyncio

import pytest

from kvd.config import SsdSettings
from kvd.core.disk_events import DayBegan, Recovered
from kvd.daemon import loop as loop_module
from kvd.daemon.loop import Daemon
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

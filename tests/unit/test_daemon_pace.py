"""A link's schedule, in numbers."""

from kvd.clock import NS_PER_S
from kvd.daemon.pace import Pace

RATE = 8_000_000  # A byte in a microsecond.
US = 1000


def test_a_piece_goes_when_its_last_byte_would_have_passed():
    pace = Pace(RATE, 0, 1000)
    assert pace.due_ns(100) == 100 * US
    pace.sent(100, 100 * US)
    assert pace.due_ns(50) == 150 * US


def test_late_timers_do_not_add_up():
    pace = Pace(RATE, 0, 1000)
    now_ns = 0
    for n in range(1, 1001):
        now_ns = max(now_ns, pace.due_ns(100)) + 37 * US
        pace.sent(100, now_ns)
        assert pace.due_ns(0) == n * 100 * US


def test_odd_rates_do_not_drift():
    pace = Pace(7, 0, 1 << 40)
    for _ in range(1000):
        pace.sent(1, 0)
    assert pace.due_ns(0) == 8000 * NS_PER_S // 7


def test_no_more_than_one_piece_is_made_up_for():
    pace = Pace(RATE, 0, 1000)
    pace.sent(10, 5_000_000)
    assert pace.due_ns(0) == 5_000_000 - 1000 * US


def test_a_stall_of_the_reader_is_not_made_up_for():
    pace = Pace(RATE, 0, 1000)
    pace.sent(10, 10 * US)
    pace.resume(500 * US)
    assert pace.due_ns(10) == 510 * US


def test_resuming_early_gives_nothing_away():
    pace = Pace(RATE, 0, 1000)
    pace.sent(100, 100 * US)
    pace.resume(50 * US)
    assert pace.due_ns(10) == 110 * US


def test_without_a_rate_everything_is_due():
    pace = Pace(0, 5, 1000)
    pace.sent(1 << 30, 6)
    assert pace.due_ns(1 << 30) <= 6

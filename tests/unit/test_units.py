"""Sizes and times as text, read and written."""

import pytest

from kvd.limits import GIB, KIB, MIB
from kvd.units import human, parse_size, parse_time, seconds_text, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GiB", 10 * GIB), ("64 MiB", 64 * MIB), ("1.5GiB", 3 * GIB // 2), ("4096", 4096),
     ("4096B", 4096), ("8KiB", 8 * KIB), ("0", 0), ("10GB", None), ("-1GiB", None), ("1e3", None),
     ("nan", None), ("inf", None), ("", None), ("GiB", None), ("1 2GiB", None),
     ("\u0661GiB", None)],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [("30s", 30 * 10**9), ("30", 30 * 10**9), ("0.1", 10**8), ("250ms", 250 * 10**6),
     ("1.5m", 90 * 10**9), ("2h", 7200 * 10**9), ("30 sec", None), ("-1s", None), ("nan", None)],
)  # fmt: skip
def test_times(text, time_ns):
    assert parse_time(text) == time_ns


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (64 * MIB, "64MiB"), (10 * MIB + 1, "10485761B"),
     (3 * GIB // 2, "1536MiB"), (1 << 44, "16TiB")],
)  # fmt: skip
def test_an_exact_size_is_read_back(size, text):
    assert size_text(size) == text and parse_size(text) == size


@pytest.mark.parametrize(
    ("time_ns", "text"), [(30 * 10**9, "30"), (25 * 10**7, "0.25"), (1, "0.000000001"), (0, "0")]
)
def test_an_exact_time_is_read_back(time_ns, text):
    assert seconds_text(time_ns) == text and parse_time(text) == time_ns


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (1 * KIB, "1KiB"), (64 * MIB, "64MiB"), (10 * MIB + 1, "10.1MiB"),
     (16 * GIB, "16GiB"), (3 * GIB // 2, "1.5GiB")],
)  # fmt: skip
def test_sizes_for_people(size, text):
    assert human(size) == text


def test_what_there_is_is_not_said_to_be_more():
    assert (human(6 * GIB - 1), human(6 * GIB - 1, down=True)) == ("6GiB", "5.9GiB")

"""Sizes and times as people write them, both ways; judges nothing but whether it can be read."""

import re

from kvd.clock import NS_PER_S
from kvd.limits import GIB, KIB, MIB

SIZE_UNITS = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40}
TIME_UNITS_NS = {
    "": NS_PER_S, "ms": NS_PER_S // 1000, "s": NS_PER_S, "m": 60 * NS_PER_S, "h": 3600 * NS_PER_S
}  # fmt: skip
_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")


def parse_size(text: str) -> int | None:
    """Return bytes for text like `10GiB`; None for what is no size."""
    return _parse(text, SIZE_UNITS)


def parse_time(text: str) -> int | None:
    """Return nanoseconds for text like `30s` or `0.5`; None for what is no time."""
    return _parse(text, TIME_UNITS_NS)


def size_text(size_bytes: int) -> str:
    """Return a size in the largest unit that says it exactly, as it can be read back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % SIZE_UNITS[unit] == 0:
            return f"{size_bytes // SIZE_UNITS[unit]}{unit}"
    return f"{size_bytes}B"


def seconds_text(time_ns: int) -> str:
    """Return seconds without a unit, as they can be read back."""
    whole, rest = divmod(time_ns, NS_PER_S)
    return f"{whole}.{rest:09}".rstrip("0") if rest else str(whole)


def human(size_bytes: int, *, down: bool = False) -> str:
    """Return a size in the largest unit that leaves it at least 1, rounded up or `down`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            tenths = size_bytes * 10 // unit if down else -(-size_bytes * 10 // unit)
            return f"{tenths // 10}.{tenths % 10}{name}".replace(".0", "")
    return f"{size_bytes}B"


def _parse(text: str, units: dict[str, int]) -> int | None:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None or match[2] not in units:
        return None
    whole, _, fraction = match[1].partition(".")
    unit = units[match[2]]
    return int(whole) * unit + int(fraction or "0") * unit // 10 ** len(fraction)

"""How much dram fits the bounds of the control groups that the daemon is in.

Touching a memfd beyond such a bound is no error that a hand could report: the kernel ends the
process. So the bounds are looked at before slabs are made.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from kvd.errors import ErrorKind, KvdError
from kvd.host.footprint import growth_bytes
from kvd.host.groups import MEMORY_FILES, Groups, bounds, groups_of, lines_of
from kvd.host.reading import Host, Unseen
from kvd.limits import MIB, PAGE_BYTES
from kvd.units import human

DRAM_BYTES_LEAST = MIB  # The least that may be asked for, too.

_BLOCK_BYTES = 512  # Of st_blocks.

_log = logging.getLogger("kvd.daemon")


@dataclass(frozen=True, slots=True)
class _Bound:
    path: PurePosixPath
    limit_bytes: int
    used_bytes: int  # By others, and by the daemon besides dram.

    def fits(self, asked_bytes: int) -> int:
        most = self.limit_bytes - self.used_bytes - growth_bytes(asked_bytes)
        return min(asked_bytes, most // PAGE_BYTES * PAGE_BYTES)


def dram_that_fits(asked_bytes: int, kept: Sequence[int] = (), host: Host | None = None) -> int:
    """Return as much of dram as every bound has room for, saying so when it is less.

    `kept`: descriptors of slabs that are there already. Raise INVALID when nothing fits. What
    cannot be looked at bounds nothing.
    """
    # Slabs that are kept cost nothing more, in whichever group they count.
    kept_bytes = sum(os.fstat(descriptor).st_blocks * _BLOCK_BYTES for descriptor in kept)
    try:
        found = list(_bounds(host or Host(), kept_bytes))
    except Unseen as unseen:
        _log.debug("bounds of memory: %s", unseen)
        return asked_bytes
    if not found:
        return asked_bytes
    least = min(found, key=lambda bound: bound.fits(asked_bytes))
    fits = least.fits(asked_bytes)
    if fits >= asked_bytes:
        return asked_bytes
    own = growth_bytes(asked_bytes)
    why = (
        f"{least.path} is {human(least.limit_bytes, down=True)}, of which "
        f"{human(least.used_bytes)} are in other use and {human(own)} stay for the daemon"
    )
    needed = asked_bytes + own + least.used_bytes
    remedy = f"make it {human(needed)} (MemoryMax=, a container's memory limit), or lower --dram"
    if fits < DRAM_BYTES_LEAST:
        asked = human(asked_bytes)
        raise KvdError(ErrorKind.INVALID, f"no room for dram ({asked} asked for): {why}; {remedy}")
    _log.warning(
        "dram is %s instead of %s: %s; %s",
        human(fits, down=True), human(asked_bytes), why, remedy,
    )  # fmt: skip
    return fits


def _bounds(host: Host, kept_bytes: int) -> Iterator[_Bound]:
    groups = groups_of(host, "memory")
    files = MEMORY_FILES[groups.version]
    for directory, limit_bytes in bounds(host, groups, files.limit):
        used = host.number(str(directory / files.usage)) - _given_back(host, groups, directory)
        yield _Bound(directory / files.limit, limit_bytes, max(0, used - kept_bytes))


def _given_back(host: Host, groups: Groups, directory: PurePosixPath) -> int:
    names = MEMORY_FILES[groups.version].given_back
    lines = (line.split() for line in lines_of(host, directory / "memory.stat"))
    return sum(int(words[1]) for words in lines if words and words[0] in names)

"""Whether what was sampled stays flat: the gauges of a soak as data, and the judgement of each.

A daemon or client that is replaced begins its series anew: series are judged within lives that are
long enough, and over lives at the same age.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvd.limits import KIB, MIB

Series = Sequence[tuple[float, float]]  # Seconds of age, value.

SLABS_MOST = 64  # Of a soak's dram: between 32 and twice as many.
SAMPLES_MIN = 18  # Fewer say nothing: three in a sixth.
LIFE_SECONDS_MIN = 60.0
# Of what fills up at first: tiers, and buffers for the largest request met so far.
FILLED_SECONDS_MIN = 300.0
AGE_FROM_S, AGE_TO_S = 35.0, 60.0  # At which lives are compared with each other.


@dataclass(frozen=True, slots=True)
class Gauge:
    """It may grow by `least` and by `part` of what it was, and counts as flat.

    What moves with the load has a `least` that the load explains; what cannot move has 0.
    """

    name: str
    unit: str
    least: float
    part: float = 0.0
    why: str = ""
    life_s: float = LIFE_SECONDS_MIN  # Of a series that is judged, at least.
    fills: bool = False  # With the tiers: not judged in a life that began before they were full.
    # Of a life whose largest request comes first: what that took may be taken again.
    warmed: bool = False

    def allowance(self, early: float) -> float:
        return self.least + self.part * abs(early)


DAEMON = (
    Gauge("private memory", "B", 12 * MIB, 0.05, "index and notes, to their bounds", fills=True),
    Gauge("shared memory", "B", 1 * MIB, 0.0, "slabs: as many as configured, once touched"),
    Gauge("descriptors", "", 12, why="sessions come and go", fills=True),
    Gauge("threads", "", 4, why="pools grow to their bounds"),
    Gauge("mappings of slabs", "", SLABS_MOST, why="a second one of each that is read into"),
    Gauge("memfds", "", 4, why="slabs and control pages of sessions"),
    Gauge("sessions", "", 1, why="one is replaced"),
    Gauge("leases", "", 16, why="two threads of each client"),
    Gauge("leased bytes", "B", 160 * MIB, why="as leases: some of 20 MiB"),
    Gauge("reservations", "", 8, why="two threads of each client"),
    Gauge("pending fetches", "", 8),
    Gauge("open deliveries", "", 8),
    Gauge("filling bytes", "B", 16 * MIB, why="puts under way"),
    Gauge("freeing bytes", "B", 16 * MIB, why="of lost leases, for a while"),
    Gauge("quarantined bytes", "B", 16 * MIB, why="of clients killed lately"),
    Gauge("orphaned slabs", "", 12, why="of clients stopped, until nothing in them is wanted"),
    Gauge("chunks known", "", 200, 0.05, "what there is room for", FILLED_SECONDS_MIN),
)
NODE = (
    Gauge("bytes on disk", "B", 4 * MIB, 1.0, "up to the budget, which is looked at apart"),
    Gauge("catalog", "B", 256 * KIB, 0.02),
    Gauge("files on disk beside segments", "", 0),
    Gauge("files of the runtime directory", "", 0),
    Gauge("descriptors kept over restarts", "", 0, 0.05),
)
CLIENT = (
    Gauge(
        "private memory",
        "B",
        48 * MIB,
        0.0,
        "buffers of large requests",
        FILLED_SECONDS_MIN,
        warmed=True,
    ),  # fmt: skip
    Gauge("blocks of memory", "", 10_000, why="parts of requests that end later"),
    Gauge("descriptors", "", 6, why="slabs met so far"),
    Gauge("threads", "", 2),
    Gauge("mappings of slabs", "", SLABS_MOST, why="slabs met so far"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`early` and `late` are the medians compared; `series` all there was."""

    gauge: Gauge
    of: str
    early: float
    late: float
    series: tuple[float, ...]

    @property
    def leaks(self) -> bool:
        return self.late - self.early > self.gauge.allowance(self.early)


def judge(gauge: Gauge, of: str, series: Series) -> Verdict | None:
    """Compare the last sixth with the second, which lies behind warm-up; None: too little of it."""
    if len(series) < SAMPLES_MIN or series[-1][0] - series[0][0] < gauge.life_s:
        return None
    begin, span = series[0][0], series[-1][0] - series[0][0]

    def values_of(sixth: int) -> list[float]:
        low, high = begin + span * (sixth - 1) / 6, begin + span * sixth / 6
        return [value for age, value in series if low <= age <= high]

    early, late = values_of(2), statistics.median(values_of(6))
    if not early:  # The sampler hung; the last sixth has the last sample at least.
        return None
    known = statistics.median(early)
    if gauge.warmed:
        known = max(known, *values_of(1))
    return Verdict(gauge, of, known, late, tuple(value for _, value in series))


def judge_lives(gauge: Gauge, of: str, lives: Iterable[Series]) -> Verdict | None:
    """Compare the last life with an earlier one at the same age, when tiers were full already.

    None also of what is still filling at that age: how far it came there is chance.
    """
    if gauge.life_s > AGE_TO_S:
        return None
    every = list(lives)
    values = []
    for series in every[max(1, len(every) // 3) :]:
        at_age = [value for age, value in series if AGE_FROM_S <= age <= AGE_TO_S]
        if series and series[-1][0] >= AGE_TO_S and at_age:
            values.append(statistics.median(at_age))
    if len(values) < 2:
        return None
    return Verdict(gauge, of, values[0], values[-1], tuple(values))

"""The simulated world over many seeds, and the bugs planted in it: how many, and what was found."""

import sys
import time

from bench.report import Report, progress
from kvd.testing.seeds import Summary, summarize
from tests.simulation.planted import find_all
from tests.simulation.test_planted import PLANTS

SEEDS, SEEDS_FULL = 200, 20_000


def run(report: Report, full: bool) -> None:
    """Judge 200 seeds, or 20,000; then every planted bug by up to 200 more each."""
    count = SEEDS_FULL if full else SEEDS
    begin_s = time.monotonic()
    with progress("seeds of the simulated world", count) as advance:
        summary = summarize(range(count), progress=lambda known: advance(_so_far(known)))
    seconds = time.monotonic() - begin_s
    for judged in summary.violations:
        print(f"seed {judged.seed}: {judged.violation}", file=sys.stderr)
    note = f"{summary.events_least} events at least in each"
    report.figure("sim.seeds", summary.seeds, "seeds", note=note)
    report.figure("sim.violations", len(summary.violations), "seeds")
    report.figure(
        "sim.events", summary.events, "events", note="checked behind all that do anything"
    )
    report.figure("sim.seconds", seconds, "s")
    caught = []
    with progress("planted bugs", len(PLANTS)) as advance:
        for found in find_all(PLANTS):
            advance(found.plant.name)
            caught += [found] if found.right else []
            if not found.right:
                print(f"{found.plant.name}: {found.message}", file=sys.stderr)
    latest = max((found.seed or 0 for found in caught), default=0)
    report.figure("planted.caught", len(caught), "bugs", note=f"the last by seed {latest}")
    report.figure("planted.total", len(PLANTS), "bugs")


def _so_far(known: Summary) -> str:
    return f"{known.seeds}, {len(known.violations)} wrong"

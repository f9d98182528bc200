"""The soak: half an hour of real requests from eight clients, which are killed, as the daemon is.

Shown is that nothing grows, no byte is wrong and no call of a client raises.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import soak_content as content
from bench.report import Report, progress
from bench.serving import data_directory
from bench.soak_blows import Kind, schedule
from bench.soak_fleet import Tally
from bench.soak_leaks import Verdict
from bench.soak_run import Outcome, Setting, soaking
from bench.soak_sampler import unjudged
from bench.soak_trace import ENVIRONMENT, Replay, read_traces, replay_of, trace_files
from kvd.client.arrays import source_views
from kvd.client.mapping import Pool
from kvd.client.strips import Encoder
from kvd.codec import PROFILE_DEFAULT
from kvd.limits import MIB
from kvd.shape import cell_grid
from kvd.types import Lane

CLIENTS = 8
MINUTES, MINUTES_FULL = 2.0, 30.0
REQUESTS_PER_SECOND = 8.0
# dram and ssd together hold a tenth of the distinct chunks, ssd twice as many as dram.
DRAM_PART, SSD_PART = 30, 15
# So that each client writes in a slab of its own and some are left.
SLABS, SLABS_LEAST = 32, 12
SLAB_BYTES_LEAST = 4 * MIB
WARNINGS_SHOWN = 20
SAID_SECONDS = 60.0  # Between two lines, where nobody watches a bar.
_BARS = "▁▂▃▄▅▆▇█"
_BARS_SHOWN = 24


def run(report: Report, full: bool, minutes: float | None, traces: Path | None, seed: int) -> None:
    """Report the soak's figures; without traces say where they are to be had."""
    paths = trace_files(traces)
    if not paths:
        print(
            "soak: no traces; get mooncake_*.jsonl of github.com/kvcache-ai/Mooncake "
            "(FAST25-release/traces, Apache-2.0), name their directory by --traces or "
            f"{ENVIRONMENT}",
            file=sys.stderr,
        )
        return
    seconds = 60 * (minutes or (MINUTES_FULL if full else MINUTES))
    requests = read_traces(paths)
    replay = replay_of(requests, max(1, round(seconds * REQUESTS_PER_SECOND)), seconds)
    with data_directory() as directory:
        setting = setting_of(directory, replay, seconds, seed)
        with soaking(setting) as soak, progress("soak", total=round(seconds)) as advance:
            outcome = soak.run(_Progress(advance, soak.fleet.tally, seconds).told)
    show(outcome)
    _report(report, setting, outcome)


def setting_of(directory: Path, replay: Replay, seconds: float, seed: int) -> Setting:
    """Return a setting whose tiers together hold a tenth of the replay's distinct chunks.

    Of a replay that is very short, more.
    """
    size_bytes = replay.distinct_blocks() * chunk_bytes()
    least = SLAB_BYTES_LEAST
    slab_bytes = max(least, size_bytes // DRAM_PART // SLABS // least * least)
    slabs = max(SLABS_LEAST, size_bytes // DRAM_PART // slab_bytes)
    ssd_bytes = max(2 * SLABS_LEAST * least, size_bytes // SSD_PART // MIB * MIB)
    blows = schedule(seed, seconds, CLIENTS)
    return Setting(
        directory, replay, blows, seconds, CLIENTS, slabs * slab_bytes, ssd_bytes, slab_bytes
    )


def chunk_bytes() -> int:
    """Return the bytes of a chunk's three strips, as they are stored."""
    grid = cell_grid(content.SHAPE, Lane())
    values = content.values_of(0, bytes(64))
    views = source_views(grid, content.views_of(values))
    encoder = Encoder(grid, content.CHUNK_TOKENS, PROFILE_DEFAULT)
    return int(encoder.encode(views, range(1, 2), 1, MIB, Pool()).sizes.sum())


class _Progress:
    """Moves a bar a step a second; where there is none, says a line each minute."""

    def __init__(self, advance: Callable[[str], None], tally: Tally, seconds: float) -> None:
        self._advance, self._tally, self._seconds = advance, tally, seconds
        self._steps, self._next_s = 0, SAID_SECONDS

    def told(self, done_s: float) -> None:
        tally = self._tally
        line = (
            f"{done_s / 60:.1f} of {self._seconds / 60:g} min, {tally.requests} requests, "
            f"{tally.counts['stored']} chunks stored, {len(tally.wrong)} wrong, "
            f"{len(tally.raised)} raised"
        )
        while self._steps < done_s:
            self._steps += 1
            self._advance(line)
        if done_s >= self._next_s and not sys.stderr.isatty():
            self._next_s += SAID_SECONDS
            print(line, file=sys.stderr, flush=True)


def show(outcome: Outcome) -> None:
    """Print what was sampled, for people: each gauge where it grew most of its allowance."""
    table = Table(title="what was sampled", title_justify="left")
    for heading, justify in (
        ("gauge", "left"), ("of", "left"), ("second sixth", "right"), ("last sixth", "right"),
        ("may grow", "right"), ("flat", "left"), ("over time", "left"), ("series", "right"),
        ("what may grow", "left"),
    ):  # fmt: skip
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in outcome.verdicts:
        groups.setdefault((verdict.of.split()[0], verdict.gauge.name), []).append(verdict)
    for verdicts in groups.values():
        worst = max(verdicts, key=_part_used)
        for verdict in [v for v in verdicts if v.leaks] or [worst]:
            table.add_row(*_cells(verdict), str(len(verdicts)), verdict.gauge.why)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    console.print(table)
    tally = outcome.tally
    for line in [*outcome.problems, *tally.wrong[:10], *tally.raised[:10]]:
        console.print(line, style="red", highlight=False, markup=False)
    for line in outcome.warned[:WARNINGS_SHOWN]:
        console.print(line, highlight=False, markup=False)
    answers = ", ".join(f"{count} {why}" for why, count in tally.why.most_common())
    console.print(f"answers: {answers}", highlight=False)


def _part_used(verdict: Verdict) -> float:
    return (verdict.late - verdict.early) / max(verdict.gauge.allowance(verdict.early), 1e-9)


def _cells(verdict: Verdict) -> list[str]:
    gauge = verdict.gauge
    numbers = [verdict.early, verdict.late, gauge.allowance(verdict.early)]
    shown = [f"{n / MIB:.1f} MiB" if gauge.unit == "B" else f"{n:.0f}" for n in numbers]
    flat = "[red]NO[/]" if verdict.leaks else "yes"
    return [gauge.name, verdict.of, *shown, flat, _bars(verdict.series)]


def _bars(series: tuple[float, ...]) -> str:
    """Return a picture of a series in one line, from 0 to its highest."""
    step = max(1, -(-len(series) // _BARS_SHOWN))
    highs = [max(series[at : at + step]) for at in range(0, len(series), step)]
    top = max(highs) or 1
    return "".join(_BARS[min(len(_BARS) - 1, int(len(_BARS) * high / top))] for high in highs)


def _report(report: Report, setting: Setting, outcome: Outcome) -> None:
    tally, done = outcome.tally, outcome.done
    distinct, each = setting.replay.distinct_blocks(), chunk_bytes()
    part = (setting.dram_bytes + setting.ssd_bytes) / (distinct * each)
    note = (
        f"{len(setting.replay)} requests, {distinct} distinct chunks of {each} B from "
        f"{setting.clients} clients; dram {setting.dram_bytes / MIB:.0f} MiB and ssd "
        f"{setting.ssd_bytes / MIB:.0f} MiB are together {part:.1%} of that"
    )
    report.figure("soak.minutes", outcome.seconds / 60, "min", note=note)
    leaks = [f"{v.gauge.name} of {v.of}" for v in outcome.verdicts if v.leaks]
    found = leaks + outcome.problems
    named = [f"of {len(outcome.verdicts)} series", *found]
    if lacking := unjudged(outcome.verdicts):
        named.append(f"too short to judge {', '.join(lacking)}")
    if outcome.verdicts:
        report.figure("soak.leaks", len(found), "", note="; ".join(named))
    report.figure("soak.wrong", len(tally.wrong), "chunks", note=f"{tally.counts['good']} verified")
    report.figure("soak.checksum_failures", outcome.corrupt, "chunks")
    report.figure("soak.raised", len(tally.raised), "calls")
    late = f"{tally.skipped} of them left out, as they were late"
    report.figure("soak.requests", tally.requests, "", note=late)
    durable = f"{tally.counts['durable']} said to be durable"
    report.figure("soak.chunks_put", tally.counts["stored"], "chunks", note=durable)
    report.figure("soak.chunks_fetched", tally.counts["fetched"], "chunks")
    _report_hits(report, outcome)
    for name, kind in (
        ("client_kills", Kind.KILL), ("client_leaves", Kind.LEAVE), ("client_stops", Kind.STOP),
        ("daemon_kills", Kind.DAEMON_KILL), ("daemon_restarts", Kind.DAEMON_RESTART),
    ):  # fmt: skip
        report.figure(f"soak.{name}", done.get(kind, 0), "")
    starts = f"the slowest of {len(outcome.start_seconds)}"
    report.figure("soak.start_seconds_max", max(outcome.start_seconds), "s", note=starts)
    for call in ("lookup_us", "fetch_us", "put_us"):
        for part in (50, 99):
            value = tally.percentile(call, part / 100)
            count = f"{len(tally.times[call])} calls, undisturbed"
            report.figure(f"soak.{call}_p{part}", value, "us", note=count)


def _report_hits(report: Report, outcome: Outcome) -> None:
    """Report what part of all strips asked for came out of each tier, over all daemons."""
    asked = sum(each.total("fetch_requested_strips_total", tier="dram") for each in outcome.stats)
    for tier in ("dram", "ssd"):
        hit = sum(each.total("fetch_hit_strips_total", tier=tier) for each in outcome.stats)
        note = f"of {asked:.0f} strips of all classes"
        report.figure(f"soak.{tier}_hit_rate", hit / max(asked, 1), "ratio", note=note)

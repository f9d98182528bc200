"""The verb `top` of `kvd-admin`: tiers, hit rates, links, queues and sessions, again and again."""

import argparse
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvd.admin.asking import AdminClient
from kvd.cli.figures import CLASSES
from kvd.cli.messages import human, human_time
from kvd.cli.numbers import look, numbers_of
from kvd.cli.tables import console, printable, show_line

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

BAR_CELLS = 24
_BAR_MARKS = {"anchor": "█", "residual": "▓", "exact": "▒"}


def top_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--interval", type=interval, default=1.0, metavar="SECONDS",
                        help="between two looks; rates are over it (1)")  # fmt: skip
    parser.add_argument("--count", type=int, default=0, metavar="N",
                        help="so many looks, then end (until interrupted)")  # fmt: skip


def interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are 0.1 to 3600 seconds")
    return seconds


def run_top(client: AdminClient, arguments: argparse.Namespace) -> int:
    """Show a page for each interval; with --json one object a line."""
    if arguments.json:
        for numbers in _pages(client, arguments):
            show_line(json.dumps(numbers))
        return 0
    out = console()
    if not out.is_terminal:
        for numbers in _pages(client, arguments):
            with out.capture() as captured:
                out.print(page(numbers))
            print(captured.get())
        return 0
    from rich.live import Live

    try:
        with Live(console=out, screen=not arguments.count, auto_refresh=False) as live:
            for numbers in _pages(client, arguments):
                live.update(page(numbers), refresh=True)
    except KeyboardInterrupt:
        pass  # It is how one leaves.
    return 0


def _pages(client: AdminClient, arguments: argparse.Namespace) -> Iterator[dict]:
    before, shown = look(client), 0
    while not arguments.count or shown < arguments.count:
        time.sleep(arguments.interval)
        now = look(client)
        yield numbers_of(before.figures, now)
        before, shown = now, shown + 1


# ---- one page ----


def page(numbers: dict) -> "Group":
    """Return everything of one moment, to be printed."""
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [
        Text(
            f"{numbers['version']}  {numbers['state']}  up {human_time(numbers['uptime_ms'])}  "
            f"last {numbers['seconds']:.1f} s"
        )
    ]
    lines += [Text(f"problem: {problem}", style="bold red") for problem in numbers["problems"]]
    lines += [_tiers(numbers), _rates(numbers), _calls(numbers), _sessions(numbers)]
    return Group(*lines)


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left")
    return table


def _tiers(numbers: dict) -> "Table":
    legend = " ".join(f"{_BAR_MARKS[name]} {name}" for name in CLASSES)
    table = _table("tier", legend, ">used", ">of", ">hit rate", "by tenant")
    for tier in numbers["tiers"]:
        used = sum(tier["classes"].values())
        by_tenant = "  ".join(
            f"{name} {percent(rate)}" for name, rate in tier["hit_rate_by_tenant"].items()
        )
        table.add_row(
            tier["tier"], bar(tier["classes"], tier["capacity"]), human(used),
            human(tier["capacity"]), percent(tier["hit_rate"]), by_tenant,
        )  # fmt: skip
    return table


def bar(classes: dict[str, int], capacity: int) -> str:
    """Return the classes' shares of a capacity as a bar of cells."""
    cells, start, end = "", 0.0, 0
    for name in CLASSES:
        start += classes.get(name, 0) / max(capacity, 1) * BAR_CELLS
        count = min(round(start), BAR_CELLS) - end
        cells, end = cells + _BAR_MARKS[name] * count, end + count
    return cells + "·" * (BAR_CELLS - end)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _rates(numbers: dict) -> "Table":
    table = _table("a second", ">bytes", "queues", ">now")
    rates = [(name, f"{human(rate)}/s") for name, rate in numbers["bytes_per_second"].items()]
    queues = [
        (name.removesuffix("_bytes").replace("_", " "),
         human(n) if name.endswith("_bytes") else f"{n:,.0f}")
        for name, n in numbers["queues"].items()
    ]  # fmt: skip
    queues.append(("loop lag p99", _seconds(numbers["loop_lag_p99_seconds"])))
    for at in range(max(len(rates), len(queues))):
        left = rates[at] if at < len(rates) else ("", "")
        right = queues[at] if at < len(queues) else ("", "")
        table.add_row(*left, *right)
    return table


def _calls(numbers: dict) -> "Table":
    table = _table("call", ">a second", ">errors", ">p50", ">p99")
    for call in numbers["calls"]:
        table.add_row(
            call["call"], f"{call['per_second']:,.1f}", f"{call['errors']:,.0f}",
            _seconds(call["p50_seconds"]), _seconds(call["p99_seconds"]),
        )  # fmt: skip
    return table


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e6:,.0f} us" if value < 1e-3 else f"{value * 1e3:,.1f} ms"


def _sessions(numbers: dict) -> "Table":
    more = numbers["sessions_count"] - len(numbers["sessions"])
    table = _table(">session", "tenant", f"client{f' ({more} more)' if more else ''}", ">pid",
                   ">requests", ">leases", ">leased", ">slabs")  # fmt: skip
    for each in numbers["sessions"]:
        table.add_row(
            str(each["session"]), each["tenant"], printable(each["client"]), str(each["pid"]),
            str(each["requests"]), str(each["leases"]), human(each["lease_bytes"]),
            str(each["slabs"]),
        )  # fmt: skip
    return table

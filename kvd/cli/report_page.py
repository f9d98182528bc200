"""The page that `kvd-admin report` writes: one HTML document that needs nothing else."""

from collections.abc import Iterable, Sequence
from html import escape

from kvd.cli.figures import CLASSES
from kvd.cli.messages import human, human_time
from kvd.cli.pictures import bars, histogram, stacked

STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --dim: #5c6b7a; --paper: #fff; --edge: #dde3ea;
  --anchor: #17508f; --residual: #4c8fd6; --exact: #a8cdf2; --free: #edf1f5; --bar: #2f7f6f;
  --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9aa8b6; --paper: #12181f;
  --edge: #2a3440; --anchor: #3d86d8; --residual: #79b3ee; --exact: #c9e1f8; --free: #222c36;
  --bar: #4fb39f; --bad: #ff8a80; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: 1rem 0 .25rem; } p { margin: .25rem 0; color: var(--dim); }
.problem { color: var(--bad); } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 13px; }
svg text.small { fill: var(--dim); font-size: 10px; }
.anchor { fill: var(--anchor); } .residual { fill: var(--residual); } .exact { fill: var(--exact); }
.free { fill: var(--free); } .bar { fill: var(--bar); }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; }
.key.anchor { background: var(--anchor); } .key.residual { background: var(--residual); }
.key.exact { background: var(--exact); } .key.free { background: var(--free); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--edge);
  white-space: nowrap; }
th { color: var(--dim); font-weight: 600; } td.n, th.n { text-align: right; }
"""
Row = Sequence[str]


def page(ever: dict, lately: dict, keyspaces: Iterable[Row], misses: Iterable[Row]) -> str:
    """Return the document: numbers since the start and of the last seconds, and two tables."""
    parts = [
        _head(ever),
        _residency(ever),
        _hit_rates(ever, lately),
        _latencies(ever),
        _evictions(ever),
        _now(lately),
        _table("Sessions", ("session", "tenant", "client", ">requests", ">leases", ">leased"),
               _session_rows(ever)),
        _table("Keyspaces", ("keyspace", "tenant", "model", ">chunks", ">dram", ">ssd"), keyspaces),
        _table("Last misses", (">ago", "tenant", "model", ">missed at", "why"), misses),
    ]  # fmt: skip
    title = f"kvd: {escape(ever['version'])}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _head(ever: dict) -> str:
    problems = "".join(f'<p class="problem">{escape(each)}</p>' for each in ever["problems"])
    return (
        f"<h1>{escape(ever['version'])}</h1><p>{escape(ever['state'])}, up "
        f"{human_time(ever['uptime_ms'])}, {ever['sessions_count']} sessions</p>"
        + (problems or "<p>no problems</p>")
    )


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _residency(ever: dict) -> str:
    keys = "".join(f'<span class="key {name}"></span>{name}' for name in (*CLASSES, "free"))
    tiers = [
        (tier["tier"], _parts(tier["classes"]), tier["capacity"], _of(tier))
        for tier in ever["tiers"]
    ]
    parts = [f"<p>{keys}</p>", stacked(tiers, "what lies in each tier, by class")]
    for tier in ever["tiers"]:
        largest = max((sum(c.values()) for c in tier["by_tenant"].values()), default=0)
        rows = [
            (name, _parts(classes), largest, human(sum(classes.values())))
            for name, classes in tier["by_tenant"].items()
        ]
        parts += [f"<h3>{escape(tier['tier'])} by tenant</h3>", stacked(rows, "bytes by tenant")]
    return _section("Residency by class and tier", *parts)


def _parts(classes: dict[str, int]) -> list[tuple[str, float]]:
    return [(name, classes.get(name, 0)) for name in CLASSES]


def _of(tier: dict) -> str:
    return f"{human(sum(tier['classes'].values()))} of {human(tier['capacity'])}"


def _hit_rates(ever: dict, lately: dict) -> str:
    parts = []
    for title, numbers in (("since the start", ever), (_last(lately), lately)):
        rows = []
        for tier in numbers["tiers"]:
            rows.append(_rate_row(tier["tier"], tier["hit_rate"]))
            rows += [
                _rate_row(f"{tier['tier']}: {name}", rate)
                for name, rate in tier["hit_rate_by_tenant"].items()
            ]
        rows.append(_rate_row("lookups", numbers["lookup_hit_rate"]))
        parts += [f"<h3>{title}</h3>", bars(rows, 1.0, f"hit rates {title}")]
    note = "<p>of ssd: of what dram had not; of fetches, counted in strips</p>"
    return _section("Hit rates", note, *parts)


def _rate_row(name: str, rate: float | None) -> tuple[str, float | None, str]:
    return name, rate, "not asked" if rate is None else f"{rate:.1%}"


def _last(lately: dict) -> str:
    return f"in the last {lately['seconds']:.0f} s"


def _latencies(ever: dict) -> str:
    parts = []
    for call in ever["calls"]:
        p50, p99 = (_seconds(call[f"{name}_seconds"]) for name in ("p50", "p99"))
        parts.append(f"<h3>{escape(call['call'])}: p50 {p50}, p99 {p99}</h3>")
        below, columns = 0.0, []
        for le, count in call["histogram"]:
            columns.append(("more" if le is None else _seconds(le), count - below))
            below = count
        parts.append(histogram(columns, f"how long {call['call']} took"))
    return _section("Latency by call, since the start", *(parts or ["<p>no calls yet</p>"]))


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1e-3:
        return f"{value * 1e6:.3g} us"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _evictions(ever: dict) -> str:
    rows = [
        (f"{tier}: {reason}", size, human(size))
        for tier, reasons in ever["evicted_bytes"].items()
        for reason, size in reasons.items()
    ]
    most = max((size for _, size, _ in rows), default=0)
    picture = bars(rows, most, "bytes evicted by tier and reason") if rows else "<p>none</p>"
    return _section("Evicted since the start, by tier and reason", picture)


def _now(lately: dict) -> str:
    rates = [(name, f"{human(rate)}/s") for name, rate in lately["bytes_per_second"].items()]
    queues = [
        (name.replace("_", " "), human(n) if name.endswith("bytes") else f"{n:,.0f}")
        for name, n in lately["queues"].items()
    ]
    queues.append(("loop lag p99", _seconds(lately["loop_lag_p99_seconds"])))
    return _table(f"Links and queues {_last(lately)}", ("what", ">now"), [*rates, *queues])


def _session_rows(ever: dict) -> list[Row]:
    return [
        (str(s["session"]), s["tenant"], s["client"], str(s["requests"]), str(s["leases"]),
         human(s["lease_bytes"]))
        for s in ever["sessions"]
    ]  # fmt: skip


def _table(title: str, columns: Row, rows: Iterable[Row]) -> str:
    """Return a section with a table; columns whose name begins with `>` are right-aligned."""
    styles = [' class="n"' if name.startswith(">") else "" for name in columns]
    head = "".join(
        f"<th{style}>{escape(name.removeprefix('>'))}</th>"
        for name, style in zip(columns, styles, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{style}>{escape(cell)}</td>" for cell, style in zip(row, styles, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return _section(title, f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>')

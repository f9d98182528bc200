"""What must hold when all clients of a soak have left: nothing held, accounts exact, disk sound."""

import io
import json
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from bench.soak_gauges import Stats, asked
from kvd.cli.main import main as kvd

SETTLE_SECONDS = 75.0  # Memory of a lost lease is kept apart for 30, writes have their deadline.
LOOK_SECONDS = 0.25
# Of metrics: nothing is left of what clients had, and all that was put is written.
EMPTY = (
    ("sessions", {}),
    ("leases", {}),
    ("lease_bytes", {}),
    ("reservations", {}),
    ("pending_fetches", {}),
    ("postponed_fetches", {}),
    ("open_deliveries", {}),
    ("dram_bytes", {"state": "filling"}),
    ("dram_bytes", {"state": "freeing"}),
    ("dram_bytes", {"state": "quarantined"}),
    ("slabs", {"state": "touching"}),
    ("slabs", {"state": "recalling"}),
    ("ssd_write_queue_chunks", {}),
    ("ssd_writes", {}),
    ("ssd_reading_bytes", {}),
    ("ssd_waiting_seals", {}),
)
CLASSES = ("anchor", "residual", "exact")
BAD_WORDS = ("Traceback", "bug:", "Exception")
LEVELS = ("warning", "error", "critical")


def settle(directory: Path, seconds: float = SETTLE_SECONDS) -> tuple[Stats | None, list[str]]:
    """Wait until nothing is held any more; return the last numbers, and what is held all the same.

    What is written or kept apart for a while is waited for; what stays beyond that is a leak.
    """
    deadline = time.monotonic() + seconds
    while True:
        stats = asked(directory)
        held = list(_held(stats)) if stats else ["the daemon does not answer"]
        if not held or time.monotonic() > deadline:
            return stats, held
        time.sleep(LOOK_SECONDS)


def adds_up(stats: Stats, slab_bytes: int) -> Iterator[str]:
    """Yield what does not add up, though it must at every moment."""
    slabs = int(stats.total("slabs") - stats.total("slabs", state="touching"))
    by_state = stats.by_label("dram_bytes", "state")
    there = sum(by_state.values()) + stats.total("dram_unowned_bytes")
    if there != slabs * slab_bytes:
        yield f"dram: {there:.0f} bytes in all states, {slabs} slabs of {slab_bytes}"
    for plane_class in CLASSES:
        for tier in ("dram", "ssd"):
            yield from _added(stats, "fetch", {"tier": tier, "class": plane_class})
        yield from _added(stats, "lookup", {"class": plane_class})


def whole(stats: Stats, slab_bytes: int) -> Iterator[str]:
    """Yield what is not as it must be once nobody uses the daemon."""
    slabs, configured = int(stats.total("slabs")), stats.total("dram_configured_bytes")
    if slabs != configured // slab_bytes:
        yield f"dram: {slabs} slabs of {slab_bytes} where {configured:.0f} are configured"
    ready = stats.total("dram_bytes", state="ready")
    readable = stats.total("dram_class_bytes")
    if ready != readable:
        yield f"dram: {ready:.0f} bytes are ready, {readable:.0f} in all classes"


def said_badly(lines: list[str]) -> list[str]:
    """Return the lines of a daemon's log that none should have."""
    return [line for line in lines if any(word in line for word in BAD_WORDS)]


def warnings(lines: list[str]) -> list[str]:
    """Return what was logged as a warning, or worse: what to look at when something is wrong."""
    return [line for line in lines if any(f"kvd: {level} " in line for level in LEVELS)]


def checked(data: Path) -> list[str]:
    """Return what `kvd check` finds wrong, cell by cell."""
    out, errors = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with redirect_stdout(out), redirect_stderr(errors):
        code = kvd(["check", "--data", str(data), "--json"])
    for stream in (out, errors):
        stream.seek(0)
    if code == 0:
        return []
    text = out.read()
    found = json.loads(text)["wrong"] if text else errors.read().strip()
    return [f"kvd check ends with {code}: {found}"]


def _held(stats: Stats) -> Iterator[str]:
    for name, labels in EMPTY:
        value = stats.total(name, **labels)
        if value:
            of = "".join(f" {label}" for label in labels.values())
            yield f"{name}{of}: {value:.0f} at the end"


def _added(stats: Stats, call: str, labels: dict[str, str]) -> Iterator[str]:
    parts = ("requested", "hit", "missed")
    asked_for, hit, missed = (stats.total(f"{call}_{p}_strips_total", **labels) for p in parts)
    if asked_for != hit + missed:
        of = " ".join(labels.values())
        yield f"{call} {of}: {asked_for:.0f} requested, {hit:.0f} hit and {missed:.0f} missed"

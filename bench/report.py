"""What every bench shares: figures, goals, interleaved medians, touched buffers, progress.

A bench module has `run(report, full)` and calls `report.figure(...)`; it prints nothing itself.
"""

import contextlib
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.goals import GOALS, reached

ROOT = Path(__file__).parent.parent
HISTORY = ROOT / "bench" / "history.jsonl"
PAGE_BYTES = 4096

Row = dict[str, Any]


class Report:
    """Collects figures; writes each as a JSON line when asked, or all as one table at the end."""

    def __init__(self, as_json: bool = False, keep: Path | None = None) -> None:
        self.rows: list[Row] = []
        self._as_json = as_json
        self._keep = keep
        self._machine = machine()
        self._commit = commit()

    def figure(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        baseline: float | None = None,
        ratio: float | None = None,
        note: str | None = None,
    ) -> None:
        """Record one figure; `value` is the number that is compared with the goal."""
        row: Row = {"name": name, "value": _plain(value), "unit": unit}
        optional = {"baseline": _plain(baseline), "ratio": _plain(ratio), "note": note}
        row |= {key: entry for key, entry in optional.items() if entry is not None}
        self.add(row | {"machine": self._machine, "commit": self._commit})

    def add(self, row: Row) -> None:
        """Take over a complete row, as one made by another process."""
        self.rows.append(row)
        line = json.dumps(row)
        if self._as_json:
            print(line, flush=True)
        if self._keep is not None:
            with self._keep.open("a") as file:
                file.write(line + "\n")

    def table(self) -> Table:
        """Return all figures with their goals as a table."""
        values = {row["name"]: row["value"] for row in self.rows}
        table = Table(title=f"{self._machine}, commit {self._commit}", title_justify="left")
        for heading, justify in (("figure", "left"), ("value", "right"), ("unit", "left")):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        for heading in ("baseline", "ratio"):
            table.add_column(heading, justify="right")
        for heading in ("goal", "reached", "note"):
            table.add_column(heading)
        for row in self.rows:
            table.add_row(*_cells(row, values))
        return table

    def show(self) -> None:
        """Print the table, unless the figures went out as JSON lines."""
        if not self._as_json and self.rows:
            Console(width=None if sys.stdout.isatty() else 150).print(self.table())


def _plain(value: Any) -> Any:
    """Turn numpy scalars into Python numbers and keep six significant digits."""
    if value is None or isinstance(value, bool):
        return value if value is None else int(value)
    number = value.item() if isinstance(value, np.generic) else value
    return float(f"{number:.6g}") if isinstance(number, float) else number


def _cells(row: Row, values: dict[str, float]) -> list[str]:
    goal = GOALS.get(row["name"])
    answer = reached(row["name"], values)
    mark = {True: "[green]yes[/]", False: "[red]NO[/]", None: ""}[answer]
    numbers = [_short(row.get(key)) for key in ("value", "baseline", "ratio")]
    words = [str(goal) if goal else "report", mark, row.get("note", "")]
    return [row["name"], numbers[0], row["unit"], *numbers[1:], *words]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def median_interleaved(repeats: int, *callables: Callable[[], Any]) -> list[float]:
    """Return each callable's median time in seconds; they take turns, so drift hits all alike."""
    assert repeats > 0 and callables
    times: list[list[float]] = [[] for _ in callables]
    for _ in range(repeats):
        for record, call in zip(times, callables, strict=True):
            begin = time.perf_counter_ns()
            call()
            record.append((time.perf_counter_ns() - begin) / 1e9)
    return [statistics.median(record) for record in times]


def touched(nbytes: int) -> np.ndarray:
    """Return a page-aligned byte buffer whose pages are all resident and not zero pages."""
    buffer = np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), dtype=np.uint8)[:nbytes]
    buffer[:] = 1  # First touch costs 15 to 50 copies on a virtual machine: before the clock.
    assert buffer.ctypes.data % PAGE_BYTES == 0
    return buffer


def relative_alignment(a: np.ndarray, b: np.ndarray) -> int:
    """Return (b - a) modulo a page: copies with small nonzero values run at a fraction of speed."""
    return int((b.ctypes.data - a.ctypes.data) % PAGE_BYTES)


def rival(name: str, install_hint: str) -> str | None:
    """Return the path of a rival program, or name it and say how to install it."""
    path = shutil.which(name)
    if path is None:
        print(f"rival missing: {name} (to compare with it: {install_hint})", file=sys.stderr)
    return path


@contextlib.contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show a progress line on standard error; the value given advances it by one step."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(label, highlight=False)
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(label, total=total)

        def advance(description: str = "") -> None:
            text = f"{label}: {description}" if description else label
            shown.update(task, advance=1, description=text)

        yield advance


def machine() -> str:
    """Return what figures depend on: processor, cores, kernel, Python. No host name."""
    cores = len(os.sched_getaffinity(0))
    kernel = platform.release().split("-")[0]
    return f"{_processor()}, {cores} cores, Linux {kernel}, Python {platform.python_version()}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def commit() -> str:
    """Return the short commit of this tree, with a plus sign when kvd or bench differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD").strip()
        changed = _git("status", "--porcelain", "--", "kvd", "kernels", "bench")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+" if changed else head


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

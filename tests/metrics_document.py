"""The table of metrics as docs/operations.md has it; run as a program, it writes it there."""

import re
from pathlib import Path

from kvd.observe.metrics import TABLE
from kvd.observe.samples import Kind, Metric

OPERATIONS = Path(__file__).parents[1] / "docs/operations.md"
HEADER = "| metric | labels | what it says, and what to make of it |"
_WRITTEN = re.compile(re.escape(HEADER) + r"\n(\|.*\n)*")


def cells_of(metric: Metric) -> list[str]:
    """Return the cells of a metric's row."""
    name = f"`{metric.name}`" + " (histogram)" * (metric.kind == Kind.HISTOGRAM)
    labels = ", ".join(label.name for label in metric.labels)
    return [name, labels, f"{metric.help} {metric.meaning}"]


def table() -> str:
    """Return the table, header and all."""
    lines = [HEADER, "|---|---|---|"]
    lines += ["| " + " | ".join(cells_of(metric)) + " |" for metric in TABLE]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text, count = _WRITTEN.subn(lambda _: table(), OPERATIONS.read_text())
    assert count == 1, f"{OPERATIONS} has {count} tables with the header {HEADER}"
    OPERATIONS.write_text(text)

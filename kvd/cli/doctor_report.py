"""What the doctor found, for people and as one object for programs."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from kvd.cli.version import version
from kvd.doctor.findings import Finding, Level

_COLOURS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARN: "yellow", Level.FAIL: "bold red"}


def as_object(findings: Sequence[Finding], running: int) -> dict:
    """Return what `--json` prints; its fields stand in `doctor_flags`."""
    return {
        "fine": not any(finding.level == Level.FAIL for finding in findings),
        "version": version(),
        "running": running,
        "counts": _counts(findings),
        "findings": [
            {
                "check": finding.check,
                "group": finding.group,
                "level": str(finding.level),
                "found": finding.found,
                "need": finding.need,
                "fix": finding.fix,
            }
            for finding in findings
        ],
    }


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {str(level): sum(f.level == level for f in findings) for level in Level}


def show(findings: Sequence[Finding], *, everything: bool) -> None:
    """Print one line for each finding, in groups; of what is ok only how many, unless asked."""
    # Never wrapped: a line that is copied into a shell must be one line.
    console = Console(soft_wrap=True, highlight=False)
    for group, members in groupby(findings, key=lambda finding: finding.group):
        told = [f for f in members if everything or f.level != Level.OK]
        if told:
            console.print(Text(group, style="bold"))
        for finding in told:
            console.print(_line(finding))
    counts = ", ".join(f"{count} {level}" for level, count in _counts(findings).items() if count)
    failing = any(finding.level == Level.FAIL for finding in findings)
    style = _COLOURS[Level.FAIL if failing else Level.OK]
    console.print(Text(f"{'not fine' if failing else 'fine'}: {counts}", style=style))


def _line(finding: Finding) -> Text:
    line = Text(f"  {finding.level:5}", style=_COLOURS[finding.level])
    line.append(f"{finding.check:22} ", style="dim")
    line.append(finding.found, style="default")
    if finding.need:
        line.append(f"; needed: {finding.need}", style="default")
    if finding.fix:
        line.append(f"; fix: {finding.fix}", style="default")
    return line

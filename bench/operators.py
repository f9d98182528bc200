"""What an operator waits for: `kvd-admin status` from the shell's point of view."""

import subprocess
import sys
from pathlib import Path

from bench.report import Report, median_interleaved, progress

REPEATS = 7


def report_cli(report: Report, directory: Path) -> None:
    """Report a whole `kvd-admin status`, beside an interpreter that does nothing."""
    status = [sys.executable, "-m", "kvd.cli.admin", "status", "--directory", str(directory)]
    nothing = [sys.executable, "-c", "pass"]

    def run(command: list[str]) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    with progress("kvd-admin status", total=1) as advance:
        told_s, empty_s = median_interleaved(REPEATS, lambda: run(status), lambda: run(nothing))
        advance("")
    note = "from exec to exit, a daemon with a full index; baseline: python -c pass"
    report.figure("cli.status_ms", 1e3 * told_s, "ms", baseline=1e3 * empty_s, note=note)

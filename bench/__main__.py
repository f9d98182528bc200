"""`python -m bench NAME`: run one bench, or all of them, each in a process of its own."""

import argparse
import importlib
import json
import subprocess
import sys

from bench.report import HISTORY, Report

BENCHES = ("ttft", "path", "lookup", "codec", "ssd", "recover", "crash")


def main() -> int:
    """Run the bench named on the command line; 0 when it ran, whether or not goals are reached."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=(*BENCHES, "demo", "all"))
    parser.add_argument("--json", action="store_true", help="one JSON object a line, no table")
    parser.add_argument("--full", action="store_true", help="longer runs, more texts and sizes")
    parser.add_argument("--record", action="store_true", help=f"append to {HISTORY.name}")
    options = parser.parse_args()
    report = Report(as_json=options.json, keep=HISTORY if options.record else None)
    if options.name == "all":
        failed = [name for name in BENCHES if not _run_apart(name, report, options.full)]
    else:
        importlib.import_module(f"bench.{options.name}").run(report, options.full)
        failed = []
    report.show()
    for name in failed:
        print(f"bench failed: {name}", file=sys.stderr)
    return 1 if failed else 0


def _run_apart(name: str, report: Report, full: bool) -> bool:
    """Run one bench in a fresh process, so that no bench pays for another's memory and threads."""
    print(f"bench {name}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "bench", name, "--json", *(["--full"] if full else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                report.add(json.loads(line))
    return process.returncode == 0


if __name__ == "__main__":
    sys.exit(main())

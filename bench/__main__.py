"""`python -m bench NAME`: run one bench, or all of them, each in a process of its own."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.report import HISTORY, Report

BENCHES = ("ttft", "path", "lookup", "codec", "ssd", "recover", "sim", "crash", "soak")
MINUTES_MAX = 24 * 60
# Options that one bench has for itself: arguments of its `run`, by name.
OWN = {"soak": ("minutes", "traces", "seed")}


def main() -> int:
    """Run the bench named on the command line; 0 when it ran, whether or not goals are reached."""
    # Before gRPC is imported: its handlers of forks wait for what its other threads hold, and a
    # soak stood still in one. Nothing here uses gRPC behind a fork, but only behind an exec.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=(*BENCHES, "demo", "all"))
    parser.add_argument("--json", action="store_true", help="one JSON object a line, no table")
    parser.add_argument("--full", action="store_true", help="longer runs, more texts and sizes")
    parser.add_argument("--record", action="store_true", help=f"append to {HISTORY.name}")
    soak = parser.add_argument_group("soak")
    soak.add_argument("--minutes", type=_minutes, metavar="N", help="how long (2, with --full 30)")
    soak.add_argument("--traces", type=Path, metavar="DIR", help="traces of requests (KVD_TRACES)")
    soak.add_argument("--seed", type=int, default=1, metavar="N", help="who is killed, and when")
    options = parser.parse_args()
    report = Report(as_json=options.json, keep=HISTORY if options.record else None)
    if options.name == "all":
        failed = [name for name in BENCHES if not _run_apart(name, report, options.full)]
    else:
        own: dict[str, Any] = {name: getattr(options, name) for name in OWN.get(options.name, ())}
        importlib.import_module(f"bench.{options.name}").run(report, options.full, **own)
        failed = []
    report.show()
    for name in failed:
        print(f"bench failed: {name}", file=sys.stderr)
    return 1 if failed else 0


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0
    if not 0 < minutes <= MINUTES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a number up to {MINUTES_MAX}")
    return minutes


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

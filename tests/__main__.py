"""`python -m tests {fast,full,sim,fuzz,crash,e2e,gpu,tidy}`: choose layers, see their budgets.

`full` runs layers that compute beside those that wait for processes. Further arguments go to
pytest: `python -m tests sim --seed 17`, `python -m tests fast -k chain`.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
BUDGET_SECONDS = {
    "tidy": 5,
    "unit": 20,
    "property": 60,
    "fuzz": 40,
    "conformance": 20,
    "golden": 10,
    "simulation": 120,
    "crash": 120,
    "e2e": 120,
    "packaging": 90,
}
FAST = ("tidy", "unit", "property", "conformance", "golden")
# What waits for daemons and disks most of the time, and so leaves the cores to the rest.
WAITING = ("crash", "e2e")
CHOICES = {
    "tidy": ("tidy",),
    "fast": FAST,
    "sim": ("simulation",),
    "fuzz": ("fuzz",),
    "crash": ("crash",),
    "e2e": ("e2e", "packaging"),
    "computing": (*FAST, "fuzz", "simulation"),
    "full": tuple(BUDGET_SECONDS),
}


class Totals:
    """Counts outcomes and seconds by layer, the directory under tests."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        layer = Path(report.nodeid.split("::")[0]).parts[1]
        self.seconds[layer] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[layer][report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("layers")
        for layer, outcomes in self.outcomes.items():
            counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            spent, budget = self.seconds[layer], BUDGET_SECONDS.get(layer)
            over = "  OVER BUDGET" if budget is not None and spent > budget else ""
            terminalreporter.write_line(f"{layer:12} {counts:32} {spent:6.1f} s of {budget}{over}")


def main() -> int:
    """Run the chosen layers and return pytest's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("choice", choices=(*CHOICES, "gpu"))
    options, rest = parser.parse_known_args()
    if options.choice == "gpu":
        return subprocess.run([sys.executable, "-m", "tests.gpu", *rest], cwd=ROOT).returncode
    if options.choice == "full":
        return _side_by_side(rest)
    layers = [name for name in CHOICES[options.choice] if any(TESTS.glob(f"{name}/**/test_*.py"))]
    if not layers:
        print(f"no tests for {options.choice}: {', '.join(CHOICES[options.choice])}")
        return 2
    arguments = ["--rootdir", str(ROOT), *(str(TESTS / layer) for layer in layers), *rest]
    return int(pytest.main(arguments, plugins=[Totals()]))


def _side_by_side(rest: list[str]) -> int:
    """Run layers that wait in processes of their own, and show last what those said."""
    begun = []
    with contextlib.ExitStack() as stack:
        for choice in WAITING:
            said = stack.enter_context(tempfile.TemporaryFile("w+"))
            command = [sys.executable, "-m", "tests", choice, *rest]
            process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
            stack.callback(process.kill)
            begun.append((process, said))
        computing = subprocess.run([sys.executable, "-m", "tests", "computing", *rest], cwd=ROOT)
        statuses = [computing.returncode]
        for process, said in begun:
            statuses.append(process.wait())
            said.seek(0)
            sys.stdout.writelines(said)
            sys.stdout.flush()
    return max(statuses, key=abs)


if __name__ == "__main__":
    sys.exit(main())

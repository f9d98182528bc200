"""The ratchet: baseline.json lists today's exceptions; they may shrink or vanish, never grow.

`python -m tests.tidy.ratchet` lowers the baseline to what the tree needs. It never raises it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.tidy import documents, rooms, sizes, words
from tests.tidy.tree import Finding, Tree, repository

BASELINE = Path(__file__).with_name("baseline.json")
Rule = Callable[[Tree], Iterable[Finding]]
Baseline = dict[str, dict[str, int]]

RULES: dict[str, Rule] = {
    "imports": rooms.imports,
    "heavy imports": rooms.heavy_imports,
    "chance": rooms.chance,
    "star imports": rooms.star_imports,
    "testing only": rooms.testing_only,
    "device disk": rooms.device_disk,
    "file lines": sizes.file_lines,
    "function lines": sizes.function_lines,
    "parameters": sizes.parameters,
    "flags": sizes.flags,
    "methods": sizes.methods,
    "nesting": sizes.nesting,
    "asserts": sizes.asserts,
    "broad except": words.broad_except,
    "open work": words.open_work,
    "machine paths": words.machine_paths,
    "commented code": words.commented_code,
    "names": words.names,
    "prints": words.prints,
    "hashes": words.hashes,
    "environment": words.environment,
    "sleeps": words.sleeps,
    "type tests": words.type_tests,
    "empty doors": words.empty_doors,
    "docstrings": words.docstrings,
    "document length": documents.length,
    "document known": documents.known,
    "document title": documents.title,
    "document links": documents.links,
}


def read_baseline() -> Baseline:
    """Read the exceptions: rule, then where, then how large."""
    return json.loads(BASELINE.read_text())


def grown(findings: Iterable[Finding], allowed: dict[str, int]) -> list[Finding]:
    """Return the findings that are new or larger than the baseline allows."""
    return [
        finding for finding in _summed(findings) if finding.amount > allowed.get(finding.where, 0)
    ]


def stale(findings: Iterable[Finding], allowed: dict[str, int]) -> dict[str, int]:
    """Return the baseline's entries that are larger than the tree needs."""
    amounts = {finding.where: finding.amount for finding in _summed(findings)}
    return {where: amount for where, amount in allowed.items() if amounts.get(where, 0) < amount}


def lower() -> None:
    """Rewrite the baseline with entries lowered to the tree's amounts and vanished ones gone."""
    kept: Baseline = {}
    for name, allowed in read_baseline().items():
        amounts = {finding.where: finding.amount for finding in _summed(RULES[name](repository()))}
        entries = {w: min(a, amounts[w]) for w, a in allowed.items() if w in amounts}
        kept |= {name: entries} if entries else {}
    BASELINE.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


def _summed(findings: Iterable[Finding]) -> list[Finding]:
    """Join findings at the same place: counts add up."""
    totals: Counter[str] = Counter()
    advice: dict[str, str] = {}
    for finding in findings:
        totals[finding.where] += finding.amount
        advice.setdefault(finding.where, finding.advice)
    return [Finding(where, amount, advice[where]) for where, amount in totals.items()]


if __name__ == "__main__":
    lower()

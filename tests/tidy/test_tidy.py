"""Is it still simple? Each rule looks at the tree, and each finds the violation planted for it."""

import json

import pytest

from tests.tidy.plants import PLANTS
from tests.tidy.ratchet import RULES, grown, read_baseline, stale
from tests.tidy.tree import Finding, plant, repository


@pytest.mark.parametrize("name", RULES)
def test_tree(name):
    found = grown(RULES[name](repository()), read_baseline().get(name, {}))
    lines = [f"{finding.where}: {finding.amount}: {finding.advice}" for finding in found]
    assert not lines, f"{name}:\n" + "\n".join(lines)


@pytest.mark.parametrize("name", RULES)
def test_planted_violation_is_found(name):
    wrong, right = PLANTS[name]
    for path, text in wrong.items():
        assert list(RULES[name](plant({path: text}))), f"{path} should not pass"
    assert not list(RULES[name](plant(right)))


def test_every_rule_is_planted():
    assert PLANTS.keys() == RULES.keys() >= read_baseline().keys()


def test_baseline_is_no_larger_than_needed():
    entries = {
        name: stale(RULES[name](repository()), allowed) for name, allowed in read_baseline().items()
    }
    left = {name: found for name, found in entries.items() if found}
    assert not left, f"lower it (python -m tests.tidy.ratchet): {json.dumps(left)}"


def test_ratchet_only_turns_one_way():
    findings = [Finding("a", 2, ""), Finding("a", 1, ""), Finding("b", 1, "")]
    assert [finding.where for finding in grown(findings, {"a": 3})] == ["b"]
    assert [finding.where for finding in grown(findings, {"a": 2, "b": 1})] == ["a"]
    assert stale(findings, {"a": 3, "b": 2, "c": 1}) == {"b": 2, "c": 1}

"""What docs/operations.md says of `kvd-admin` is what the tool and the core know."""

from pathlib import Path

from kvd.cli.admin import SIZE, VERBS
from kvd.cli.admin_chain import REASONS, VERDICTS
from kvd.core.explain import Verdict
from kvd.core.story import CHUNKS_MAX, Why
from tests.unit.test_documents_tables import rows

OPERATIONS = (Path(__file__).parents[2] / "docs/operations.md").read_text()


def test_verbs() -> None:
    table = rows(OPERATIONS, "| verb | what it shows or does |")
    assert [name.strip("`") for name, _ in table] == [*(verb.name for verb in VERBS), SIZE[0]]


def test_verdicts() -> None:
    names = [verdict.name.lower() for verdict in Verdict]
    table = rows(OPERATIONS, "| verdict | what it means | what to do |")
    assert [name for name, *_ in table] == names and set(VERDICTS) == set(names)


def test_reasons() -> None:
    names = [why.name.lower() for why in Why]
    table = rows(OPERATIONS, "| note | what happened |")
    assert [name for name, _ in table] == names and set(REASONS) == set(names)
    assert f"{CHUNKS_MAX:,}" in OPERATIONS

"""Every word of docs/glossary.md is used where it is said to be, and defined once."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
ROW = re.compile(r"^\| (?!word |---)([^|]+) \|", re.MULTILINE)


def words(text: str) -> list[str]:
    return [word for cell in ROW.findall(text) for word in cell.split(", ")]


def plain(text: str) -> str:
    """Return text in small letters, `kv_group` and `FetchWanted` taken apart."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    return " ".join(re.sub(r"[-_`*#]", " ", apart).lower().split())


def used() -> str:
    files = [*ROOT.glob("kvd/**/*.py"), *ROOT.glob("docs/*.md")]
    return plain("\n".join(f.read_text() for f in files if f != GLOSSARY))


BUILT, PLANNED = GLOSSARY.read_text().split("## Kept for what is not built yet\n")


def test_words_are_used():
    # Also as plurals, or bent: reserved, sealing, committed.
    bent = r"(e|s|es|d|ed|ing|ted|ting)?\b"
    text = used()
    missing = [
        word
        for word in words(BUILT)
        if not re.search(r"\b" + re.escape(plain(word).removesuffix("e")) + bent, text)
    ]
    assert not missing


def test_is_defined_once():
    assert len(words(BUILT)) > 60 and len(words(PLANNED)) > 5
    every = words(BUILT) + words(PLANNED)
    assert len(every) == len(set(every))


def test_grammar_names_what_exists():
    names = re.findall(r"`([A-Z]\w+)`", GLOSSARY.read_text())
    code = "\n".join(f.read_text() for f in ROOT.glob("kvd/core/*.py"))
    assert names and all(f"class {name}" in code for name in names), names

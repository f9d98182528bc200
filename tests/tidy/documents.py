"""Documents: a known set, one title each, working links, limited length."""

import re
from collections.abc import Iterator
from posixpath import dirname, join, normpath

from tests.tidy.tree import Finding, Source, Tree

LIMITS = {
    "README.md": 150,
    "CHANGELOG.md": 500,
    "bench/texts/README.md": 40,
    "docs/architecture.md": 450,
    "docs/format.md": 750,
    "docs/glossary.md": 170,
    "docs/operations.md": 750,
    "docs/protocol.md": 500,
    "docs/restart.md": 150,
    "docs/style.md": 150,
    "tests/cases.md": 120,
}
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"^# \S", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OUTSIDE = ("http://", "https://", "mailto:", "#")


def length(tree: Tree) -> Iterator[Finding]:
    """Limit a document's length; one that needs more room means a room needs less."""
    for source in tree.documents():
        limit = LIMITS.get(source.path)
        if limit is not None and len(source.lines) > limit:
            yield Finding(source.path, len(source.lines), f"at most {limit} lines")


def known(tree: Tree) -> Iterator[Finding]:
    """Refuse documents outside the set."""
    for source in tree.documents():
        if source.path not in LIMITS:
            yield Finding(source.path, 1, "say it in one of the documents of the set")


def title(tree: Tree) -> Iterator[Finding]:
    """Ask for one title, at the top."""
    for source in tree.documents():
        text = FENCE.sub("", source.text)
        count = len(TITLE.findall(text))
        if count != 1 or not TITLE.match(text):
            yield Finding(source.path, max(count, 1), "one line with a single #, the first")


def links(tree: Tree) -> Iterator[Finding]:
    """Refuse links to files that are not there."""
    for source in tree.documents():
        for target in LINK.findall(FENCE.sub("", source.text)):
            path = target.split("#")[0]
            if not target.startswith(OUTSIDE) and not tree.has(_resolved(source, path)):
                yield Finding(f"{source.path}:{target}", 1, "no such file")


def _resolved(source: Source, path: str) -> str:
    return normpath(join(dirname(source.path), path))

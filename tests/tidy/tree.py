"""The tree as data: read once, parsed once, handed to every check."""

import ast
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Made by a compiler, or somebody else's: not ours to tidy.
EXCLUDED = ("kvd/v1/", "kernels/third_party/")
TEXT = {".py", ".pyi", ".md", ".toml", ".proto", ".cpp", ".h", ".cu", ".txt", ".json", ".yaml"}
TEXT_NAMES = {"Makefile", "run", "CMakeLists.txt", ".gitignore"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation: where it is (the baseline's key), how large, and what to do about it."""

    where: str
    amount: int
    advice: str


@dataclass(frozen=True)
class Source:
    """One file of the repository."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def module(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.module))

    @property
    def area(self) -> str:
        """Return the top directory: kvd, tests, bench, docs..."""
        return self.path.split("/")[0]

    @property
    def room(self) -> str:
        """Return the room of a module of kvd; files directly under kvd are the words."""
        parts = self.path.split("/")
        assert parts[0] == "kvd"
        return parts[1] if len(parts) > 2 else "words"

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function and method."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def classes(self) -> Iterator[ast.ClassDef]:
        """Yield every class."""
        yield from (node for node in self.nodes if isinstance(node, ast.ClassDef))


@dataclass(frozen=True)
class Tree:
    """The files that the checks look at."""

    sources: tuple[Source, ...]
    unread: tuple[str, ...] = ()  # Paths of files that no check reads.

    def python(self, *areas: str) -> Iterator[Source]:
        """Yield the Python files under the top directories named, or all of them."""
        for source in self.sources:
            if source.path.endswith(".py") and (not areas or source.area in areas):
                yield source

    def documents(self) -> Iterator[Source]:
        """Yield the Markdown files."""
        yield from (source for source in self.sources if source.path.endswith(".md"))

    def has(self, path: str) -> bool:
        """Return whether a file or directory of this tree has that path."""
        paths = (*(source.path for source in self.sources), *self.unread)
        return any(known == path or known.startswith(path + "/") for known in paths)


def plant(files: dict[str, str]) -> Tree:
    """Make a tree of a few files, for a check's own test."""
    return Tree(tuple(Source(path, text) for path, text in files.items()))


@cache
def repository() -> Tree:
    """Read the files that git tracks and that still exist."""
    sources, unread = [], []
    for path in _tracked():
        wanted = Path(path).suffix in TEXT or Path(path).name in TEXT_NAMES
        if wanted and not path.startswith(EXCLUDED):
            sources.append(Source(path, (ROOT / path).read_text()))
        else:
            unread.append(path)
    assert len(sources) > 20, "run in the repository"
    return Tree(tuple(sources), tuple(unread))


def _tracked() -> Iterable[str]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [path for path in done.stdout.split("\0") if path and (ROOT / path).is_file()]

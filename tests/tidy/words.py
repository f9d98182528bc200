"""Words and calls that are not wanted, each with what to write instead."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

from tests.tidy.tree import Finding, Source, Tree

BROAD = ("Exception", "BaseException")
# The three borders where any failure must become an answer.
BROAD_PATHS = ("kvd/daemon/hands.py", "kvd/rpc/server.py", "kvd/engines/border.py")
NAMES = re.compile("^(utils?|helpers?|commons?|base|managers?|handlers?)$", re.IGNORECASE)
PRINTING = ("kvd/cli/", "bench/", "tests/", "proto/", "deploy/examples/")
DOORS = ("kvd/client/__init__.py", "kvd/testing/__init__.py", "kvd/codec/__init__.py")
ENVIRONMENT_PATHS = ("kvd/config.py", "kvd/cli/")
# Written in halves, so that this file does not contain what it looks for.
OPEN_WORK = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE = re.compile(
    r"/(wo" + r"rk|ro" + r"ot|home/\w+)/|pypi\." + r"org|pythonhosted\." + r"org|npmjs\." + r"org"
)
CODE_LIKE = re.compile(
    r"^(import \w|from \w[\w.]* import|def \w+\(|class \w+[:(]|return\b|raise\b|if .*:$|for .*:$"
    r"|while .*:$|with .*:$|[\w.\[\]]+ [-+*/|&]?= |[\w.]+\(.*\)$)"
)
WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def broad_except(tree: Tree) -> Iterator[Finding]:
    """Allow one broad `except` at each of the borders, and none elsewhere."""
    for source in tree.python("kvd", "bench"):
        count = sum(_is_broad(node) for node in source.nodes)
        if count > (source.path in BROAD_PATHS):
            yield Finding(source.path, count, "name the exceptions, or let a border answer")


def open_work(tree: Tree) -> Iterator[Finding]:
    """Refuse notes of open work in files."""
    yield from _matches(tree, OPEN_WORK, "finish it or file it")


def machine_paths(tree: Tree) -> Iterator[Finding]:
    """Refuse absolute paths of one machine, and hosts of package registries."""
    yield from _matches(tree, MACHINE, "it means nothing elsewhere")


def commented_code(tree: Tree) -> Iterator[Finding]:
    """Refuse code in comments."""
    for source in tree.python():
        count = sum(_is_code(comment) for comment in _comments(source))
        if count:
            yield Finding(source.path, count, "delete it: git remembers")


def names(tree: Tree) -> Iterator[Finding]:
    """Refuse names that say nothing about what is inside."""
    for source in tree.python():
        for part in source.path.removesuffix(".py").split("/"):
            if any(NAMES.match(word) for word in part.split("_")):
                yield Finding(f"{source.path}:{part}", 1, "name the module after what it owns")
        for node in source.classes():
            if any(NAMES.match(word) for word in WORDS_OF_NAME.findall(node.name)):
                yield Finding(f"{source.path}:{node.name}", 1, "name the class after what it is")


def prints(tree: Tree) -> Iterator[Finding]:
    """Refuse `print` outside the command line, benches and tests."""
    yield from _calls(tree, "print", PRINTING, "log it, or return it")


def hashes(tree: Tree) -> Iterator[Finding]:
    """Refuse the builtin `hash`: it differs between processes."""
    yield from _calls(tree, "hash", (), "use kvd.identity or kvd.checksum")


def environment(tree: Tree) -> Iterator[Finding]:
    """Refuse reads of the environment outside the configuration."""
    for source in tree.python("kvd"):
        count = sum(_reads_environment(node) for node in source.nodes)
        if count and not source.path.startswith(ENVIRONMENT_PATHS):
            yield Finding(source.path, count, "read it in kvd/config.py")


def sleeps(tree: Tree) -> Iterator[Finding]:
    """Refuse sleeping in tests; `sleep(0)`, which only yields to the loop, is no sleep."""
    for source in tree.python("tests"):
        for node in source.nodes:
            if isinstance(node, ast.Call) and _sleeps(node):
                advice = f"line {node.lineno}: wait for an event with a deadline"
                yield Finding(source.path, 1, advice)


def type_tests(tree: Tree) -> Iterator[Finding]:
    """Refuse `isinstance` in the core outside its dispatch."""
    for source in tree.python("kvd"):
        count = _count_calls(source, "isinstance")
        if count and source.room == "core" and source.path != "kvd/core/step.py":
            yield Finding(source.path, count, "dispatch in step.py, or match on a field")


def empty_doors(tree: Tree) -> Iterator[Finding]:
    """Keep `__init__.py` empty except at the public doors."""
    for source in tree.python():
        if source.path.endswith("__init__.py") and source.path not in DOORS and source.text.strip():
            yield Finding(source.path, len(source.lines), "import from the module that owns it")


def docstrings(tree: Tree) -> Iterator[Finding]:
    """Ask for a module docstring of one to five lines."""
    for source in tree.python("kvd", "bench", "tests", "proto"):
        text = ast.get_docstring(source.module)
        if source.text.strip() and not (text and len(text.splitlines()) <= 5):
            length = len(text.splitlines()) if text else 0
            yield Finding(source.path, max(length, 1), "begin with one to five lines of docstring")


def _reads_environment(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv"):
            return True
    return False


def _sleeps(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    return name == "sleep" and not (call.args and ast.unparse(call.args[0]) == "0")


def _matches(tree: Tree, pattern: re.Pattern[str], advice: str) -> Iterator[Finding]:
    for source in tree.sources:
        hits = [n for n, line in enumerate(source.lines, 1) if pattern.search(line)]
        if hits:
            yield Finding(source.path, len(hits), f"line {hits[0]}: {advice}")


def _is_broad(node: ast.AST) -> bool:
    match node:
        case ast.ExceptHandler(type=None):
            return True
        case ast.ExceptHandler(type=caught):
            return any(isinstance(n, ast.Name) and n.id in BROAD for n in ast.walk(caught))
        case ast.Call(func=function, args=arguments) if "suppress" in ast.unparse(function):
            return any(ast.unparse(argument) in BROAD for argument in arguments)
    return False


def _comments(source: Source) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield token.string.lstrip("#").strip()


def _is_code(comment: str) -> bool:
    """Return whether a comment looks like a statement and parses as one."""
    if not CODE_LIKE.match(comment):
        return False
    try:
        ast.parse(comment + " pass" if comment.endswith(":") else comment)
    except SyntaxError:
        return False
    return True


def _calls(tree: Tree, name: str, allowed: tuple[str, ...], advice: str) -> Iterator[Finding]:
    for source in tree.python():
        count = _count_calls(source, name)
        if count and not source.path.startswith(allowed):
            yield Finding(source.path, count, advice)


def _count_calls(source: Source, name: str) -> int:
    nodes = (node for node in source.nodes if isinstance(node, ast.Call))
    counts = Counter(node.func.id for node in nodes if isinstance(node.func, ast.Name))
    return counts[name]

"""Limits of size and shape. The middle is free, the tails are limited."""

import ast
from collections.abc import Iterator

from tests.tidy.tree import Finding, Tree

AREAS = ("kvd", "bench", "tests", "proto")
FILE_LINES, FILE_LINES_TESTS = 400, 600
FUNCTION_LINES, FUNCTION_LINES_TESTS = 70, 100
PARAMETERS = 6
METHODS, METHODS_PROTOCOL = 15, 7
NESTING, NESTING_TESTS = 3, 4
ASSERTS_PER_KLOC = 20
ASSERTED_ROOMS = ("core", "format", "codec")
SMALLEST_JUDGED_LINES = 200  # A density over fewer lines says nothing.

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)


def file_lines(tree: Tree) -> Iterator[Finding]:
    """Limit the length of a file."""
    for source in tree.python(*AREAS):
        limit = FILE_LINES if source.area == "kvd" else FILE_LINES_TESTS
        if len(source.lines) > limit:
            yield Finding(source.path, len(source.lines), f"split it: at most {limit} lines")


def function_lines(tree: Tree) -> Iterator[Finding]:
    """Limit the length of a function, its docstring not counted."""
    for source in tree.python(*AREAS):
        limit = FUNCTION_LINES if source.area == "kvd" else FUNCTION_LINES_TESTS
        for function in source.functions():
            length = _length(function)
            if length > limit:
                yield Finding(f"{source.path}:{function.name}", length, f"at most {limit} lines")


def parameters(tree: Tree) -> Iterator[Finding]:
    """Limit the number of parameters, self not counted."""
    for source in tree.python(*AREAS):
        for function in source.functions():
            count = len(_parameters(function))
            if count > PARAMETERS:
                advice = f"at most {PARAMETERS}: make a frozen options object"
                yield Finding(f"{source.path}:{function.name}", count, advice)


def flags(tree: Tree) -> Iterator[Finding]:
    """Limit boolean parameters: at most one, and keyword-only."""
    for source in tree.python("kvd"):
        for function in source.functions():
            named = {a.arg for a in _parameters(function) if _is_bool(a)}
            loose = named - {argument.arg for argument in function.args.kwonlyargs}
            if len(named) > 1 or (loose and not function.name.startswith("__")):
                advice = f"one boolean at most, keyword-only: {', '.join(sorted(named))}"
                yield Finding(f"{source.path}:{function.name}", len(named), advice)


def methods(tree: Tree) -> Iterator[Finding]:
    """Limit the methods of a class and of a protocol."""
    for source in tree.python("kvd"):
        for node in source.classes():
            protocol = any("Protocol" in ast.unparse(base) for base in node.bases)
            limit = METHODS_PROTOCOL if protocol else METHODS
            count = sum(isinstance(item, Function) for item in node.body)
            if count > limit:
                yield Finding(f"{source.path}:{node.name}", count, f"at most {limit} methods")


def nesting(tree: Tree) -> Iterator[Finding]:
    """Limit how deep blocks lie in each other."""
    for source in tree.python(*AREAS):
        limit = NESTING if source.area == "kvd" else NESTING_TESTS
        for function in source.functions():
            deepest = max((_depth(statement) for statement in function.body), default=0)
            if deepest > limit:
                advice = f"blocks nest {limit} deep at most: return early or split"
                yield Finding(f"{source.path}:{function.name}", deepest, advice)


def asserts(tree: Tree) -> Iterator[Finding]:
    """Ask for assertions in the rooms that must not be wrong."""
    for room in ASSERTED_ROOMS:
        sources = [source for source in tree.python("kvd") if source.room == room]
        lines = sum(len(source.lines) for source in sources)
        nodes = (node for source in sources for node in source.nodes)
        count = sum(isinstance(node, ast.Assert) for node in nodes)
        missing = ASSERTS_PER_KLOC * lines // 1000 - count
        if lines >= SMALLEST_JUDGED_LINES and missing > 0:
            yield Finding(f"kvd/{room}", missing, f"{count} assertions in {lines} lines")


def _length(function: Function) -> int:
    last = function.end_lineno or function.lineno
    length = last - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return length


def _parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if positional and positional[0].arg in ("self", "cls"):
        positional = positional[1:]
    return [*positional, *arguments.kwonlyargs]


def _is_bool(argument: ast.arg) -> bool:
    return isinstance(argument.annotation, ast.Name) and argument.annotation.id == "bool"


def _depth(node: ast.AST) -> int:
    """Return the deepest nesting of blocks from here; an `elif` lies beside its `if`."""
    if isinstance(node, Function | ast.ClassDef | ast.Lambda):
        return 0
    own = int(isinstance(node, BLOCKS))
    if isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        inside = max((_depth(child) for child in node.body), default=0)
        return max(own + inside, _depth(node.orelse[0]))
    return own + max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)

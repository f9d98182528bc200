"""Who may import whom: the table of docs/architecture.md as data, and the check that reads it."""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.tidy.tree import Finding, Source, Tree

THREADS = frozenset({"threading", "asyncio", "concurrent", "multiprocessing", "queue"})
FILES = frozenset({"os", "io", "pathlib", "shutil", "tempfile", "mmap", "socket", "fcntl"})
CHANCE = frozenset({"time", "random", "secrets", "uuid", "datetime"})
DECIDES_ONLY = THREADS | FILES | CHANCE | {"torch", "grpc", "lmdb", "logging", "subprocess"}
BELOW_DAEMON = ("codec", "format", "policy", "core", "disk", "catalog", "arena")


@dataclass(frozen=True, slots=True)
class Room:
    """Rooms (or single modules, dotted) and packages a room may import; numpy and stdlib always."""

    rooms: tuple[str, ...] = ("words",)
    packages: tuple[str, ...] = ()
    banned: frozenset[str] = frozenset()


ROOMS = {
    "words": Room((), ("xxhash",), THREADS | FILES - {"os", "pathlib"} | {"logging"}),
    "codec": Room(("words",), ("xxhash",), THREADS | {"socket", "mmap", "shutil", "tempfile"}),
    "format": Room(("words",), (), THREADS | FILES),
    "policy": Room(("words",), (), DECIDES_ONLY),
    "core": Room(("words", "policy"), (), DECIDES_ONLY),
    "disk": Room(("words", "format"), ("kvikio",)),
    "catalog": Room(("words", "format"), ("lmdb",)),
    "arena": Room(("words",), ("cupy",)),
    "checking": Room(("words", "codec", "format", "disk", "catalog")),
    "host": Room(("words",)),
    "daemon": Room(("words", *BELOW_DAEMON, "host", "observe"), ("uvloop",)),
    "rpc": Room(
        (
            "words",
            "v1",
            "observe",
            "core.events",
            "core.effects",
            "core.operator_events",
            "core.census",
            "core.explain",
            "core.story",
            "daemon.inbox",
            "daemon.desk",
            "daemon.pace",
        ),
        ("grpc", "grpc_health", "grpc_reflection", "google", "uvloop"),
    ),
    "observe": Room(("words",), ("prometheus_client", "opentelemetry")),
    "client": Room(
        ("words", "codec", "format", "v1"), ("grpc", "google", "uvloop", "xxhash", "torch", "cupy")
    ),
    "speculate": Room(("words", "codec", "client"), ("torch",)),
    "engines": Room(
        ("words", "codec", "client", "speculate"),
        ("torch", "cupy", "transformers", "vllm", "sglang", "lmcache"),
    ),
    "admin": Room(("words", "v1"), ("grpc", "google")),
    "doctor": Room(
        (
            "words",
            "v1",
            "codec",
            "host",
            "arena",
            "disk",
            "daemon.budget",
            "admin",
            "rpc.lock",
            "rpc.tcp",
            "rpc.credentials",
        ),
    ),  # fmt: skip
    "sizing": Room(("words", "codec", "format", "daemon.budget")),
    "cli": Room(
        ("words", "admin", "client", "checking", "host", "doctor", "sizing", "v1"),
        ("rich", "google", "grpc", "grpc_health"),
    ),
    "testing": Room(("words", *BELOW_DAEMON, "daemon", "rpc", "observe"), ("pytest", "hypothesis")),
}
# One verb of the command line puts together what nothing else may see together.
ALSO = {
    "kvd/cli/serve.py": ("daemon", "rpc", "observe"),
    "kvd/cli/service.py": ("daemon", "format"),
}
# Seconds to import and hundreds of megabytes: only inside the function that needs them.
HEAVY = frozenset({"torch", "cupy", "kvikio", "transformers", "vllm", "sglang"})
HEAVY_ROOMS = ("speculate", "engines")
# The machine's clock and chance enter by one word each; elsewhere they are arguments.
CHANCE_FREE = {"time": "kvd.clock", "random": "a seed or numpy's generator"}
CHANCE_PATHS = ("kvd/clock.py", "kvd/limits.py", "kvd/cli/", "kvd/testing/")


def imports(tree: Tree) -> Iterator[Finding]:
    """Refuse imports against the table of rooms."""
    for source in tree.python("kvd"):
        for name, line in _imported(source.nodes):
            problem = _problem(source, name)
            if problem:
                yield Finding(f"{source.path}:{name}", 1, f"line {line}: {problem}")


def heavy_imports(tree: Tree) -> Iterator[Finding]:
    """Refuse heavy packages at the top of a module: they are imported where they are used."""
    for source in tree.python("kvd"):
        for name, line in _imported(_top_level(source.module)):
            if name.split(".")[0] in HEAVY and source.room not in HEAVY_ROOMS:
                yield Finding(f"{source.path}:{name}", 1, f"line {line}: import it lazily")


def chance(tree: Tree) -> Iterator[Finding]:
    """Refuse the machine's clock and chance outside the words that own them."""
    for source in tree.python("kvd"):
        for name, line in _imported(source.nodes):
            if name in CHANCE_FREE and not source.path.startswith(CHANCE_PATHS):
                yield Finding(f"{source.path}:{name}", 1, f"line {line}: use {CHANCE_FREE[name]}")


def star_imports(tree: Tree) -> Iterator[Finding]:
    """Refuse `import *`."""
    for source in tree.python():
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                yield Finding(f"{source.path}:{node.module}", 1, "name what is imported")


def testing_only(tree: Tree) -> Iterator[Finding]:
    """Refuse `kvd.testing` in the product."""
    for source in tree.python("kvd"):
        for name, line in _imported(source.nodes):
            if name.startswith("kvd.testing") and source.room != "testing":
                yield Finding(f"{source.path}:{name}", 1, f"line {line}: only tests import it")


def device_disk(tree: Tree) -> Iterator[Finding]:
    """Refuse the disk of device memory in what serves: reads go to host memory only."""
    for source in tree.python("kvd"):
        for name, line in _imported(source.nodes):
            if name.startswith("kvd.disk.device") and source.room in ("daemon", "rpc", "cli"):
                yield Finding(f"{source.path}:{name}", 1, f"line {line}: nothing chooses it")


def _imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield (dotted name, line) of every import; `from kvd import x` counts as kvd.x."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "relative imports hide the room"
            whole = node.module.count(".") < 2 and node.module.split(".")[0] == "kvd"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name, node.lineno) for name in (names if whole else [node.module]))


def _top_level(module: ast.Module) -> list[ast.stmt]:
    """Return the imports at the top of a module, those inside a `try` included."""
    statements = [s for n in module.body for s in (n.body if isinstance(n, ast.Try) else [n])]
    return [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]


def _problem(source: Source, name: str) -> str | None:
    room = ROOMS.get(source.room)
    if room is None:
        return f"room {source.room} is not in the table of rooms"
    first, *rest = name.split(".")
    if first in room.banned:
        return f"{source.room} must not touch {first}"
    if first != "kvd":
        known = first in sys.stdlib_module_names or first in ("numpy", *room.packages)
        return None if known else f"{source.room} may not import {first}"
    target = rest[0] if rest and (rest[0] in ROOMS or rest[0] == "v1") else "words"
    allowed = (source.room, *room.rooms, *ALSO.get(source.path, ()))
    dotted = ".".join(rest)
    if target in allowed or any(dotted == a or dotted.startswith(a + ".") for a in allowed):
        return None
    return f"{source.room} may not import {dotted or 'kvd'}"

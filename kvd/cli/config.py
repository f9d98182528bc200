"""`kvd config`: shows what a daemon would be given and who said so, or checks a file."""

import argparse
import json
import os
import sys
from pathlib import Path

from kvd.cli.serve_flags import said_flags
from kvd.config import build, complete
from kvd.errors import KvdError
from kvd.settings import Kind
from kvd.settings_sources import DEFAULT_FILE, Said, Settled, chosen_file, settle
from kvd.settings_values import plain, toml
from kvd.units import human

EXIT_OK = 0
EXIT_WRONG = 2
# Those that say what a default is on this host, and nothing that a file says.
_PLACES = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME")
_COLUMNS_UNBOUND = 500  # Where nobody looks, no line is folded.


def run(arguments: argparse.Namespace) -> int:
    """Show or check; return the exit code."""
    # Paths may hold bytes that are no text.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        code = _check(arguments) if arguments.config_verb == "check" else _show(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads on; and the interpreter would complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refuse("standard output was closed before all was said")
    return code


def _show(arguments: argparse.Namespace) -> int:
    flags = said_flags(arguments)
    try:
        settled = complete(settle(flags, os.environ, DEFAULT_FILE), os.environ)
        build(settled)
        path = chosen_file(flags, os.environ, DEFAULT_FILE)
    except KvdError as error:
        return _refuse(error.message)
    if arguments.json:
        print(json.dumps(_as_object(settled, path)))
    else:
        _show_table(settled, path)
    return EXIT_OK


def _check(arguments: argparse.Namespace) -> int:
    path = Path(arguments.file).absolute()
    places = {name: os.environ[name] for name in _PLACES if name in os.environ}
    wrong = None
    try:
        build(complete(settle({"config": arguments.file}, places, DEFAULT_FILE), places))
    except KvdError as error:
        wrong = error.message
    if arguments.json:
        print(json.dumps({"file": str(path), "good": wrong is None, "wrong": wrong}))
        return EXIT_OK if wrong is None else EXIT_WRONG
    if wrong is not None:
        return _refuse(wrong)
    print(f"{path}: good")
    return EXIT_OK


def _as_object(settled: Settled, path: Path | None) -> dict[str, object]:
    settings = {
        key: {"value": plain(said.value, said.setting), "from": said.source, "name": said.name}
        for key, said in settled.items()
    }
    return {"file": str(path) if path else None, "settings": settings}


def _show_table(settled: Settled, path: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _COLUMNS_UNBOUND)
    table = Table("key", "value", "from", box=None, pad_edge=False)
    for key, said in settled.items():
        # What was chosen stands out from what is as it comes.
        style = "dim" if said.source == "default" else ""
        source = " ".join(filter(None, (said.source, said.name)))
        table.add_row(*(Text(cell, style) for cell in (key, _shown(said), source)))
    console.print(Text(f"file: {path or 'none'}\n"))
    console.print(table)


def _shown(said: Said) -> str:
    text = toml(said.value, said.setting)
    if said.setting.kind is Kind.SIZE and text.endswith('B"') and text[-3:-2].isdigit():
        return f"{text} ({human(int(said.value))})"  # type: ignore[arg-type]
    return text


def _refuse(line: str) -> int:
    text = line.replace("\n", "\\n")
    print(f"kvd: {text}", file=sys.stderr, flush=True)
    return EXIT_WRONG

"""Tables, JSON and lines on standard output, alike for every verb. Nothing is decided here."""

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from kvd.cli.messages import as_object

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_PIPES = 160  # Where nobody says how wide it is; tables shall not be cut.


def console() -> "Console":
    from rich.console import Console

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_PIPES
    return Console(width=width, highlight=False, soft_wrap=True, markup=False)


def printable(text: str) -> str:
    """Return text with what would steer a terminal as escapes: clients choose names freely."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show_json(arguments: argparse.Namespace, message: Message) -> bool:
    """Print a message as one JSON object if that was asked for; return whether it was."""
    if arguments.json:
        print(json.dumps(as_object(message)))
    return arguments.json


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; columns whose name begins with `>` are right-aligned."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left")
    for row in rows:
        table.add_row(*map(printable, row))
    # Not by its own print: that ends the process, in its own way, when nobody reads on.
    out = console()
    with out.capture() as captured:
        out.print(table)
    print(captured.get(), end="")


def show_line(line: str) -> None:
    print(printable(line))

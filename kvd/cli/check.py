"""`kvd check`: looks at data directories, shows what it found, and says so by its exit code."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvd.checking.check import Report, Wish, check
from kvd.checking.findings import Level
from kvd.cli.check_report import as_lines, as_object
from kvd.errors import KvdError

EXIT_WHOLE = 0
EXIT_WRONG = 1
EXIT_CANNOT = 2


def run(arguments: argparse.Namespace) -> int:
    """Check, and return the exit code."""
    # Paths may hold bytes that are no text.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    wish = Wish(quick=arguments.quick, repair=arguments.repair)
    paths = [Path(os.path.abspath(path)) for path in arguments.data]
    try:
        with _progress() as told:
            report = check(paths, wish, told)
        _show(report, wish, arguments)
    except KvdError as error:
        return _refuse(error.message)
    except BrokenPipeError:
        # Nobody reads on; and the interpreter would complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refuse("standard output was closed before all was said")
    except OSError as error:
        return _refuse(f"{error.filename or 'checking'}: {error.strerror}; check again when mended")
    except KeyboardInterrupt:
        change = "what was repaired so far is; check again" if wish.repair else "nothing is changed"
        return _refuse(f"interrupted; {change}")
    return EXIT_WRONG if report.findings.count(Level.WRONG) else EXIT_WHOLE


def _show(report: Report, wish: Wish, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(as_object(report, wish)))
    else:
        print("\n".join(as_lines(report)))
    sys.stdout.flush()


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what is told how far the check is; it shows that to a person only."""
    if not sys.stderr.isatty():
        yield lambda stage, done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("", total=None)
        yield lambda stage, done, of: progress.update(
            task, description=stage, completed=done, total=of or None
        )


def _refuse(line: str) -> int:
    text = line.replace("\n", "\\n")
    print(f"kvd: {text}", file=sys.stderr, flush=True)
    return EXIT_CANNOT

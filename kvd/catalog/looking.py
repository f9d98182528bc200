"""Looks at a catalog in another process, which a damaged file may end without any harm."""

import signal
import subprocess
import sys
from pathlib import Path

from kvd.catalog import scan
from kvd.errors import Fault, FaultKind

LOOK_S_MAX = 600.0

# What a damaged file does to its reader. Others, as SIGKILL, come from outside.
_BY_DAMAGE = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class Look:
    """One run of `scan`: with numbers it writes what there is, without it verifies the file."""

    def __init__(
        self, path: Path, numbers: tuple[str, ...] = (), descriptors: tuple[int, ...] = ()
    ) -> None:
        self._path, self._problem = path, ""
        # -P: the script's own directory is no place to import from.
        command = [sys.executable, "-P", scan.__file__, str(path), *numbers]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=descriptors, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            self._process, self._problem = None, error.strerror or str(error)

    def verdict(self) -> Fault | None:
        """Wait for the end, and return why the catalog is not to be used, or None."""
        if self._process is None:
            return Fault(FaultKind.IO, f"the catalog {self._path} has no reader: {self._problem}")
        with self._process as process:
            try:
                _, said = process.communicate(timeout=LOOK_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                what = f"was not read within {LOOK_S_MAX:.0f} s"
                return Fault(FaultKind.TIMEOUT, f"the catalog {self._path} {what}")
        if process.returncode < 0:
            ended_by = signal.Signals(-process.returncode)
            if ended_by in _BY_DAMAGE:
                return damaged(self._path, f"reading it ends in {ended_by.name}")
            what = f"was not read: its reader was ended by {ended_by.name}"
            return Fault(FaultKind.IO, f"the catalog {self._path} {what}")
        lines = said.decode(errors="replace").strip().splitlines()
        what = lines[-1] if lines else f"exit {process.returncode}"
        match process.returncode:
            case 0:
                return None
            case scan.UNREAD:
                return Fault(FaultKind.IO, f"the catalog {self._path} was not read: {what}")
            case _:
                return damaged(self._path, what)

    def give_up(self) -> None:
        """End the process; its verdict is worth nothing then."""
        if self._process is not None:
            self._process.kill()


def damaged(path: Path, what: str) -> Fault:
    return Fault(FaultKind.FORMAT, f"the catalog {path} is damaged: {what}")

"""Looks at a catalog in another process, which a damaged file may end without any harm."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from kvd.catalog import scan
from kvd.catalog.contract import DATA_NAME
from kvd.errors import Fault, FaultKind

LOOK_S_MAX = 600.0

# What a damaged file can do to its reader, as other things can: a medium that fails under the map,
# a library half installed. Others, as SIGKILL, come from outside.
_BY_DAMAGE = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class Look:
    """One run of `scan`: with numbers it writes what there is, without it verifies the file."""

    def __init__(
        self, path: Path, numbers: tuple[str, ...] = (), descriptors: tuple[int, ...] = ()
    ) -> None:
        self._path, self._problem, self._verifies = path, "", not numbers
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
            return unread(self._path, f"it has no reader: {self._problem}")
        with self._process as process:
            try:
                _, said = process.communicate(timeout=LOOK_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                what = f"was not read within {LOOK_S_MAX:.0f} s"
                return Fault(FaultKind.TIMEOUT, f"the catalog {self._path} {what}")
        if process.returncode < 0:
            return self._ended_by(signal.Signals(-process.returncode))
        lines = said.decode(errors="replace").strip().splitlines()
        what = lines[-1] if lines else f"exit {process.returncode}"
        match process.returncode:
            case 0:
                return None
            case scan.DAMAGED:
                return damaged(self._path, what)
            case _:
                return unread(self._path, what)

    def _ended_by(self, ended_by: signal.Signals) -> Fault:
        """Call the file damaged only if plain reads find it so; a bad medium fails them."""
        if ended_by in _BY_DAMAGE and not self._verifies:
            match Look(self._path).verdict():
                case Fault(FaultKind.FORMAT, message):
                    return Fault(FaultKind.FORMAT, f"{message}; reading it ends in {ended_by.name}")
        return unread(self._path, f"its reader was ended by {ended_by.name}")

    def give_up(self) -> None:
        """End the process; its verdict is worth nothing then."""
        if self._process is not None:
            self._process.kill()


def has_data(path: Path) -> bool:
    """Return whether directory `path` holds a catalog; raise OSError when that cannot be seen.

    Not by `Path.exists`, which calls what cannot be seen absent: a new one would take its place.
    """
    try:
        os.stat(path / DATA_NAME)
    except FileNotFoundError:
        return False
    return True


def damaged(path: Path, what: str) -> Fault:
    return Fault(FaultKind.FORMAT, f"the catalog {path} is damaged: {what}")


def unread(path: Path, what: str) -> Fault:
    """Return the fault when it is not known what there is."""
    return Fault(FaultKind.IO, f"the catalog {path} was not read: {what}")

"""What was found on a host: one line each, with what is needed and the exact line that mends it."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much it matters, the least first. Only FAIL changes the exit code."""

    OK = "ok"
    NOTE = "note"  # Good to know, or could not be looked at.
    WARN = "warn"  # kvd runs, and something costs more or protects less than it could.
    FAIL = "fail"  # kvd does not start, or cannot do what it is configured to.


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is a stable name, its group before the dot. `need` and `fix` are empty when ok."""

    check: str
    level: Level
    found: str
    need: str = ""
    fix: str = ""

    @property
    def group(self) -> str:
        return self.check.partition(".")[0]


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def note(check: str, found: str, need: str = "", fix: str = "") -> Finding:
    return Finding(check, Level.NOTE, found, need, fix)


def warn(check: str, found: str, need: str, fix: str) -> Finding:
    return Finding(check, Level.WARN, found, need, fix)


def fail(check: str, found: str, need: str, fix: str) -> Finding:
    return Finding(check, Level.FAIL, found, need, fix)

"""Errors by what the caller does about them, and faults, which are values.

The kinds are API; messages are not, and carry the numbers on both sides of a violated limit.
"""

from dataclasses import dataclass
from enum import IntEnum


class ErrorKind(IntEnum):
    INVALID = 1
    DENIED = 2
    INCOMPATIBLE = 3
    OVERLOADED = 4
    LATE = 5
    LOST = 6
    UNAVAILABLE = 7
    CORRUPT = 8


# Of a gRPC call's trailing metadata: the name of the kind that the daemon refused it with. Without
# it a status may be the transport's.
KIND_METADATA = "kvd-error-kind"


class KvdError(Exception):
    """A refusal or failure, addressed to the caller of kvd."""

    def __init__(self, kind: ErrorKind, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.message}"


class FaultKind(IntEnum):
    IO = 1
    NO_SPACE = 2
    TIMEOUT = 3
    CHECKSUM = 4
    FORMAT = 5
    DEVICE = 6
    GONE = 7
    CANCELLED = 8


@dataclass(frozen=True, slots=True)
class Fault:
    """An expected failure of a hand: a value, never raised across a room's border."""

    kind: FaultKind
    message: str

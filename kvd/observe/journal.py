"""Entries of systemd's journal by its native protocol, which alone carries fields of our own.

Each is one datagram: `NAME=value` lines, or a length before a value of several lines. A journal
that cannot be reached has the line on stderr instead, with the priority that systemd reads there.
"""

import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

SOCKET = Path("/run/systemd/journal/socket")
IDENTIFIER = "kvd"
VALUE_BYTES_MAX = 32 * 1024  # A datagram has its bound; longer words say no more.
_PRIORITIES = (
    (logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6),
)  # fmt: skip
_DEBUG = 7


class Journal(logging.Handler):
    def __init__(
        self,
        words_of: Callable[[logging.LogRecord], str],
        otherwise: TextIO,
        path: Path,
        fields_of: Callable[[logging.LogRecord], Iterable[tuple[str, str]]],
    ) -> None:
        super().__init__()
        self._words_of, self._fields_of = words_of, fields_of
        self._otherwise, self._path = otherwise, str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)  # The loop is not to wait for a log.

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(self._entry(record), self._path)
        except OSError:
            self._write(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _write(self, record: logging.LogRecord) -> None:
        line = f"<{priority_of(record.levelno)}>{record.name}: {self._words_of(record)}\n"
        with contextlib.suppress(OSError, ValueError):
            self._otherwise.write(line)
            self._otherwise.flush()

    def _entry(self, record: logging.LogRecord) -> bytes:
        fields = {
            "MESSAGE": self._words_of(record),
            "PRIORITY": str(priority_of(record.levelno)),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            "KVD_LOGGER": record.name,
        }
        fields |= {f"KVD_{name.upper()}": value for name, value in self._fields_of(record)}
        return b"".join(field_of(name, value) for name, value in fields.items())


def priority_of(level: int) -> int:
    """Return syslog's number for a level of `logging`."""
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG)


def field_of(name: str, value: str) -> bytes:
    """Return one field of an entry."""
    data = value.encode(errors="replace")[:VALUE_BYTES_MAX]
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"

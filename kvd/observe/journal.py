"""Entries of systemd's journal by its native protocol, which alone carries fields of our own.

Each is one datagram: `NAME=value` lines, or a length before a value of several lines. A journal
that takes none has the line on stderr instead, with the priority that systemd reads there. What
stderr does not take at once either is counted, and lost: mostly it is the same journal, that hangs.
"""

import contextlib
import logging
import select
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
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        words = self._words_of(record)
        if self._lost:
            words += f"; {self._lost} lines before it are lost"
        took = self._send(record, words) or self._write(record, words)
        self._lost = 0 if took else self._lost + 1

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _send(self, record: logging.LogRecord, words: str) -> bool:
        try:
            self._socket.sendto(self._entry(record, words), self._path)
        except OSError:
            return False
        return True

    def _write(self, record: logging.LogRecord, words: str) -> bool:
        line = f"<{priority_of(record.levelno)}>{record.name}: {words}\n"
        if not _has_room(self._otherwise):
            return False
        with contextlib.suppress(OSError, ValueError):
            self._otherwise.write(line)
            self._otherwise.flush()
        return True

    def _entry(self, record: logging.LogRecord, words: str) -> bytes:
        fields = {
            "MESSAGE": words,
            "PRIORITY": str(priority_of(record.levelno)),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            "KVD_LOGGER": record.name,
        }
        fields |= {f"KVD_{name.upper()}": value for name, value in self._fields_of(record)}
        return b"".join(field_of(name, value) for name, value in fields.items())


def _has_room(stream: TextIO) -> bool:
    """Return whether a stream takes a line without waiting, as far as that can be known."""
    try:
        return bool(select.select((), (stream,), (), 0)[1])
    except (OSError, ValueError):
        return True  # It is no file of the system.


def priority_of(level: int) -> int:
    """Return syslog's number for a level of `logging`."""
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG)


def field_of(name: str, value: str) -> bytes:
    """Return one field of an entry."""
    data = value.encode(errors="replace")[:VALUE_BYTES_MAX]
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"

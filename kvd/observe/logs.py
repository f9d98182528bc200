"""The form of the log: lines of text or JSON on stderr, or entries of systemd's journal.

What a record is about is said by `extra`, with the names of FIELDS. Nothing that is logged holds a
token, or bytes of a chunk.
"""

import json
import logging
import os
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from kvd.config import LogSettings
from kvd.observe.journal import SOCKET, Journal

FIELDS = ("tenant", "session", "directory")
PROGRAM = "kvd.serve"  # Whose words need no name: they are the daemon's own.


def start_log(
    settings: LogSettings, stderr: TextIO, journal_stream: str = "", socket: Path = SOCKET
) -> None:
    """Have all records of this process written as the settings say, and in no other way.

    `journal_stream` is $JOURNAL_STREAM: what systemd says that a stream to its journal is.
    """
    form = settings.format
    if form == "auto":
        form = "journal" if is_stream(stderr, journal_stream) else "text"
    handler: logging.Handler
    if form == "journal":
        handler = Journal(words_of, stderr, socket, fields_of)
    else:
        handler = logging.StreamHandler(stderr)
        handler.setFormatter(Json() if form == "json" else Text())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


def is_stream(stream: TextIO, named: str) -> bool:
    """Return whether a stream is the one that is named `device:inode`."""
    try:
        seen = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return named == f"{seen.st_dev}:{seen.st_ino}"


def fields_of(record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    """Yield what is known of whom or what a record is about."""
    for name in FIELDS:
        value = getattr(record, name, None)
        if value is not None:
            yield name, str(value)


def error_of(record: logging.LogRecord) -> str:
    """Return the exception of a record in one line: its kind, words and frames, the last first."""
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    error = record.exc_info[1]
    frames = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames[::-1])
    return f"{type(error).__name__}: {error} at {where}"


def words_of(record: logging.LogRecord) -> str:
    """Return all that a record says, in one line."""
    words = ": ".join(filter(None, (record.getMessage(), error_of(record))))
    return words.replace("\n", "\\n")


class Text(logging.Formatter):
    """`kvd: level logger: message`."""

    def format(self, record: logging.LogRecord) -> str:
        who = f"{record.levelname.lower()} {record.name}: " if record.name != PROGRAM else ""
        return f"kvd: {who}{words_of(record)}"


class Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        told = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **dict(fields_of(record)),
        }
        if error := error_of(record):
            told["error"] = error
        return json.dumps(told, ensure_ascii=False)

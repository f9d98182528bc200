"""The forms of the log: text, JSON, and entries of a journal over its real socket."""

import contextlib
import io
import json
import logging
import os
import socket
import struct
import threading

import pytest

from kvd.config import LogSettings
from kvd.observe.journal import VALUE_BYTES_MAX, field_of
from kvd.observe.logs import is_stream, start_log

DEADLINE_S = 20.0
ABOUT = {"tenant": "red", "session": 7, "directory": "/data/a"}


@pytest.fixture(autouse=True)
def root_logger():
    """Give the process its log back."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in before:
            handler.close()
    root.handlers, root.level = before, level


@pytest.fixture
def journal(short_directory):
    path = short_directory / "journal"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.settimeout(DEADLINE_S)
        yield path, listening


def fields(entry: bytes) -> dict[str, str]:
    """Read an entry as the journal does."""
    found = {}
    while entry:
        name, end, rest = entry.partition(b"\n")
        if b"=" in name:
            name, _, value = name.partition(b"=")
        else:
            (size,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert rest[:1] == b"\n"
            rest = rest[1:]
        found[name.decode()] = value.decode()
        entry = rest
    return found


def fail() -> None:
    raise ValueError("two\nlines")


def log_an_error() -> None:
    try:
        fail()
    except ValueError:
        logging.getLogger("kvd.x").exception("it %s", "failed")


def test_text_is_one_line_with_level_and_logger():
    out = io.StringIO()
    start_log(LogSettings("info", "text"), out)
    logging.getLogger("kvd.hands").warning("session %d closed", 7, extra=ABOUT)
    logging.getLogger("kvd.hands").debug("not wanted")
    logging.getLogger("kvd.serve").info("ready on %s", "/run/kvd")
    log_an_error()
    first, second, third = out.getvalue().splitlines()
    assert first == "kvd: warning kvd.hands: session 7 closed"
    assert second == "kvd: ready on /run/kvd"
    assert third.startswith("kvd: error kvd.x: it failed: ValueError: two\\nlines at test_observe_")


def test_json_is_one_object_a_line():
    out = io.StringIO()
    start_log(LogSettings("debug", "json"), out)
    logging.getLogger("kvd.hands").debug("a %s\nb", "ü", extra=ABOUT)
    log_an_error()
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "debug", "logger": "kvd.hands", "message": "a ü\nb",
        "tenant": "red", "session": "7", "directory": "/data/a",
    }  # fmt: skip
    assert second["error"].startswith("ValueError: two\nlines at ")
    assert second["message"] == "it failed" and "tenant" not in second


def test_levels_are_kept():
    out = io.StringIO()
    start_log(LogSettings("error", "text"), out)
    logging.getLogger("kvd.a").warning("no")
    logging.getLogger("kvd.a").error("yes")
    assert out.getvalue() == "kvd: error kvd.a: yes\n"


def test_a_journal_gets_entries_with_fields(journal):
    path, listening = journal
    out = io.StringIO()
    start_log(LogSettings("info", "journal"), out, socket=path)
    logging.getLogger("kvd.hands").warning("session %d closed", 7, extra=ABOUT)
    entry = fields(listening.recv(1 << 16))
    assert entry["MESSAGE"] == "session 7 closed" and entry["PRIORITY"] == "4"
    assert entry["SYSLOG_IDENTIFIER"] == "kvd" and entry["KVD_LOGGER"] == "kvd.hands"
    assert entry["CODE_FILE"].endswith("test_observe_logs.py") and int(entry["CODE_LINE"]) > 0
    assert entry["CODE_FUNC"] == "test_a_journal_gets_entries_with_fields"
    assert {name: entry[f"KVD_{name.upper()}"] for name in ABOUT} == {
        name: str(value) for name, value in ABOUT.items()
    }
    log_an_error()
    entry = fields(listening.recv(1 << 16))
    assert entry["PRIORITY"] == "3" and "KVD_TENANT" not in entry
    assert entry["MESSAGE"].startswith("it failed: ValueError: two\\nlines at ")
    assert not out.getvalue()


@pytest.mark.parametrize("value", ["plain", "with = in it", "two\nlines", "ü\n\n", ""])
def test_fields_read_back(value):
    assert fields(field_of("KVD_X", value)) == {"KVD_X": value}


def test_long_words_are_cut():
    assert len(fields(field_of("MESSAGE", "x" * (1 << 20)))["MESSAGE"]) == VALUE_BYTES_MAX


def test_without_a_journal_lines_have_its_priorities(short_directory):
    out = io.StringIO()
    start_log(LogSettings("info", "journal"), out, socket=short_directory / "none")
    logging.getLogger("kvd.a").info("one")
    logging.getLogger("kvd.a").critical("two")
    assert out.getvalue() == "<6>kvd.a: one\n<2>kvd.a: two\n"


def received(listening: socket.socket) -> list[bytes]:
    """Return what lies in a socket."""
    listening.setblocking(False)
    found = []
    with contextlib.suppress(BlockingIOError):
        while data := listening.recv(1 << 16):
            found.append(data)
    return found


def test_a_journal_that_hangs_holds_nobody_up_and_what_is_lost_is_counted(journal):
    path, listening = journal
    ours, theirs = socket.socketpair()
    lines = 1000

    def log_them() -> None:
        for _ in range(lines):
            logging.getLogger("kvd.a").info("x" * 1000)

    # Its reader is closed first, so that nobody waits for it any more.
    with ours, os.fdopen(os.dup(ours.fileno()), "w") as stderr, theirs:
        start_log(LogSettings("info", "journal"), stderr, socket=path)
        logger = threading.Thread(target=log_them, daemon=True)
        logger.start()
        logger.join(DEADLINE_S)
        held_up = logger.is_alive()
        here = len(received(listening)) + b"".join(received(theirs)).count(b"\n")
        assert not held_up and 0 < here < lines
        for said in (f"; {lines - here} lines before it are lost", ""):
            logging.getLogger("kvd.a").info("it reads again")
            [entry] = received(listening)
            assert fields(entry)["MESSAGE"] == "it reads again" + said
        assert not received(theirs)


def test_auto_is_the_journal_only_where_stderr_is_its_stream(tmp_path, journal):
    path, listening = journal
    with open(tmp_path / "err", "w+") as stderr:
        seen = os.fstat(stderr.fileno())
        named = f"{seen.st_dev}:{seen.st_ino}"
        assert is_stream(stderr, named) and not is_stream(stderr, "1:2")
        assert not is_stream(stderr, "") and not is_stream(io.StringIO(), named)
        start_log(LogSettings(), stderr, named, path)
        logging.getLogger("kvd.a").info("to the journal")
        assert fields(listening.recv(1 << 16))["MESSAGE"] == "to the journal"
        start_log(LogSettings(), stderr, "1:2", path)
        logging.getLogger("kvd.a").info("to stderr")
        stderr.seek(0)
        assert stderr.read() == "kvd: info kvd.a: to stderr\n"

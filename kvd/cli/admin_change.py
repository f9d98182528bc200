"""Verbs of `kvd-admin` that change something: unpin, evict, clear, drain."""

import argparse
import json
import sys

from kvd.admin.asking import AdminClient, NoDaemon
from kvd.cli.chains import find_keyspace
from kvd.cli.messages import human
from kvd.cli.tables import show_json, show_line
from kvd.errors import ErrorKind, KvdError
from kvd.units import SIZE_UNITS, parse_size
from kvd.v1 import admin_pb2 as admin

DEADLINE_MS = 30_000  # Of a clear, which waits for the disk.
NUMBER_MAX = (1 << 64) - 1  # That a field of a message holds.


def unpin_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pin", type=int, help="its number, as `kvd-admin pins` shows it")


def run_unpin(client: AdminClient, arguments: argparse.Namespace) -> int:
    if arguments.pin <= 0:
        raise KvdError(ErrorKind.INVALID, f"pin is {arguments.pin}; numbers begin at 1")
    if arguments.pin > NUMBER_MAX:
        raise KvdError(ErrorKind.INVALID, f"there is no pin {arguments.pin}; see pins")
    reply = client.call("Unpin", admin.UnpinRequest(pin=arguments.pin))
    if not show_json(arguments, reply):
        show_line(f"pin {arguments.pin} is gone")
    return 0


# ---- evict and clear ----


def _whose_flags(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--tenant", default="", help="all of a tenant")
    whose.add_argument("--keyspace", default="", metavar="HEX", help="first digits of its digest")


def evict_flags(parser: argparse.ArgumentParser) -> None:
    _whose_flags(parser)
    parser.add_argument("--bytes", default="", metavar="SIZE", help="so much, as 1GiB (all)")
    parser.add_argument(
        "--lossy",
        action="store_true",
        help="also what is nowhere else; without it only what is on disk too",
    )


def clear_flags(parser: argparse.ArgumentParser) -> None:
    _whose_flags(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _digest(client: AdminClient, arguments: argparse.Namespace) -> bytes:
    return find_keyspace(client, arguments.keyspace).digest if arguments.keyspace else b""


def run_evict(client: AdminClient, arguments: argparse.Namespace) -> int:
    # In the message 0 is all: who says 0 does not mean that.
    size_bytes = parse_size(arguments.bytes) if arguments.bytes else 0
    if size_bytes is None or size_bytes > NUMBER_MAX or (arguments.bytes and not size_bytes):
        units = " ".join(filter(None, SIZE_UNITS))
        message = f"--bytes is {arguments.bytes!r}; allowed is a number above 0 with one of {units}"
        raise KvdError(ErrorKind.INVALID, message)
    wish = admin.EvictRequest(
        tenant=arguments.tenant,
        keyspace=_digest(client, arguments),
        bytes=size_bytes,
        lossy=arguments.lossy,
    )
    reply = client.call("Evict", wish, timeout_s=max(60.0, arguments.timeout))
    if not show_json(arguments, reply):
        show_line(f"{reply.strips:,} strips, {human(reply.bytes)} of memory are free")
    return 0


def run_clear(client: AdminClient, arguments: argparse.Namespace) -> int:
    """Forget; 1 when some is held by readers still, and goes with them."""
    whose = f"tenant {arguments.tenant}"
    if arguments.keyspace:
        whose = f"keyspace {arguments.keyspace}"
    digest = _digest(client, arguments)
    if not (arguments.yes or _agreed(f"forget all of {whose} for good?")):
        raise KvdError(ErrorKind.INVALID, f"nothing of {whose} is cleared; give --yes")
    wish = admin.ForgetRequest(tenant=arguments.tenant, keyspace=digest, deadline_ms=DEADLINE_MS)
    reply = client.call("Forget", wish, timeout_s=DEADLINE_MS / 1000 + arguments.timeout)
    if not show_json(arguments, reply):
        held = f"; {reply.held:,} are read still, and gone with that" if reply.held else ""
        show_line(f"{reply.chunks:,} chunks are forgotten{held}")
    return 1 if reply.held else 0


def _agreed(question: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# ---- drain ----


def drain_flags(parser: argparse.ArgumentParser) -> None:
    pass


def run_drain(client: AdminClient, arguments: argparse.Namespace) -> int:
    """End the daemon; 1 when it ended before all that was sealed was on disk."""
    last = None
    shown = sys.stderr.isatty() and not arguments.json
    try:
        for last in client.stream("Drain", admin.DrainRequest()):
            if shown:
                saved = "all is saved" if last.saved else "still saving"
                left = f"{last.left_ms / 1000:.0f} s left"
                line = f"{last.sessions} sessions, {last.requests} requests, {saved}, {left}"
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    except NoDaemon:
        if last is None:
            raise  # It was not there to begin with.
    saved = last is not None and last.saved
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps({"ended": True, "saved": saved}))
    else:
        show_line("the daemon has ended" + ("" if saved else "; not all was saved"))
    return 0 if saved else 1

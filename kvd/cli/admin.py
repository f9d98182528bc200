"""The command `kvd-admin`: what an operator asks of a running daemon, and how it is shown.

Verbs are data: a name, its flags, what answers it. Nothing heavy is imported before it is needed.
"""

import argparse
import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kvd.cli import size_flags
from kvd.cli.version import version
from kvd.config import ADMIN_SOCKET, complete
from kvd.errors import KvdError
from kvd.settings_sources import DEFAULT_FILE, settle

EXIT_DONE, EXIT_NOT_WELL, EXIT_REFUSED, EXIT_NOBODY = 0, 1, 2, 3
SECONDS_MAX = 3600

EPILOG = """exit codes:
  0   done, and all is well
  1   done, and the answer is no: status has problems, a chain is not whole, not all was cleared
  2   not done: wrong usage, refused by the daemon, or not known to it; one line says why
  3   no daemon answered: none is there, it hangs, or this user may not ask it

--json prints one object, whose fields are those of proto/kvd/v1/admin.proto: they keep their
meaning, and there may come more; of an older daemon some are zero. Digests are hexadecimal.

The runtime directory is that of `kvd serve` with the same flags, environment and file of
settings: --directory, KVD_DIRECTORY, --config, KVD_CONFIG.
"""


@dataclass(frozen=True, slots=True)
class Verb:
    """`module` of kvd.cli has `NAME_flags(parser)` and `run_NAME(client, arguments) -> int`."""

    name: str
    help: str
    module: str


# Asks no daemon: has flags and JSON of its own.
SIZE = "size", "bytes of a model's KV by class and tier, and how much of it fits; asks no daemon"
VERBS = (
    Verb("status", "what the daemon is, has and lacks", "admin_show"),
    Verb("tiers", "what lies in dram and ssd, by class and tenant", "admin_show"),
    Verb("stats", "every number of the daemon, as its metrics have them", "admin_stats"),
    Verb("top", "tiers, hit rates, links, queues and sessions, live", "admin_top"),
    Verb("report", "one page of HTML with pictures of all that", "admin_report"),
    Verb("sessions", "who is connected, and what each holds", "admin_show"),
    Verb("keyspaces", "which models are stored, and how much of each", "admin_show"),
    Verb("pins", "what is pinned", "admin_show"),
    Verb("lookup", "how much of a chain is stored, and where", "admin_chain"),
    Verb("explain", "why a chain is found or missed; of no chain: the last misses", "admin_chain"),
    Verb("pin", "keep a prefix in memory until it is unpinned, or the daemon ends", "admin_chain"),
    Verb("unpin", "let go of a pinned prefix", "admin_change"),
    Verb("evict", "free memory", "admin_change"),
    Verb("clear", "forget a keyspace, or all of a tenant, for good", "admin_change"),
    Verb("drain", "end the daemon in good order, and wait for it", "admin_change"),
)


def main(words: list[str] | None = None) -> int:
    """Run one verb and return the exit code of the process."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        said = sys.argv[1:] if words is None else words
        code = _run(_parser(said).parse_args(said))
        sys.stdout.flush()
        return code
    except KvdError as error:
        return _refuse(error.message, _code_of(error))
    except BrokenPipeError:
        # Nobody reads on; and the interpreter would complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refuse("standard output was closed before all was said", EXIT_REFUSED)
    except OSError as error:
        return _refuse(f"{error.filename or 'output'}: {error.strerror}", EXIT_REFUSED)
    except KeyboardInterrupt:
        return _refuse("interrupted", EXIT_REFUSED)


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """Return what reads the words; of other verbs than theirs it knows the names only."""
    parser = argparse.ArgumentParser(
        prog="kvd-admin", description="Ask and steer a running kvd daemon.", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"kvd-admin {version()}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        own = verbs.add_parser(verb.name, help=verb.help, description=verb.help)
        own.add_argument("--directory", default="", help="runtime directory of the daemon")
        own.add_argument("--config", default="", help="the daemon's file of settings")
        own.add_argument("--timeout", type=_seconds, default=5.0, metavar="SECONDS",
                         help="how long to wait for the daemon (5)")  # fmt: skip
        own.add_argument("--json", action="store_true", help="print one JSON object")
        own.set_defaults(chosen=verb)
        if verb.name in words:  # Their modules cost more than a question to the daemon.
            getattr(_module(verb), f"{verb.name}_flags")(own)
    size_flags.add_flags(verbs.add_parser(SIZE[0], help=SIZE[1], description=SIZE[1]))
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.verb == SIZE[0]:
        return importlib.import_module("kvd.cli.size").run(arguments)
    from kvd.admin.asking import AdminClient

    flags = {"directory": arguments.directory, "config": arguments.config}
    said = settle({key: text for key, text in flags.items() if text}, os.environ, DEFAULT_FILE)
    directory = complete(said, os.environ)["directory"].value
    assert isinstance(directory, Path)
    verb = arguments.chosen
    with AdminClient(directory / ADMIN_SOCKET, arguments.timeout) as client:
        return getattr(_module(verb), f"run_{verb.name}")(client, arguments)


def _module(verb: Verb) -> ModuleType:
    return importlib.import_module(f"kvd.cli.{verb.module}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a number up to {SECONDS_MAX}")
    return seconds


def _code_of(error: KvdError) -> int:
    from kvd.admin.asking import NoDaemon

    return EXIT_NOBODY if isinstance(error, NoDaemon) else EXIT_REFUSED


def _refuse(line: str, code: int) -> int:
    text = line.replace("\n", "\\n")
    print(f"kvd-admin: {text}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())

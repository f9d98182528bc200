"""The command `kvd`: its verbs and flags. What a verb needs is imported when it is run."""

import argparse
import sys
from importlib import metadata

from kvd.cli.check_flags import add_flags

EPILOG = """exit codes:
  0   stopped by SIGTERM or SIGINT, after draining; a second signal ends the draining
  2   could not start: one line says what to change
  70  a bug, logged as one line; the service manager should start it again

environment (flags go first):
  KVD_DIRECTORY, KVD_TENANTS (comma separated), KVD_DRAM, KVD_ALLOW_UIDS (comma separated),
  KVD_DRAIN_SECONDS, KVD_DATA (colon separated), KVD_SSD, KVD_SSD_DAILY_WRITES

ssd tier: on when --data or --ssd is given; data directories are one per drive, and belong together
from then on. The ssd budget counts everything under all of them. It is divided into segments of
64MiB, or down to 1MiB where at least twelve shall fit; new data directories keep the size that they
begin with. A strip (one chunk of one lane, one class) larger than a segment less 4KiB is not
stored: give a larger budget from the start.
"""


def version() -> str:
    try:
        return metadata.version("kvd")
    except metadata.PackageNotFoundError:
        return "unknown (kvd is not installed, only imported)"


def main(words: list[str] | None = None) -> int:
    """Run one verb and return the exit code of the process."""
    parser = argparse.ArgumentParser(
        prog="kvd", description="A per-node daemon that keeps KV caches as bit planes."
    )
    parser.add_argument("--version", action="version", version=f"kvd {version()}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_serve(verbs.add_parser("serve", help="run the daemon until SIGTERM"))
    add_flags(verbs.add_parser("check", help="check data directories that no daemon is using"))
    arguments = parser.parse_args(words)
    if arguments.verb == "check":
        from kvd.cli import check

        return check.run(arguments)
    from kvd.cli import serve

    return serve.run(arguments)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--directory", default="", help="runtime directory ($XDG_RUNTIME_DIR/kvd or /run/kvd)"
    )
    parser.add_argument(
        "--tenant", action="append", default=[], help="name of a tenant; again for more (default)"
    )
    parser.add_argument(
        "--dram", default="", help="host memory, as 10GiB (a quarter of memory, at most 4GiB)"
    )
    parser.add_argument(
        "--allow-uid", action="append", default=[],
        help="uid that may connect; again for more (the daemon's own and 0)",
    )  # fmt: skip
    parser.add_argument(
        "--drain-seconds", default="", help="from SIGTERM to exit at the latest (10)"
    )
    parser.add_argument(
        "--data", action="append", default=[],
        help="data directory; again for more ($XDG_STATE_HOME/kvd or /var/lib/kvd)",
    )  # fmt: skip
    parser.add_argument(
        "--ssd", default="", help="disk space, as 100GiB (a tenth of what is free, at most 16GiB)"
    )
    parser.add_argument(
        "--ssd-daily-writes", default="", help="bytes written to disk in a day (no bound)"
    )


if __name__ == "__main__":
    sys.exit(main())

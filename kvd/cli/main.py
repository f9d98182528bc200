"""The command `kvd`: its verbs and flags. What a verb needs is imported when it is run."""

import argparse
import importlib
import sys

from kvd.cli import check_flags, config_flags, doctor_flags, health_flags
from kvd.cli.serve_flags import SETTINGS_EPILOG, add_settings
from kvd.cli.version import version

EPILOG = """exit codes:
  0   stopped by SIGTERM or SIGINT, after draining; a second signal ends the draining
  2   could not start: one line says what to change
  70  a bug, logged as one line; the service manager should start it again

ssd tier: on when --data or --ssd is given; data directories are one per drive, and belong together
from then on. The ssd budget counts everything under all of them. It is divided into segments of
64MiB, or down to 1MiB where at least twelve shall fit; new data directories keep the size that they
begin with. A strip (one chunk of one lane, one class) larger than a segment less 4KiB is not
stored: give a larger budget from the start.
"""


def main(words: list[str] | None = None) -> int:
    """Run one verb and return the exit code of the process."""
    arguments = parser().parse_args(words)
    # A verb's module is named after it.
    return importlib.import_module(f"kvd.cli.{arguments.verb}").run(arguments)


def parser() -> argparse.ArgumentParser:
    """Return what reads the words of all verbs."""
    made = argparse.ArgumentParser(
        prog="kvd", description="A per-node daemon that keeps KV caches as bit planes."
    )
    made.add_argument("--version", action="version", version=f"kvd {version()}")
    verbs = made.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_serve(verbs.add_parser("serve", help="run the daemon until SIGTERM"))
    configured = verbs.add_parser("config", help="show or check what the daemon is given")
    config_flags.add_flags(configured)
    checked = verbs.add_parser("check", help="check data directories that no daemon is using")
    check_flags.add_flags(checked)
    doctored = verbs.add_parser("doctor", help="what this host lacks to run `kvd serve` well")
    add_settings(doctored)
    doctor_flags.add_flags(doctored)
    asked = verbs.add_parser("health", help="whether a daemon serves, for probes")
    health_flags.add_flags(asked)
    return made


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.epilog = f"{EPILOG}\n{SETTINGS_EPILOG}"


if __name__ == "__main__":
    sys.exit(main())

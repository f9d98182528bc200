"""The command `kvd`: its verbs and flags. What a verb needs is imported when it is run."""

import argparse
import sys

from kvd.cli import check_flags, config_flags, doctor_flags, size_flags
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
    parser = argparse.ArgumentParser(
        prog="kvd", description="A per-node daemon that keeps KV caches as bit planes."
    )
    parser.add_argument("--version", action="version", version=f"kvd {version()}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_serve(verbs.add_parser("serve", help="run the daemon until SIGTERM"))
    configured = verbs.add_parser("config", help="show or check what the daemon is given")
    config_flags.add_flags(configured)
    checked = verbs.add_parser("check", help="check data directories that no daemon is using")
    check_flags.add_flags(checked)
    size_flags.add_flags(verbs.add_parser("size", help="bytes of a model's KV, and what fits"))
    doctored = verbs.add_parser("doctor", help="what this host lacks to run `kvd serve` well")
    add_settings(doctored)
    doctor_flags.add_flags(doctored)
    arguments = parser.parse_args(words)
    if arguments.verb == "check":
        from kvd.cli import check

        return check.run(arguments)
    if arguments.verb == "config":
        from kvd.cli import config

        return config.run(arguments)
    if arguments.verb == "size":
        from kvd.cli import size

        return size.run(arguments)
    if arguments.verb == "doctor":
        from kvd.cli import doctor

        return doctor.run(arguments)
    from kvd.cli import serve

    return serve.run(arguments)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.epilog = f"{EPILOG}\n{SETTINGS_EPILOG}"


if __name__ == "__main__":
    sys.exit(main())

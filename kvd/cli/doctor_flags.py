"""The flags of `kvd doctor`, and what its help says of exit codes and of its JSON."""

import argparse

EPILOG = """Takes the flags, the environment and the configuration of `kvd serve`, and compares the
host with them. Where a daemon runs on the runtime directory, its limits and control groups are
looked at; otherwise those of this process: so run it as the daemon's user, or name that one by
--as-user. Nothing is changed; in each data directory, or where it would be made, a file of one page
is written and removed.

exit codes:
  0   fine: nothing fails; warnings and notes may be there
  1   something fails: the daemon would not start, or could not do what is configured
  2   could not look: one line says why (a setting that is refused, standard output closed)

--json prints one object, whose fields keep their meaning; there may come more:
  fine               nothing fails
  version            of kvd
  running            pid of a daemon that holds the runtime directory, else 0
  counts             findings by level: ok, note, warn, fail
  findings           in the order told: check, group, level, found, need, fix. `check` is a stable
                     name; need and fix are empty where nothing is to be done
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what `kvd doctor` takes besides the flags of `kvd serve`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--as-user", default="", metavar="USER", help="name or number of the daemon's user (yours)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--all", action="store_true", help="show people what is ok, too")
    parser.add_argument(
        "--deep", action="store_true", help="import torch, cupy and kvikio where they are installed"
    )

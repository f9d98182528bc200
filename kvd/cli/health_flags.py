"""The flags of `kvd health`, and what its help says of exit codes."""

import argparse

EXIT_OK, EXIT_BAD, EXIT_WRONG, EXIT_NOBODY = 0, 1, 2, 3
SECONDS_DEFAULT = 3.0
_SECONDS_MAX = 600.0

EPILOG = """Asks the sockets of all tenants that are configured, or those that are named.

exit codes:
  0   serving; with --alive: answering
  1   answering, and not serving: it drains
  2   not asked: one line says why
  3   no answer in time: no daemon is there, it hangs, or this user may not ask it
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--config", metavar="FILE", help="as of `kvd serve`")
    parser.add_argument("--directory", metavar="PATH", help="as of `kvd serve`")
    parser.add_argument(
        "--tenant", action="append", default=[], metavar="NAME",
        help="ask this tenant's socket; again for more",
    )  # fmt: skip
    parser.add_argument("--socket", default="", metavar="PATH", help="ask this grpc.sock only")
    parser.add_argument("--alive", action="store_true", help="an answer is enough")
    parser.add_argument(
        "--seconds", type=_seconds, default=SECONDS_DEFAULT, metavar="N",
        help=f"to wait for each answer ({SECONDS_DEFAULT:g})",
    )  # fmt: skip


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text}: allowed is more than 0, at most 600")
    return seconds

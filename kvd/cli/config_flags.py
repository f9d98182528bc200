"""The flags of `kvd config`, and what its help says of exit codes and of its JSON."""

import argparse

from kvd.cli.serve_flags import SETTINGS_EPILOG, add_settings

_SHOW_EPILOG = """exit codes:
  0   shown, and `kvd serve` with the same flags and variables would take it
  2   something is not allowed: one line says what, where, and what is

--json prints one object, whose fields keep their meaning; there may come more:
  file       path of the configuration file, null when there is none
  settings   for each key: value (sizes in bytes, times in seconds, null for none), from (default,
             file, environment, flag) and name (the file's path, the variable, the flag, or empty)

what stands open is filled in as on this machine now, but the budget of the ssd tier. Files of
secrets and keys are named and not opened.
"""
_CHECK_EPILOG = """exit codes:
  0   `kvd serve` would take it
  2   it would not: one line says why

The file is looked at alone, without flags and variables. What only a start finds out is not looked
for: whether files that it names can be read, ports be had, and slabs and segments be shared out.

--json prints one object, whose fields keep their meaning; there may come more:
  file, good    the file's path, and whether it is taken
  wrong         the line that says why not, else null
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = SETTINGS_EPILOG
    verbs = parser.add_subparsers(dest="config_verb", required=True, metavar="VERB")
    show = verbs.add_parser("show", help="every setting, its value, and where it comes from")
    add_settings(show)
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.epilog = f"{_SHOW_EPILOG}\n{SETTINGS_EPILOG}"
    check = verbs.add_parser("check", help="look for mistakes in a configuration file")
    check.formatter_class = argparse.RawDescriptionHelpFormatter
    check.epilog = _CHECK_EPILOG
    check.add_argument("file", metavar="FILE", help="configuration file (TOML)")
    check.add_argument("--json", action="store_true", help="print one JSON object")

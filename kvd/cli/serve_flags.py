"""The flags of `kvd serve`, made from the table of settings, and what they said."""

import argparse

from kvd.settings import Kind, Setting
from kvd.settings_limits import SETTINGS
from kvd.settings_sources import DEFAULT_FILE, FILE_VARIABLE, Flags
from kvd.settings_values import span

_REPEATED = (Kind.PATHS, Kind.USERS, Kind.NAMES, Kind.TEXTS)
SETTINGS_EPILOG = f"""configuration:
  Flags go over environment variables, these over the file, that over the defaults. The file is
  TOML: --config, else ${FILE_VARIABLE}, else {DEFAULT_FILE} if it is there. It alone says what
  is set for one tenant, as [tenants.NAME]; deploy/config/kvd.toml names every key. `kvd config
  show` takes the same flags, and says what is in force and where it comes from.

  Variables are named after the keys ($KVD_ALLOW_UIDS, $KVD_TCP_LISTEN, $KVD_LIMITS_SESSIONS_MAX),
  but for $KVD_DRAM, $KVD_DATA and $KVD_SSD. Lists have commas in between, paths colons. An empty
  variable is as if it were not there.
"""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting that has one; what is not said stays None."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", metavar="FILE", help="configuration file (TOML)")
    limits = parser.add_argument_group("limits", "the daemon's bounds")
    for setting in SETTINGS:
        if setting.flag:
            group = limits if setting.section == "limits" else parser
            group.add_argument(
                setting.flag,
                dest=setting.key,
                action="append" if setting.kind in _REPEATED else "store",
                metavar=_metavar(setting),
                help=_help(setting),
            )


def said_flags(arguments: argparse.Namespace) -> Flags:
    """Return what was said on the command line."""
    keys = ["config", *(setting.key for setting in SETTINGS if setting.flag)]
    said = vars(arguments)
    return {key: said[key] for key in keys if said[key] is not None}


def _metavar(setting: Setting) -> str:
    return {Kind.WORD: "|".join(setting.words), Kind.ADDRESS: "HOST:PORT", Kind.PATH: "PATH",
            Kind.PATHS: "DIR", Kind.USERS: "UID", Kind.NAMES: "NAME"}.get(
        setting.kind, setting.kind.name
    )  # fmt: skip


def _help(setting: Setting) -> str:
    again = " Again for more." if setting.kind in _REPEATED else ""
    default = setting.default.strip('"')
    shown = "; ".join(each for each in (default, span(setting)) if each not in ("", "[]"))
    return (setting.help + again + (f" ({shown})" if shown else "")).replace("%", "%%")

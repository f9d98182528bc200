"""A value for each setting that is not its default, and a daemon's settings from text."""

from pathlib import Path

from kvd.config import ServeConfig, serve_config
from kvd.settings import TENANT_SECTION, Kind, Setting
from kvd.settings_limits import SETTINGS

NO_FILE = Path("/none/kvd.toml")
PLAIN = [setting for setting in SETTINGS if setting.section != TENANT_SECTION]
OF_TENANT = [setting for setting in SETTINGS if setting.section == TENANT_SECTION]
# What the file says and what flag and variable say: none is a default, all go together.
_OF_KIND = {
    Kind.PATH: ('"/x/y"', "/x/y"),
    Kind.PATHS: ('["/d/1", "/d/2"]', "/d/1:/d/2"),
    Kind.USERS: ("[5, 6]", "5,6"),
    Kind.NAMES: ('["red", "blue"]', "red,blue"),
    Kind.TEXTS: ('["one.example"]', "one.example"),
    Kind.RATE: ("2.5", "2.5"),
    Kind.SECONDS: ("31.5", "31.5s"),
    Kind.ADDRESS: ('"[::1]:1234"', "[::1]:1234"),
    Kind.URL: ('"https://collector.example/v1"', "https://collector.example/v1"),
}


def example(setting: Setting) -> tuple[str, str]:
    """Return a value that is allowed and no default: as TOML, and as text."""
    if setting.kind is Kind.SIZE:
        size = "8MiB" if setting.least <= 8 << 20 else "65MiB"
        return f'"{size}"', size
    if setting.kind is Kind.COUNT:
        return str(setting.least), str(setting.least)
    if setting.kind is Kind.WORD:
        return f'"{setting.words[-1]}"', setting.words[-1]
    return _OF_KIND[setting.kind]


def configured(directory: Path, text: str, flags=None, environment=None) -> ServeConfig:
    """Return the settings that come of a file with this text."""
    path = directory / "kvd.toml"
    path.write_text(text)
    return serve_config({"config": str(path), **(flags or {})}, environment or {}, NO_FILE)

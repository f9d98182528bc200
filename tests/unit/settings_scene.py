"""A value for each setting that is not its default, where it is found, and settings from text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvd.config import ServeConfig, serve_config
from kvd.limits import MIB
from kvd.settings import TENANT_SECTION, Kind, Setting
from kvd.settings_limits import SETTINGS

NO_FILE = Path("/none/kvd.toml")
PLAIN = [setting for setting in SETTINGS if setting.section != TENANT_SECTION]
OF_TENANT = [setting for setting in SETTINGS if setting.section == TENANT_SECTION]
# What goes with any other setting, so that each can be said alone.
BESIDE = {
    "ssd.data": '["/beside"]',
    "tcp.listen": '"beside:1"',
    "tcp.certificate": '"/beside/certificate"',
    "tcp.key": '"/beside/key"',
    "tcp.client_ca": '"/beside/ca"',
    "tenants.beside.token_file": '"/beside/token"',
}
# As the file says it, as flag and variable say it, and what it comes to.
_OF_KIND = {
    Kind.PATH: ('"/x/y"', "/x/y", Path("/x/y")),
    Kind.PATHS: ('["/d/1", "/d/2"]', "/d/1:/d/2", (Path("/d/1"), Path("/d/2"))),
    Kind.USERS: ("[5, 6]", "5,6", {5, 6}),
    Kind.NAMES: ("", "red,blue", ("red", "blue")),
    Kind.TEXTS: ('["one.example"]', "", ("one.example",)),
    Kind.RATE: ("2.5", "", 2.5),
    Kind.SECONDS: ("31.5", "31.5s", 31_500_000_000),
    Kind.ADDRESS: ('"[::1]:1234"', "[::1]:1234", ("::1", 1234)),
    Kind.URL: ('"https://collector.example/v1"',) + ("https://collector.example/v1",) * 2,
}
_FOUND: dict[str, Callable[[ServeConfig], Any]] = {
    "directory": lambda config: config.directory,
    "allow_uids": lambda config: config.allowed_uids,
    "tenants": lambda config: config.tenant_names,
    "dram.size": lambda config: config.dram_bytes,
    "ssd.data": lambda config: config.ssd.directories,
    "ssd.budget": lambda config: config.ssd.budget_bytes,
    "ssd.daily_writes": lambda config: config.ssd.daily_write_bytes,
    "tenants.NAME.dram": lambda config: config.tenants[0].dram_quota_bytes,
    "tenants.NAME.ssd": lambda config: config.tenants[0].ssd_quota_bytes,
    "tenants.NAME.token_file": lambda config: config.tenants[0].token_file,
    "tenants.NAME.client_names": lambda config: config.tenants[0].client_names,
    "tenants.NAME.requests_per_second": lambda config: config.tenants[0].requests_per_second,
    "tenants.NAME.bytes_per_second": lambda config: config.tenants[0].bytes_per_second,
    "tcp.listen": lambda config: (config.tcp.host, config.tcp.port),
    "tcp.certificate": lambda config: config.tcp.certificate,
    "tcp.key": lambda config: config.tcp.key,
    "tcp.client_ca": lambda config: config.tcp.client_ca,
    "metrics.listen": lambda config: (config.metrics.host, config.metrics.port),
    "log.level": lambda config: config.log.level,
    "log.format": lambda config: config.log.format,
    "traces.endpoint": lambda config: config.traces_endpoint,
}


def example(setting: Setting) -> tuple[str, str, object]:
    """Return a value that is allowed and no default: as TOML, as text, and what it comes to."""
    if setting.kind is Kind.SIZE:
        size = 8 if setting.least <= 8 * MIB else 65
        return f'"{size}MiB"', f"{size}MiB", size * MIB
    if setting.kind is Kind.COUNT:
        return str(setting.least), str(setting.least), setting.least
    if setting.kind is Kind.WORD:
        return f'"{setting.words[-1]}"', setting.words[-1], setting.words[-1]
    return _OF_KIND[setting.kind]


def found(config: ServeConfig, setting: Setting) -> object:
    """Return what a daemon was given for a setting."""
    return getattr(config.limits, setting.field) if setting.field else _FOUND[setting.key](config)


def beside(setting: Setting, **more: str) -> str:
    """Return a file with what a setting may need beside it."""
    needless = ("tcp.", "tenants.") if setting.key == "tenants" else ("none",)
    lines = {key: said for key, said in BESIDE.items() if not key.startswith(needless)}
    return "".join(f"{key} = {said}\n" for key, said in {**lines, **more}.items())


def configured(directory: Path, text: str, flags=None, environment=None) -> ServeConfig:
    """Return the settings that come of a file with this text."""
    path = directory / "kvd.toml"
    path.write_text(text)
    return serve_config({"config": str(path), **(flags or {})}, environment or {}, NO_FILE)

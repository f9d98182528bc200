"""What flags, environment and file say of each setting, and which of them counts.

Refuses what is in no table by naming the nearest that is; what settings mean together is not
decided here.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB
from kvd.settings import TENANT_SECTION, Setting
from kvd.settings_limits import SETTINGS
from kvd.settings_values import NAME_RULE, TENANT_NAME, Value, read_text, read_toml, refusal

DEFAULT_FILE = Path("/etc/kvd/kvd.toml")
FILE_FLAG, FILE_VARIABLE = "--config", "KVD_CONFIG"
FILE_BYTES_MAX = MIB
BY_KEY = {setting.key: setting for setting in SETTINGS}
# Without `tenants`, whose names are the names of tables.
_OF_SECTION: dict[str, dict[str, Setting]] = {}
for _each in SETTINGS:
    if _each.key != "tenants":
        _OF_SECTION.setdefault(_each.section, {})[_each.name] = _each

Flags = Mapping[str, str | list[str]]  # By key; `config` is the file. What was not said is absent.


@dataclass(frozen=True, slots=True)
class Said:
    """The value of one setting, who said so, and the name to call it by."""

    setting: Setting
    key: str
    value: Value
    source: str = "default"  # Or file, environment, flag.
    where: str = ""  # As `--dram`, `KVD_DRAM`, or `/etc/kvd/kvd.toml: dram.size`.
    raw: object = None

    def refuse(self, allowed: str) -> KvdError:
        return refusal(self.where or self.key, self.raw, allowed)


Settled = dict[str, Said]  # By key, those of tenants as `tenants.red.dram`.


def settle(flags: Flags, environment: Mapping[str, str], default_file: Path) -> Settled:
    """Return every setting; raise INVALID for the first that cannot be read or is not known."""
    settled = {key: _default(setting, key) for key, setting in _plain_rows()}
    path = _file(flags, environment, default_file)
    of_file = _read_file(path) if path else {}
    for said in (*of_file.values(), *_of_environment(environment, flags), *_of_flags(flags)):
        settled[said.key] = said
    names = settled["tenants"].value
    assert isinstance(names, tuple)
    for name in names:
        for setting in _OF_SECTION[TENANT_SECTION].values():
            key = f"tenants.{name}.{setting.name}"
            settled.setdefault(key, _default(setting, key))
    kept = tuple(f"tenants.{name}." for name in names)
    return {
        key: said
        for key, said in settled.items()
        if said.setting.section != TENANT_SECTION or key.startswith(kept)
    }


def _plain_rows() -> Iterator[tuple[str, Setting]]:
    return ((key, row) for key, row in BY_KEY.items() if row.section != TENANT_SECTION)


def _default(setting: Setting, key: str) -> Said:
    raw = tomllib.loads(f"x = {setting.default}")["x"]
    return Said(setting, key, read_toml(setting, raw, key), raw=raw)


def _of_flags(flags: Flags) -> Iterator[Said]:
    for key, raw in flags.items():
        if key != "config":
            row = BY_KEY[key]
            value = read_text(row, raw, row.flag)
            yield Said(row, key, value, "flag", row.flag, raw)


def _of_environment(environment: Mapping[str, str], flags: Flags) -> Iterator[Said]:
    """Yield what the environment says where no flag does; an empty variable says nothing."""
    for key, row in BY_KEY.items():
        raw = environment.get(row.variable, "") if row.variable and key not in flags else ""
        if raw:
            value = read_text(row, raw, row.variable)
            yield Said(row, key, value, "environment", row.variable, raw)


# ---- the file ----


def _file(flags: Flags, environment: Mapping[str, str], default_file: Path) -> Path | None:
    """Return the file to read; the default one only when it is there."""
    named = flags.get("config")
    if named is None:
        named = environment.get(FILE_VARIABLE, "") or None
    elif not named:
        raise refusal(FILE_FLAG, named, "a file")
    if named is not None:
        assert isinstance(named, str)
        return Path(named).absolute()
    return default_file if default_file.exists() else None


def _read_file(path: Path) -> Settled:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _wrong(path, f"{error.strerror}; name another by {FILE_FLAG}") from None
    if len(data) > FILE_BYTES_MAX:
        raise _wrong(path, f"a configuration has at most {FILE_BYTES_MAX} bytes")
    try:
        document = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _wrong(path, f"not UTF-8 (at line {line})") from None
    except tomllib.TOMLDecodeError as error:
        raise _wrong(path, f"not TOML: {error}") from None
    except RecursionError:
        raise _wrong(path, "not TOML that can be read: too deeply nested") from None
    return {said.key: said for said in _of_document(document, path)}


def _of_document(document: dict[str, object], path: Path) -> Iterator[Said]:
    sections = {section for section in _OF_SECTION if section not in ("", TENANT_SECTION)}
    for name, raw in document.items():
        if name == "tenants":
            yield from _of_tenants(raw, path)
        elif name in sections:
            yield from _of_table(name, name, _table(raw, name, path), path)
        elif name in _OF_SECTION[""]:
            yield _of_key(_OF_SECTION[""][name], name, raw, path)
        else:
            known = [*_OF_SECTION[""], *(f"[{section}]" for section in sections), "[tenants.NAME]"]
            shown = f"[{name}]" if isinstance(raw, dict) else name
            raise _unknown(path, shown, known)


def _of_tenants(raw: object, path: Path) -> Iterator[Said]:
    tables = _table(raw, "tenants.NAME", path)
    for name in tables:
        if not TENANT_NAME.fullmatch(name):
            raise refusal(f"{path}: the name of [tenants.NAME]", name, NAME_RULE)
    if tables:
        where = f"{path}: [tenants.NAME]"
        names = read_toml(BY_KEY["tenants"], list(tables), where)
        yield Said(BY_KEY["tenants"], "tenants", names, "file", where, list(tables))
    for name, raw_table in tables.items():
        section = f"tenants.{name}"
        yield from _of_table(TENANT_SECTION, section, _table(raw_table, section, path), path)


def _of_table(section: str, shown: str, table: dict[str, object], path: Path) -> Iterator[Said]:
    rows = _OF_SECTION[section]
    for name, raw in table.items():
        if name not in rows:
            raise _unknown(path, f"{shown}.{name}", [f"{shown}.{known}" for known in rows])
        yield _of_key(rows[name], f"{shown}.{name}", raw, path)


def _of_key(setting: Setting, key: str, raw: object, path: Path) -> Said:
    where = f"{path}: {key}"
    return Said(setting, key, read_toml(setting, raw, where), "file", where, raw)


def _table(raw: object, section: str, path: Path) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise refusal(f"{path}: {section}", raw, f"a table: [{section}] on a line of its own")
    return raw


def _unknown(path: Path, name: str, known: list[str]) -> KvdError:
    """Return the refusal of a name that is in no table, with the nearest that is."""
    [nearest] = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    elsewhere = [key for key in BY_KEY if key.rpartition(".")[2] == name.rpartition(".")[2]]
    if elsewhere and not name.startswith("tenants.") and TENANT_SECTION not in elsewhere[0]:
        nearest = elsewhere[0]
    return _wrong(path, f"{name!r} is not a setting; the nearest is {nearest!r}")


def _wrong(path: Path, what: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, f"{path}: {what}")

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
from kvd.settings_values import (
    NAME_RULE,
    TENANT_NAME,
    Value,
    brief,
    read_text,
    read_toml,
    refusal,
)

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
    """The value of one setting, and who said so: `source` in a word, `name` as he is called."""

    setting: Setting
    key: str
    value: Value
    source: str = "default"  # Or file, environment, flag.
    name: str = ""  # The file's path, or that of the variable or the flag.
    raw: object = None

    def refuse(self, allowed: str) -> KvdError:
        where = _where(self.name, self.key) if self.source == "file" else self.name or self.key
        return refusal(where, self.raw, allowed)


Settled = dict[str, Said]  # By key, those of tenants as `tenants.red.dram`.


def settle(flags: Flags, environment: Mapping[str, str], default_file: Path) -> Settled:
    """Return every setting; raise INVALID for the first that cannot be read or is not known."""
    settled = {"tenants": _default(BY_KEY["tenants"], "tenants")}
    path = chosen_file(flags, environment, default_file)
    of_file = _read_file(path) if path else {}
    for said in (*of_file.values(), *_of_environment(environment, flags), *_of_flags(flags)):
        settled[said.key] = said
    names: tuple[str, ...] = settled["tenants"].value  # type: ignore[assignment]
    rows = _rows_of_tenants(names)
    return {
        key: settled.get(key) or _default(setting, key)
        for section in _OF_SECTION
        for key, setting in (rows if section == TENANT_SECTION else _rows(section)).items()
    }


def _rows(section: str) -> dict[str, Setting]:
    return {key: setting for key, setting in BY_KEY.items() if setting.section == section}


def _rows_of_tenants(names: tuple[str, ...]) -> dict[str, Setting]:
    """Return a row for each setting of each tenant there is; of others none counts."""
    settings = _OF_SECTION[TENANT_SECTION].values()
    return {f"tenants.{name}.{each.name}": each for name in names for each in settings}


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


def chosen_file(flags: Flags, environment: Mapping[str, str], default_file: Path) -> Path | None:
    """Return the file to read; the default one only when it is there."""
    named = flags.get("config")
    if named is None:
        named = environment.get(FILE_VARIABLE, "") or None
    elif not named:
        raise refusal(FILE_FLAG, named, "a file")
    if named is not None:
        assert isinstance(named, str)
        return Path(named).absolute()
    try:
        return default_file if default_file.exists() else None
    except OSError:
        return default_file  # It may be there: whoever opens it says why it cannot be read.


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
        line = data.rstrip().count(b"\n") + 1
        what = str(error).replace("at end of document", f"at line {line}, the end")
        raise _wrong(path, f"not TOML: {what}") from None
    except ValueError as error:  # Of a number with more digits than Python reads.
        raise _wrong(path, f"not TOML that can be read: {error}") from None
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
        yield _of_key(BY_KEY["tenants"], "tenants", list(tables), path)
    for name, raw_table in tables.items():
        section = f"tenants.{name}"
        yield from _of_table(TENANT_SECTION, section, _table(raw_table, section, path), path)


def _of_table(section: str, shown: str, table: dict[str, object], path: Path) -> Iterator[Said]:
    rows = _OF_SECTION[section]
    for name, raw in table.items():
        if name not in rows:
            dotted = f"{shown.removeprefix('tenants.')}.{name}"
            is_tenant = section == TENANT_SECTION and TENANT_NAME.fullmatch(dotted)
            if is_tenant and isinstance(raw, dict):
                advice = f'a tenant with a dot in its name is quoted: [tenants."{dotted}"]'
                raise _wrong(path, advice)
            raise _unknown(path, f"{shown}.{name}", [f"{shown}.{known}" for known in rows])
        yield _of_key(rows[name], f"{shown}.{name}", raw, path)


def _of_key(setting: Setting, key: str, raw: object, path: Path) -> Said:
    value = read_toml(setting, raw, _where(str(path), key))
    return Said(setting, key, value, "file", str(path), raw)


def _where(path: str, key: str) -> str:
    return f"{path}: {key}"


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
    return _wrong(path, f"{brief(name)} is not a setting; the nearest is {nearest!r}")


def _wrong(path: Path, what: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, f"{path}: {what}")

"""What is said of a setting, to its value: from TOML or from text, and back for people.

Refuses by naming where it was said, what was said, and what is allowed; opens no file.
"""

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kvd.errors import ErrorKind, KvdError
from kvd.settings import SIZE_MOST, Kind, Setting
from kvd.units import SIZE_UNITS, TIME_UNITS_NS, parse_size, parse_time, seconds_text, size_text

TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
USER_ID_MAX = 0xFFFFFFFE
TEXT_CHARS_MAX = 255
SHOWN_CHARS_MAX = 120
# Asked of a file only: nobody knows from where it is read.
_FROM_ROOT = " beginning with /"
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_LISTS = (Kind.PATHS, Kind.USERS, Kind.NAMES, Kind.TEXTS)


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return whether no other machine can get there; of a name only `localhost` is known."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Value = int | float | str | Path | Address | tuple[int | str | Path, ...] | None


def refusal(where: str, said: object, allowed: str) -> KvdError:
    """Return the one line about a setting that cannot be."""
    return KvdError(ErrorKind.INVALID, f"{where} is {brief(said)}; allowed is {allowed}")


def brief(said: object) -> str:
    """Return what was said as a line about it has it: of what is long the beginning."""
    if isinstance(said, bool):
        return str(said).lower()
    try:
        text = repr(said)
    except (ValueError, RecursionError):  # A number of too many digits, or tables too deep.
        return "too large to be shown"
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


def read_toml(setting: Setting, said: object, where: str) -> Value:
    """Return the value of what the file says; None for a word that means no value."""
    if isinstance(said, str) and said in setting.nothing:
        return None
    value = None if isinstance(said, bool) else _READERS[setting.kind](setting, said)
    if value is None:
        raise refusal(where, said, allowed(setting))
    return value


def read_text(setting: Setting, said: str | list[str], where: str) -> Value:
    """Return the value of what a flag or a variable says; a list is a flag that was repeated."""
    if isinstance(said, str) and said in setting.nothing:
        return None
    parts = said
    if isinstance(said, str) and setting.kind in _LISTS:
        parts = [part.strip() for part in re.split("[:]" if _is_path(setting) else ",", said)]
        parts = [part for part in parts if part]
    worded = [_typed(setting, p) for p in parts] if isinstance(parts, list) else _typed(
        setting, parts
    )  # fmt: skip
    value = _READERS[setting.kind](setting, worded)
    if value is None:
        raise refusal(where, said, allowed(setting).replace(_FROM_ROOT, ""))
    return value


def allowed(setting: Setting) -> str:
    """Return what a setting may be."""
    nothing = "".join(f'"{word}" or ' for word in setting.nothing)
    return nothing + _ALLOWED[setting.kind](setting)


def span(setting: Setting) -> str:
    """Return the least and the most of a number, as it is written; nothing for what is none."""
    write = {Kind.SIZE: size_text, Kind.SECONDS: seconds_text, Kind.COUNT: str, Kind.RATE: str}
    if setting.kind not in write:
        return ""
    least, most = (write[setting.kind](bound) for bound in (setting.least, setting.most))
    return f"{least} or more" if setting.most == SIZE_MOST else f"{least} to {most}"


def plain(value: Value, setting: Setting) -> object:
    """Return a value as JSON can hold it: sizes in bytes, times in seconds."""
    if setting.kind is Kind.SECONDS and isinstance(value, int):
        return float(seconds_text(value))
    if value is None and "0" in setting.nothing:
        return 0
    if isinstance(value, tuple):
        return [str(each) if isinstance(each, Path) else each for each in value]
    return str(value) if isinstance(value, Path | Address) else value


def toml(value: Value, setting: Setting) -> str:
    """Return a value as the file would say it."""
    if value is None:
        return f'"{setting.nothing[0]}"'
    if setting.kind is Kind.SIZE and isinstance(value, int):
        return f'"{size_text(value)}"'
    if setting.kind is Kind.SECONDS and isinstance(value, int):
        return seconds_text(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_quoted(each) for each in value) + "]"
    return repr(value).removesuffix(".0") if isinstance(value, float) else _quoted(value)


def _quoted(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    # TOML escapes as JSON does, and one character more.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_path(setting: Setting) -> bool:
    return setting.kind in (Kind.PATH, Kind.PATHS)


def _typed(setting: Setting, text: str) -> object:
    """Return text as TOML would have it: numbers, and paths seen from where the process is."""
    if setting.kind in (Kind.COUNT, Kind.USERS) and re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if setting.kind is Kind.RATE and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?", text):
        return float(text)
    return str(Path(text).absolute()) if _is_path(setting) and text else text


# ---- one reader for each kind: None for what is not allowed ----


def _size(setting: Setting, said: object) -> int | None:
    size = parse_size(said) if isinstance(said, str) else said
    return size if isinstance(size, int) and setting.least <= size <= setting.most else None


def _seconds(setting: Setting, said: object) -> int | None:
    if isinstance(said, int | float):
        # As text, so that 0.1 is a tenth. NaN is not less than anything, and a sign is no time.
        said = f"{said:.9f}" if abs(said) < 1e12 else "never"
    time_ns = parse_time(said) if isinstance(said, str) else None
    return time_ns if time_ns is not None and setting.least <= time_ns <= setting.most else None


def _count(setting: Setting, said: object) -> int | None:
    return said if isinstance(said, int) and setting.least <= said <= setting.most else None


def _rate(setting: Setting, said: object) -> float | None:
    fits = isinstance(said, int | float) and setting.least <= said <= setting.most
    return float(said) if fits else None  # type: ignore[arg-type]


def _word(setting: Setting, said: object) -> str | None:
    return said if isinstance(said, str) and said in setting.words else None


def _path(_: Setting, said: object) -> Path | None:
    fits = isinstance(said, str) and said.startswith("/") and "\0" not in said
    return Path(said) if fits else None  # type: ignore[arg-type]


def _address(_: Setting, said: object) -> Address | None:
    host, _, port = said.rpartition(":") if isinstance(said, str) else ("", "", "")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        return None
    return Address(host.strip("[]"), int(port))


def _url(_: Setting, said: object) -> str | None:
    if not isinstance(said, str) or not said.isascii() or not said.isprintable() or " " in said:
        return None
    try:
        parts = urlsplit(said)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return said if fits else None


def _list(each: Callable[[Setting, object], Value], *, once: bool) -> Callable[..., Value]:
    def read(setting: Setting, said: object) -> tuple | None:
        if not isinstance(said, list) or not setting.least <= len(said) <= setting.most:
            return None
        values = [None if isinstance(one, bool) else each(setting, one) for one in said]
        fits = None not in values and not (once and len(set(values)) < len(values))
        return tuple(values) if fits else None

    return read


def _user(_: Setting, said: object) -> int | None:
    return said if isinstance(said, int) and 0 <= said <= USER_ID_MAX else None


def _name(_: Setting, said: object) -> str | None:
    return said if isinstance(said, str) and TENANT_NAME.fullmatch(said) else None


def _text(_: Setting, said: object) -> str | None:
    fits = isinstance(said, str) and 0 < len(said) <= TEXT_CHARS_MAX and said.isprintable()
    return said if fits else None  # type: ignore[return-value]


_READERS: dict[Kind, Callable[..., Value]] = {
    Kind.SIZE: _size,
    Kind.SECONDS: _seconds,
    Kind.COUNT: _count,
    Kind.RATE: _rate,
    Kind.WORD: _word,
    Kind.PATH: _path,
    Kind.PATHS: _list(_path, once=True),
    Kind.USERS: _list(_user, once=False),
    Kind.NAMES: _list(_name, once=True),
    Kind.TEXTS: _list(_text, once=True),
    Kind.ADDRESS: _address,
    Kind.URL: _url,
}
NAME_RULE = "1 to 64 letters, digits, dots, dashes, underscores, a letter or digit first"
_ALLOWED: dict[Kind, Callable[[Setting], str]] = {
    Kind.SIZE: lambda s: (
        f"a size of {span(s)}, with one of the units " + " ".join(filter(None, SIZE_UNITS))
    ),
    Kind.SECONDS: lambda s: (
        f"a time of {span(s)} seconds, as a number or "
        'as "30s", with one of the units ' + " ".join(filter(None, TIME_UNITS_NS))
    ),
    Kind.COUNT: lambda s: f"a whole number of {span(s)}",
    Kind.RATE: lambda s: f"a number of {span(s)}",
    Kind.WORD: lambda s: "one of " + ", ".join(s.words),
    Kind.PATH: lambda s: f"a path{_FROM_ROOT}",
    Kind.PATHS: lambda s: f"a list of {s.least} to {s.most} paths{_FROM_ROOT}, each once",
    Kind.USERS: lambda s: (
        f"a list of {s.least} to {s.most} numeric user ids from 0 to {USER_ID_MAX}"
    ),
    Kind.NAMES: lambda s: f"a list of {s.least} to {s.most} names, each once, of {NAME_RULE}",
    Kind.TEXTS: lambda s: (
        f"a list of {s.least} to {s.most} texts of 1 to {TEXT_CHARS_MAX} characters, each once"
    ),
    Kind.ADDRESS: lambda s: '"HOST:PORT" with a port from 0, any that is free, to 65535',
    Kind.URL: lambda s: 'a URL as "http://127.0.0.1:4318"',
}

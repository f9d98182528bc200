"""Whatever is said of a setting is taken or refused in one line, and what is taken reads back."""

import tomllib

from hypothesis import example, given
from hypothesis import strategies as st

from kvd.errors import KvdError
from kvd.settings_limits import SETTINGS
from kvd.settings_sources import settle
from kvd.settings_values import plain, read_text, read_toml, toml
from tests.unit.settings_scene import NO_FILE, configured

SETTING = st.sampled_from(SETTINGS)
PART = st.sampled_from(
    ["1", "0", "-1", "64", "10.5", "MiB", "GiB", "s", "ms", "/", "/a", ":", "[::1]", "a", ".", "é",
     "none", "auto", "off", "http://", "\x7f", "\n", "\\", '"', "\ud800", "nan", "1e9", " "]
)  # fmt: skip
TEXT = st.lists(PART, max_size=4).map("".join) | st.text(max_size=8)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
RAW = SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(TEXT, SCALAR, max_size=2)


def reads_back(setting, value) -> bool:
    raw = tomllib.loads(f"x = {toml(value, setting)}")["x"]
    return read_toml(setting, raw, "x") == value


@given(SETTING, TEXT | st.lists(TEXT, max_size=3))
def test_text_is_taken_or_refused_in_one_line(setting, said):
    listed = setting.default.startswith("[")
    try:
        value = read_text(setting, said if listed else "".join(said), "x")
    except KvdError as error:
        assert error.message.startswith("x is ") and "\n" not in error.message
        return
    plain(value, setting)
    assert _not_utf8(said) or reads_back(setting, value)


@given(SETTING, RAW)
@example(SETTINGS[0], "/\x7f")
def test_a_value_is_taken_or_refused_in_one_line(setting, raw):
    try:
        value = read_toml(setting, raw, "x")
    except KvdError as error:
        assert error.message.startswith("x is ") and "\n" not in error.message
        return
    plain(value, setting)
    assert _not_utf8(raw) or reads_back(setting, value)


@given(
    st.dictionaries(st.sampled_from(["tenants", "dram", "ssd", "limits", "directory", "x"]), RAW)
)
def test_a_document_is_taken_or_refused_in_one_line(tmp_path_factory, document):
    """The names of keys and tenants are anything, too."""
    lines = []
    for name, raw in document.items():
        if isinstance(raw, dict):
            inside = (f"{_key(key)} = {_toml(value)}" for key, value in raw.items())
            lines.append(f"{name} = {{ {', '.join(inside)} }}")
        else:
            lines.append(f"{name} = {_toml(raw)}")
    try:
        configured(tmp_path_factory.getbasetemp(), "\n".join(lines))
    except KvdError as error:
        assert "\n" not in error.message and "kvd.toml: " in error.message


def test_no_name_of_a_tenant_hides_another_setting():
    settled = settle({"tenants": ["a", "a.dram", "dram"]}, {}, NO_FILE)
    assert len(settled) == len(SETTINGS) + 2 * 6


def _not_utf8(said) -> bool:
    """Return whether a path has bytes that are no text: TOML has no word for it."""
    parts = said if isinstance(said, list) else [said]
    return any(0xD800 <= ord(each) < 0xE000 for part in parts for each in str(part))


def _toml(raw) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, list):
        return "[" + ", ".join(map(_toml, raw)) + "]"
    if raw is None:
        return "''"
    return _key(raw) if isinstance(raw, str) else repr(raw)


def _key(text: str) -> str:
    return '"' + "".join(f"\\U{_scalar(each):08x}" for each in text) + '"'


def _scalar(each: str) -> int:
    return ord(each) if not 0xD800 <= ord(each) < 0xE000 else 0x20

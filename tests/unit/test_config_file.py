"""The file of settings: each key found where it belongs, each mistake named in one line."""

from pathlib import Path

import pytest

from kvd.config import serve_config
from kvd.errors import ErrorKind, KvdError
from kvd.limits import Limits
from kvd.settings_limits import NOT_SETTABLE, SETTINGS
from tests.unit.settings_scene import (
    NO_FILE,
    OF_TENANT,
    PLAIN,
    beside,
    configured,
    example,
    found,
)

SECTIONS = ("dram", "ssd", "tcp", "metrics", "log", "traces", "limits")
WRONG = ("true", "{ a = 1 }", "nan", "inf", "-1", "1979-05-27", "[true]", '""', '" "', '"-1s"',
         "1e300", '"\\u0000"')  # fmt: skip


def key_of(setting):
    return setting.key.replace("NAME", "beside")


def named(settings):
    return pytest.mark.parametrize("setting", settings, ids=lambda setting: setting.key)


def refused(directory, text, **more) -> str:
    with pytest.raises(KvdError) as error:
        configured(directory, text, **more)
    assert error.value.kind == ErrorKind.INVALID and "\n" not in error.value.message
    return error.value.message


# ---- each key, once ----


@named([setting for setting in SETTINGS if setting.key != "tenants"])
def test_a_key_of_the_file_is_found(tmp_path, setting):
    said, _, value = example(setting)
    config = configured(tmp_path, beside(setting, **{key_of(setting): said}))
    assert found(config, setting) == value
    assert found(configured(tmp_path, beside(setting)), setting) != value


@named(PLAIN)
def test_a_variable_is_found(tmp_path, setting):
    _, said, value = example(setting)
    config = configured(tmp_path, beside(setting), None, {setting.variable: said})
    assert found(config, setting) == value


@named(PLAIN)
def test_a_flag_is_found(tmp_path, setting):
    _, said, value = example(setting)
    parts = said.split(":" if setting.key == "ssd.data" else ",")
    said = parts if setting.key in ("ssd.data", "allow_uids", "tenants") else said
    config = configured(tmp_path, beside(setting), {setting.key: said})
    assert found(config, setting) == value


@named([setting for setting in PLAIN if setting.key != "tenants"])
def test_a_flag_goes_over_a_variable_over_the_file(tmp_path, setting):
    said, text, value = example(setting)
    wrong = {setting.variable: "\0"}
    repeated = setting.key in ("ssd.data", "allow_uids")
    parts = text.split(":" if setting.key == "ssd.data" else ",") if repeated else text
    default = setting.default.strip('"[]') or "7"
    file = beside(setting, **{setting.key: said})
    assert found(configured(tmp_path, file), setting) == value
    # A variable that does not count is not judged; one that counts is.
    assert found(configured(tmp_path, file, {setting.key: parts}, wrong), setting) == value
    assert setting.variable in refused(tmp_path, file, environment=wrong)
    if default not in ("7", "auto"):
        config = configured(tmp_path, file, None, {setting.variable: default})
        assert found(config, setting) != value


def test_every_bound_can_be_set_or_is_meant_not_to_be():
    fields = {setting.field for setting in SETTINGS if setting.field}
    assert fields | NOT_SETTABLE == set(Limits.__dataclass_fields__)
    assert not fields & NOT_SETTABLE


# ---- names ----


@named([setting for setting in SETTINGS if setting.key != "tenants"])
def test_a_misspelt_key_is_refused_with_the_right_one(tmp_path, setting):
    key = key_of(setting)
    wrong = key + key[-1]
    message = refused(tmp_path, f"{wrong} = {setting.default}")
    assert message.startswith(str(tmp_path / "kvd.toml")), message
    assert f"'{wrong}' is not" in message and message.endswith(f"'{key}'"), message


@pytest.mark.parametrize("section", SECTIONS)
def test_a_misspelt_section_is_refused_with_the_right_one(tmp_path, section):
    message = refused(tmp_path, f"[{section}x]\na = 1")
    assert f"'[{section}x]'" in message and message.endswith(f"'[{section}]'"), message


@pytest.mark.parametrize(
    ("text", "right"),
    [("tenant.red = {}", "'[tenants.NAME]'"), ('budget = "1GiB"', "'ssd.budget'"),
     ('[dram]\ndata = ["/d"]', "'ssd.data'"), ("Directory = 1", "'directory'"),
     ("[tenants.red]\nsize = 1", "'tenants.red.ssd'"),
     ("[tenants.red.blue]\ndram = 1", '[tenants."red.blue"]')],
)  # fmt: skip
def test_a_name_in_the_wrong_place_is_refused_with_the_right_one(tmp_path, text, right):
    message = refused(tmp_path, text)
    assert message.endswith(right), message


# ---- values ----


@pytest.mark.parametrize("wrong", WRONG)
def test_no_setting_takes_what_is_of_another_type(tmp_path, wrong):
    for setting in SETTINGS:
        if wrong == '""' and "" in setting.nothing:
            continue
        key = key_of(setting)
        message = refused(tmp_path, f"{key} = {wrong}")
        where = f"{tmp_path / 'kvd.toml'}: {key}"
        assert message.startswith(where) and "; allowed is " in message, message


@named([setting for setting in SETTINGS if setting.field])
def test_what_is_beyond_the_range_is_refused(tmp_path, setting):
    """And what is on its edges is not, so the range that is told is the one that is kept."""
    key = key_of(setting)
    unit = 1e9 if key.endswith(("seconds", "seconds_max")) else 1
    for edge in (setting.least, setting.most):
        number = edge / unit if unit > 1 else edge
        others = {"limits.deadline_seconds": "0.1"} if key == "limits.deadline_seconds_max" else {}
        config = configured(tmp_path, beside(setting, **{**others, key: str(number)}))
        assert found(config, setting) == edge
    for beyond in (setting.least - 1, setting.most + 1):
        number = f"{beyond / unit:.9f}" if unit > 1 else beyond
        assert f"{key} is" in refused(tmp_path, f"{key} = {number}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('tenants."a/b" = {}', ("[tenants.NAME]", "'a/b'", "letters")),
        ('tenants."" = {}', ("''", "letters")),
        ("tenants.a = 1", ("tenants.a is 1", "[tenants.a]")),
        ("dram = 1", ("dram is 1", "[dram]")),
        ("".join(f"[tenants.t{n}]\n" for n in range(65)), ("tenants", "1 to 64")),
        ('dram.size = "64MiB"\ntenants.a.dram = "65MiB"', ("tenants.a.dram is '65MiB'", "64MiB")),
        ('ssd.budget = "1GiB"\ntenants.a.ssd = "2GiB"', ("tenants.a.ssd", "ssd.budget", "1GiB")),
        (
            'dram.size = "64MiB"\ntenants = { a.dram = "40MiB", c = {}, b.dram = "25MiB" }',
            ("tenants.b.dram is '25MiB'", "at most 24MiB", "dram.size, which is 64MiB", "other"),
        ),
        ('tenants.a.token_file = "/t"\ntcp.listen = "10.0.0.1:1"', ("tcp.listen", "127.0.0.1")),
        ('tenants.a.token_file = "/t"\ntcp.listen = "host:1"', ("tcp.listen", "tcp.certificate")),
        ('tenants.a.ssd = "2GiB"', ("tenants.a.ssd", "--data")),
        ('ssd.daily_writes = "2GiB"', ("ssd.daily_writes", "--data")),
        ('directory = "run"', ("directory is 'run'", "beginning with /")),
        ('ssd.data = ["/a", "b"]', ("ssd.data", "beginning with /")),
        ('tenants.a.client_names = ["n"]', ("tenants.a.client_names", "tcp.client_ca")),
        (
            'tenants = { a = { token_file = "/t" }, b = { token_file = "/t" } }',
            ("tenants.b.token_file is '/t'", "tenant 'a'"),
        ),
        (
            'tcp = { certificate = "/c", key = "/k", client_ca = "/a" }\n'
            'tenants = { a = { client_names = ["n"] }, b = { client_names = ["m", "n"] } }',
            ("tenants.b.client_names is ['m', 'n']", "tenant 'a'"),
        ),
    ],
)
def test_what_contradicts_is_refused(tmp_path, text, words):
    message = refused(tmp_path, text)
    assert all(word in message for word in (str(tmp_path), *words)), message


def test_a_long_value_is_not_told_whole(tmp_path):
    assert len(refused(tmp_path, f'log.level = "{"x" * 10_000}"')) < 400 + len(str(tmp_path))


# ---- files ----


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[dram]\nsize = \n", ("not TOML", "line 2")),
        (b"[tenants.a]\n[tenants.a]\n", ("not TOML", "'a'", "line 2")),
        (b'[log]\nlevel = "info"\nlevel = "info"\n', ("not TOML", "line 3")),
        (b"# one\n# \xff\n", ("not UTF-8", "line 2")),
        (b"a = " + b"[" * 100_000, ("not TOML", "deeply")),
        (b"#" * (1 << 20) + b"\n", ("at most 1048576 bytes",)),
    ],
    ids=["value", "table twice", "key twice", "text", "depth", "size"],
)
def test_what_is_no_configuration_is_refused(tmp_path, text, words):
    path = tmp_path / "kvd.toml"
    path.write_bytes(text)
    with pytest.raises(KvdError) as error:
        serve_config({"config": str(path)}, {}, NO_FILE)
    message = error.value.message
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert all(word in message for word in words), message


def test_which_file_is_read(tmp_path):
    by_flag, by_variable, by_default = (tmp_path / name for name in ("flag", "variable", "default"))
    for path in (by_flag, by_variable, by_default):
        path.write_text(f'directory = "/{path.name}"')
    environment = {"KVD_CONFIG": str(by_variable)}
    flags = {"config": str(by_flag)}
    assert serve_config(flags, environment, by_default).directory == Path("/flag")
    assert serve_config({}, environment, by_default).directory == Path("/variable")
    assert serve_config({}, {"KVD_CONFIG": ""}, by_default).directory == Path("/default")
    assert serve_config({}, {}, NO_FILE).directory == Path("/run/kvd")


def test_a_file_that_is_named_must_be_there(tmp_path):
    for said in (tmp_path / "none", tmp_path):
        with pytest.raises(KvdError, match=f" {said}: .*--config"):
            serve_config({}, {"KVD_CONFIG": str(said)}, NO_FILE)
    with pytest.raises(KvdError, match="--config is ''"):
        serve_config({"config": ""}, {}, NO_FILE)


def test_a_default_file_that_cannot_be_seen_is_not_passed_over(tmp_path):
    class Closed(type(tmp_path)):
        def exists(self):
            raise PermissionError(13, "Permission denied")

    with pytest.raises(KvdError, match="none/kvd.toml: .*--config"):
        serve_config({}, {}, Closed("/none/kvd.toml"))


def test_settings_of_a_tenant_have_no_flag_and_no_variable():
    assert not any(setting.flag or setting.variable for setting in OF_TENANT)
    assert all(setting.flag and setting.variable for setting in PLAIN)

"""`kvd config` as a command: what it shows, where each setting comes from, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvd.cli.main import main
from kvd.settings import TENANT_SECTION
from kvd.settings_limits import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "grpc", "google.protobuf", "rich", "uvloop", "lmdb")


@pytest.fixture
def config(capsys, monkeypatch, tmp_path):
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable or "KVD_CONFIG", raising=False)
    file = tmp_path / "kvd.toml"
    file.write_text("")
    monkeypatch.setenv("KVD_CONFIG", str(file))

    def run(*words, text=None):
        file.write_text(text or "")
        code = main(["config", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    run.file = file
    return run


def one_line(err: str) -> str:
    assert err.startswith("kvd: ") and err.count("\n") == 1 and err.endswith("\n"), err
    return err


TEXT = """
    [dram]
    size = "64MiB"
    [limits]
    read_seconds = "1.5s"
    sessions_max = 7
    [tenants.red]
    dram = "32MiB"
"""


def test_who_said_so_is_told_for_every_key(config, monkeypatch):
    monkeypatch.setenv("KVD_LOG_LEVEL", "debug")
    monkeypatch.setenv("KVD_LIMITS_SESSIONS_MAX", "8")
    code, out, err = config("show", "--json", "--directory", "/d", "--data", "/a", text=TEXT)
    assert code == 0 and not err
    told = json.loads(out)
    assert told["file"] == str(config.file)
    settings = told["settings"]
    keys = [s.key.replace("NAME", "red") for s in SETTINGS]
    assert sorted(settings) == sorted(keys)
    file = {"from": "file", "name": str(config.file)}
    default = {"from": "default", "name": ""}
    assert settings["dram.size"] == {"value": 64 << 20, **file}
    assert settings["limits.read_seconds"] == {"value": 1.5, **file}
    assert settings["tenants"] == {"value": ["red"], **file}
    assert settings["tenants.red.dram"] == {"value": 32 << 20, **file}
    assert settings["tenants.red.ssd"] == {"value": None, **default}
    assert settings["ssd.daily_writes"] == {"value": 0, **default}
    variable = {"from": "environment", "name": "KVD_LOG_LEVEL"}
    assert settings["log.level"] == {"value": "debug", **variable}
    assert settings["limits.sessions_max"]["name"] == "KVD_LIMITS_SESSIONS_MAX"
    assert settings["directory"] == {"value": "/d", "from": "flag", "name": "--directory"}
    assert settings["ssd.data"] == {"value": ["/a"], "from": "flag", "name": "--data"}


def test_people_see_the_same(config):
    out = config("show", "--tenant", "blue", text=TEXT)[1]
    told = json.loads(config("show", "--json", "--tenant", "blue", text=TEXT)[1])["settings"]
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == f"file: {config.file}"
    table = {line.split()[0]: line.split() for line in lines[3:]}
    assert list(table) == list(told)
    for key, said in told.items():
        source = [word for word in (said["from"], said["name"]) if word]
        assert table[key][-len(source) :] == source, key
    assert table["dram.size"][1] == '"64MiB"' and table["limits.read_seconds"][1] == "1.5"
    assert table["tenants"][1] == '["blue"]' and "tenants.red.dram" not in table


def test_what_stands_open_is_filled_in(config, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/me/state")
    settings = json.loads(config("show", "--json", "--ssd", "3GiB")[1])["settings"]
    assert settings["ssd.data"]["value"] == ["/me/state/kvd"]
    assert settings["dram.size"]["value"] > 0 and settings["allow_uids"]["value"]
    assert settings["ssd.data"]["from"] == settings["dram.size"]["from"] == "default"


def test_what_serve_would_refuse_is_refused(config):
    code, out, err = config("show", "--dram", "much")
    assert code == 2 and not out and "--dram is 'much'" in one_line(err)
    code, out, err = config("show", text='tenants.red.dram = "64TiB"')
    assert code == 2 and f"{config.file}: tenants.red.dram" in one_line(err)


def test_secrets_are_not_shown(config, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("mellon")
    text = f'[tenants.red]\ntoken_file = "{secret}"\n'
    for words in (("show",), ("show", "--json"), ("check", str(config.file))):
        code, out, err = config(*words, text=text)
        assert code == 0 and "mellon" not in out + err
    assert str(secret) in config("show", text=text)[1]


def test_a_file_is_checked_alone(config, monkeypatch):
    monkeypatch.setenv("KVD_DRAM", "much")
    code, out, err = config("check", str(config.file), text=TEXT)
    assert (code, out, err) == (0, f"{config.file}: good\n", "")
    code, out, err = config("check", str(config.file), text="dram.sise = 1")
    assert code == 2 and not out and one_line(err).endswith("'dram.size'\n")


def test_a_file_is_checked_for_programs(config):
    code, out, err = config("check", "--json", str(config.file), text=TEXT)
    assert code == 0 and not err
    assert json.loads(out) == {"file": str(config.file), "good": True, "wrong": None}
    code, out, err = config("check", "--json", str(config.file), text="[dram]\n[ssd")
    told = json.loads(out)
    assert code == 2 and not err and not told["good"] and "line 2" in told["wrong"]


@pytest.mark.parametrize("words", [("serve",), ("config", "show")])
def test_help_names_every_flag_its_default_and_its_range(capsys, words):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for setting in SETTINGS:
        if setting.section != TENANT_SECTION:
            assert setting.flag in text and setting.help.split(". ")[0].split("-")[0] in text
    assert "(16MiB; 1MiB to 64MiB)" in text and "--config FILE" in text and "KVD_CONFIG" in text
    assert "exit codes" in text


def test_help_of_config_names_its_verbs_and_its_json(capsys):
    for words in (("config",), ("config", "check")):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
    text = capsys.readouterr().out
    assert "show" in text and "check" in text and "exit codes" in text and "wrong" in text


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["config", "show", "--json"]])
def test_help_and_settings_load_nothing_heavy(words):
    program = (
        "import contextlib, sys\n"
        "from kvd.cli.main import main\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    main({words!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stderr == "[]\n" and done.stdout, done

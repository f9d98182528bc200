"""What others can reach and see of a daemon: loopback and sockets, no secrets, no code in data."""

import ast
import json
import os
import re
from pathlib import Path

import pytest

from kvd.cli.admin import main as admin
from kvd.cli.main import main
from tests.e2e.process import ROOT, running

SECRET = "s3cret-" + "of-a-cloud"
LISTENING = "0A"  # As /proc/net/tcp says it.
# What makes code of bytes that were read or sent.
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml"}


def listening(pid: int) -> list[str]:
    """Return the addresses of TCP sockets on which a process listens, in hexadecimal."""
    links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    inodes = {inode for link in links for inode in re.findall(r"socket:\[(\d+)\]", link)}
    found = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes and (words[3] == LISTENING or name.startswith("udp")):
                found.append(words[1].split(":")[0])
    return found


def test_nothing_listens_beyond_this_machine_unless_it_is_said(short_directory, monkeypatch):
    monkeypatch.delenv("KVD_METRICS_LISTEN")
    with running(short_directory, "--data", str(short_directory / "data"), "--ssd", "64MiB") as it:
        addresses = listening(it.process.pid)
        # Metrics only; or nothing, where another program has their port.
        assert set(addresses) <= {"0100007F"} and len(addresses) <= 1
        assert addresses or any("metrics" in line for line in it.lines)
        for path in short_directory.rglob("*"):
            if path.is_socket():
                assert path.stat().st_mode & 0o077 == 0, path


def test_no_answer_has_anything_of_the_environment(short_directory, monkeypatch, capsys):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("KVD_UNKNOWN", SECRET)
    with running(short_directory, "--log-level", "debug") as daemon:
        assert f"{SECRET}\0".encode() in Path(f"/proc/{daemon.process.pid}/environ").read_bytes()
        where = ("--directory", str(short_directory))
        for verb in ("status", "tiers", "sessions", "keyspaces", "stats", "pins", "explain"):
            for flags in ((), ("--json",)):
                admin([verb, *where, *flags])
        main(["config", "show"])
        main(["config", "show", "--json"])
        main(["doctor", *where, "--all", "--json"])
        said = capsys.readouterr()
        assert len(said.out) > 5000 and SECRET not in said.out + said.err
        assert not [line for line in daemon.lines if SECRET in line]


def unsafe(path: Path) -> list[str]:
    """Return what of a module makes code of data."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                found += [n.name for n in names if n.name.split(".")[0] in UNSAFE]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNSAFE:
                found.append(module)
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__" as name)):
                found.append(name)
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                found.append("allow_pickle")
    return found


def test_no_data_becomes_code():
    modules = [path for path in (ROOT / "kvd").rglob("*.py") if "v1" not in path.parts]
    assert len(modules) > 100
    assert {str(path): unsafe(path) for path in modules if unsafe(path)} == {}


@pytest.mark.parametrize(
    "text", ["import pickle", "from dill import loads", "eval('1')", "f(allow_pickle=True)"]
)
def test_what_makes_code_of_data_is_seen(tmp_path, text):
    (tmp_path / "module.py").write_text(text)
    assert unsafe(tmp_path / "module.py")
    assert json.dumps(unsafe(tmp_path / "module.py"))

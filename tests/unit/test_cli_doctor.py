"""`kvd doctor` as a command, on the host that runs the tests: output, JSON, exit codes."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvd.cli.doctor_flags import EPILOG
from kvd.cli.main import main
from kvd.cli.serve_flags import add_settings, said_flags
from kvd.config import serve_config
from kvd.doctor.findings import Level
from kvd.doctor.plan import Listen, NamedFile, plan_of
from kvd.limits import MIB

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"  (ok|note|warn|fail) +[a-z]+\.[a-z_]+ +\S.*")


@pytest.fixture
def doctor(capsys, short_directory):
    """Run the verb for a small daemon; return exit code, standard output and error."""

    def run(*words):
        own = ["--directory", str(short_directory / "run"), "--dram", "64MiB"]
        code = main(["doctor", *own, "--metrics-listen", "", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_json_is_what_the_help_says(doctor, tmp_path):
    code, out, err = doctor("--json", "--data", str(tmp_path / "data"), "--ssd", "64MiB")
    report = json.loads(out)
    said = EPILOG.split("--json prints")[1]
    assert (code, err) == (0, "") and report["fine"] and report["running"] == 0
    for name in (*report, *report["findings"][0]):
        assert name in said, name
    assert list(report["counts"]) == [str(level) for level in Level]
    assert sum(report["counts"].values()) == len(report["findings"])
    for finding in report["findings"]:
        assert finding["check"].startswith(finding["group"] + ".")
        assert finding["found"] and (finding["level"] != "ok" or not finding["fix"])
    assert not (tmp_path / "data").exists()


def test_what_fails_is_an_exit_code(doctor, tmp_path):
    code, out, _ = doctor("--json", "--data", str(tmp_path), "--ssd", "2MiB")
    report = json.loads(out)
    [failing] = [f for f in report["findings"] if f["level"] == "fail"]
    assert code == 1 and not report["fine"] and failing["check"] == "data.room"


def test_people_see_one_line_each_and_what_is_ok_when_they_ask(doctor, tmp_path):
    code, out, _ = doctor("--data", str(tmp_path), "--ssd", "2MiB")
    lines = out.splitlines()
    assert code == 1 and lines[-1].startswith("not fine: ") and "1 fail" in lines[-1]
    told = [line for line in lines[:-1] if line.startswith(" ")]
    assert all(LINE.fullmatch(line) for line in told) and "  ok " not in out
    [failing] = [line for line in told if line.startswith("  fail")]
    assert "data.room" in failing and "; needed: " in failing and "; fix: " in failing
    code, out, _ = doctor("--all")
    groups = [line for line in out.splitlines()[:-1] if not line.startswith(" ")]
    assert code == 0 and groups == [
        "memory", "limits", "cgroup", "kernel", "data", "users", "runtime", "tcp", "gpu", "software"
    ]  # fmt: skip
    assert "\x1b" not in out and out.splitlines()[-1].startswith("fine: ")


def test_a_setting_that_is_refused_is_the_line_that_serve_prints(doctor, tmp_path, capsys):
    code, out, err = doctor("--drain-seconds", "soon")
    assert (code, out) == (2, "") and err.startswith("kvd: ") and len(err.splitlines()) == 1
    file = tmp_path / "kvd.toml"
    file.write_text("[dram]\nsise = '1GiB'\n")
    code, out, err = doctor("--config", str(file))
    assert (code, out) == (2, "") and "size" in err
    assert main(["serve", "--config", str(file)]) == 2
    assert capsys.readouterr().err == err


def test_the_daemons_user_can_be_another(doctor):
    def daemon(*words):
        findings = json.loads(doctor("--json", *words)[1])["findings"]
        return {f["check"]: f for f in findings}["users.daemon"]["found"]

    assert daemon("--as-user", "4711") == "the daemon is uid 4711"
    assert daemon("--as-user", "root") == "the daemon would run as root"
    code, out, err = doctor("--as-user", "no such user")
    assert (code, out) == (2, "") and "'no such user'" in err and len(err.splitlines()) == 1


def test_the_file_is_what_is_checked(doctor, tmp_path):
    file = tmp_path / "kvd.toml"
    file.write_text(f"[ssd]\ndata = ['{tmp_path}/data']\nbudget = '2MiB'\n")
    code, out, _ = doctor("--config", str(file), "--json")
    assert code == 1 and f"{tmp_path}/data" in out


def test_a_plan_holds_what_the_configuration_says(tmp_path):
    file = tmp_path / "kvd.toml"
    file.write_text(f"""
        directory = "{tmp_path}/run"
        allow_uids = [1000]
        [dram]
        size = "128MiB"
        [tcp]
        listen = "0.0.0.0:7000"
        certificate = "/c"
        key = "/k"
        [tenants.red]
        token_file = "/t"
        [tenants.blue]
    """)
    parser = argparse.ArgumentParser()
    add_settings(parser)
    config = serve_config(said_flags(parser.parse_args(["--config", str(file)])), {})
    plan = plan_of(config)
    assert (plan.directory, plan.dram_bytes) == (tmp_path / "run", 128 * MIB)
    assert plan.allowed_uids == {1000} and not plan.data and plan.ssd_bytes is None
    assert {path.parent.name for path in plan.sockets} == {"red", "blue", "run"}
    assert plan.sockets[-1] == tmp_path / "run" / "admin.sock"
    assert plan.listens == (
        Listen("tcp", "0.0.0.0", 7000, True), Listen("metrics", "127.0.0.1", 9470, False),
    )  # fmt: skip
    assert set(plan.files) == {
        NamedFile("tcp.certificate", Path("/c"), False), NamedFile("tcp.key", Path("/k"), True),
        NamedFile("tenants.red.token_file", Path("/t"), True),
    }  # fmt: skip


def test_a_pipe_that_nobody_reads_is_one_line(short_directory):
    flags = ["--directory", short_directory, "--json"]
    words = [sys.executable, "-m", "kvd.cli.main", "doctor", *flags]
    done = subprocess.run(
        ["bash", "-c", '"$@" | true; exit "${PIPESTATUS[0]}"', "bash", *map(str, words)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 2)  # 0 when it was written before the reader left.
    assert len(done.stderr.splitlines()) == (done.returncode == 2)
    assert "Traceback" not in done.stderr


LOWERED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from kvd.cli.main import main
sys.exit(main(["doctor", "--json", "--dram", "1GiB", "--directory", sys.argv[1]]))
"""


def test_a_limit_that_was_really_lowered_fails(short_directory):
    done = subprocess.run(
        [sys.executable, "-c", LOWERED, short_directory], cwd=ROOT, capture_output=True, text=True
    )
    found = {f["check"]: f for f in json.loads(done.stdout)["findings"]}["limits.files"]
    assert done.returncode == 1 and found["level"] == "fail" and "64 at most" in found["found"]

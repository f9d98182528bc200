"""The Containerfile: what it copies is here, what it runs is understood, nothing runs as root."""

import json
import re
import subprocess

import pytest

from kvd.cli.main import parser
from kvd.settings_limits import SETTINGS
from tests.unit.containerfile import parse
from tests.unit.test_cli_doctor import ROOT

PATH = ROOT / "deploy" / "container" / "Containerfile"


@pytest.fixture(scope="module")
def stages():
    return parse(PATH)


@pytest.fixture(scope="module")
def final(stages):
    return stages[-1]


def test_there_are_two_stages_of_one_pinned_slim_image(stages):
    build, final = stages
    assert build.name == "build" and build.image == final.image
    assert re.fullmatch(r"docker\.io/library/python:3\.11-slim-\w+", final.image)
    # Compilers stay behind, and so do lists of packages.
    assert "g++" in build.last("RUN") or "g++" in build.of("RUN")[0]
    assert not [line for line in final.of("RUN") if "apt-get" in line or "pip" in line]
    for line in build.of("RUN"):
        assert "apt-get install" not in line or "rm -rf /var/lib/apt/lists/*" in line


def test_the_python_is_one_that_kvd_and_its_pins_are_for(final):
    minor = re.search(r"python:(3\.\d+)", final.image)[1]
    assert f"resolved for Python {minor}" in (ROOT / "constraints.txt").read_text()


def test_what_is_copied_is_there_and_tracked(stages):
    names = {stage.name for stage in stages if stage.name}
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    copied = set()
    for stage in stages:
        for line in stage.of("COPY"):
            *sources, target = line.split()
            if sources[0].startswith("--from="):
                assert sources[0].removeprefix("--from=") in names and target.startswith("/")
                continue
            for source in sources:
                assert any(f == source or f.startswith(source + "/") for f in listed), source
            copied |= set(sources)
    project = (ROOT / "pyproject.toml").read_text()
    for needed in ("pyproject.toml", "CMakeLists.txt", "kvd", "kernels", "constraints.txt"):
        assert needed in copied
    for key in ("readme", "license-files"):  # The build asks for these files.
        [named] = re.findall(rf'^{key} = \[?"([^"]+)"', project, re.MULTILINE)
        assert named in copied


def test_it_runs_as_a_user_without_a_name_of_its_own_at_run_time(final):
    assert final.last("USER") == "990:990"
    order = [name for name, _ in final.instructions]
    assert order.index("USER") > max(at for at, name in enumerate(order) if name == "RUN")
    assert "useradd --uid 990 --gid 990" in final.last("RUN")


def test_its_words_are_those_of_the_command_line(final):
    entrypoint, command = final.words("ENTRYPOINT"), final.words("CMD")
    assert entrypoint == ["kvd"]
    assert parser().parse_args(command).verb == "serve"
    check = final.last("HEALTHCHECK")
    flags, _, words = check.partition(" CMD ")
    assert {flag.split("=")[0] for flag in flags.split()} == {
        "--interval", "--timeout", "--start-period", "--retries"
    }  # fmt: skip
    program, *rest = json.loads(words)
    arguments = parser().parse_args(rest)
    assert program == "kvd" and arguments.verb == "health" and arguments.alive


def test_its_environment_is_known_settings(final):
    variables = {setting.variable for setting in SETTINGS}
    environment = final.environment()
    own = {name for name in environment if name.startswith("KVD_")}
    assert own and own <= variables
    made = " ".join(final.of("RUN"))
    assert f"-m 0755 {environment['KVD_DIRECTORY']}" in made
    assert environment["PATH"].split(":")[0] == "/opt/kvd/bin"


def test_data_has_a_volume_that_only_the_daemon_reads(final):
    [volume] = final.words("VOLUME")
    assert f"-o 990 -g 990 -m 0700 {volume}" in final.last("RUN")


def test_it_is_stopped_as_the_daemon_drains(final):
    assert final.last("STOPSIGNAL") == "SIGTERM"


@pytest.mark.parametrize(
    "text",
    [
        "RUN x\n",
        "FROM a\nCOPPY b c\n",
        "FROM a b c d\n",
        "FROM a\nRUN x \\\n",
        'FROM a\nCMD ["x"\n',
    ],
)
def test_what_is_no_containerfile_is_not_taken_for_one(tmp_path, text):
    path = tmp_path / "Containerfile"
    path.write_text(text)
    with pytest.raises((AssertionError, ValueError)):
        parse(path)[-1].words("CMD")

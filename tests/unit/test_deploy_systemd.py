"""The units: systemd takes them, and what they say fits what the daemon does."""

import re
import shutil
import subprocess
from collections import defaultdict

import pytest

from kvd.cli.serve import EXIT_CANNOT_START
from kvd.cli.service import STOP_NS
from kvd.clock import NS_PER_S
from kvd.limits import GIB, Limits
from tests.e2e.process import ROOT

UNITS = ROOT / "deploy" / "systemd"
TENANT = "default"


def said(name: str) -> dict[str, list[str]]:
    """Return what a unit says, by key; every value of keys that are said again."""
    found = defaultdict(list)
    for line in (UNITS / name).read_text().splitlines():
        if line and line[0] not in "#[":
            key, value = line.split("=", 1)
            found[key].append(value)
    return found


def only(unit: dict[str, list[str]], key: str) -> str:
    [value] = unit[key]
    return value


@pytest.fixture(scope="module")
def service():
    return said("kvd.service")


def analyze(*words: str) -> subprocess.CompletedProcess:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not here; it comes with systemd")
    return subprocess.run([tool, *words], capture_output=True, text=True, timeout=60)


def rendered(directory) -> list[str]:
    """Copy the units with a program that is there, those of one tenant with its name."""
    paths = []
    for unit in UNITS.glob("kvd*"):
        path = directory / unit.name.replace("@", f"@{TENANT}")
        path.write_text(unit.read_text().replace("/usr/bin/kvd", shutil.which("true")))
        paths.append(str(path))
    return paths


def test_systemd_takes_them_without_a_word(tmp_path):
    done = analyze("verify", *rendered(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_exposed_stays_little(tmp_path):
    rendered(tmp_path)
    done = analyze("security", "--offline=yes", "--no-pager", str(tmp_path / "kvd.service"))
    exposure = float(re.search(r"Overall exposure level for kvd.service: ([\d.]+)", done.stdout)[1])
    assert exposure <= 2.0, done.stdout


def test_the_end_has_the_time_that_draining_takes(service):
    takes = Limits().drain_ns + STOP_NS
    assert int(only(service, "TimeoutStopSec")) * NS_PER_S > takes


def test_a_bad_setting_is_not_tried_again_and_a_bug_is(service):
    assert only(service, "Restart") == "on-failure"
    assert only(service, "RestartPreventExitStatus") == str(EXIT_CANNOT_START)


def test_the_store_and_the_descriptors_are_for_the_dram_that_is_said(service):
    text = (UNITS / "kvd.service").read_text()
    dram_gib = int(re.search(r"so this is for (\d+) GiB", text)[1])
    slabs = dram_gib * GIB // Limits().slab_bytes
    assert int(only(service, "FileDescriptorStoreMax")) == slabs + 1
    # A quarter of all descriptors is for slabs, which hold two each.
    assert int(only(service, "LimitNOFILE")) // 8 >= slabs


@pytest.mark.parametrize(
    ("name", "key", "path"),
    [
        ("session", "ListenStream", "session.sock"),
        ("slabs", "ListenSequentialPacket", "slabs.sock"),
    ],
)
def test_sockets_have_the_names_and_places_that_the_daemon_knows(service, name, key, path):
    unit = said(f"kvd-{name}@.socket")
    assert only(unit, "FileDescriptorName") == f"{name}.%i"
    assert only(unit, key) == f"/run/kvd/%i/{path}"
    assert only(unit, "Service") == "kvd.service"
    assert f"kvd-{name}@{TENANT}.socket" in only(service, "Sockets").split()
    assert f"kvd-{name}@blue.socket" in only(said("another-tenant.conf"), "Sockets").split()


def test_every_directory_of_a_tenant_belongs_to_the_user(service):
    assert only(service, "RuntimeDirectory").split() == ["kvd", f"kvd/{TENANT}"]
    assert only(said("another-tenant.conf"), "RuntimeDirectory") == "kvd/blue"
    # Or the sockets would go with the daemon.
    assert only(service, "RuntimeDirectoryPreserve") == "yes"


def test_uids_of_clients_stay_what_they_are(service):
    assert "PrivateUsers" not in service and "DynamicUser" not in service
    assert only(service, "NotifyAccess") == "main" and only(service, "Type") == "notify"

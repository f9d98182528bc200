"""What the doctor says of kernel, packages, native code, systemd, GPUs; and all at once."""

import ctypes
import errno
import os
import subprocess
from importlib import metadata
from types import SimpleNamespace

import pytest

from kvd.codec.native import Loaded
from kvd.doctor import gpu, software
from kvd.doctor.examine import DEEP, PROBES, examine, scene_of
from kvd.doctor.findings import Level
from kvd.host.reading import Host, Unseen
from tests.unit.doctor_scene import Hosts, all_ok, by_check, is_told


@pytest.fixture
def hosts(tmp_path):
    return Hosts(tmp_path)


# ---- the kernel ----


def test_a_good_kernel(hosts):
    for probe in (software.kernel, software.memfds, software.clock):
        assert all_ok(hosts.ask(probe))


@pytest.mark.parametrize(
    ("release", "level", "words"),
    [("5.10.0-28-amd64", Level.FAIL, ("5.10.0-28-amd64", "5.14")),
     ("6.1.0", Level.NOTE, ("SO_PEERPIDFD", "6.5", "hostPID")), ("odd", Level.FAIL, ("odd",))],
)  # fmt: skip
def test_an_old_kernel(hosts, release, level, words):
    hosts.write({"proc/sys/kernel/osrelease": release + "\n"})
    assert is_told(hosts.ask(software.kernel)[0], level, *words)


def test_memfds_that_a_sandbox_refuses(hosts, monkeypatch):
    def refuse(name, flags=0):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refuse)
    [found] = hosts.ask(software.memfds)
    assert is_told(found, Level.FAIL, "not permitted", "memfd_create")


def test_memfds_that_a_sysctl_refuses(hosts):
    hosts.write({"proc/sys/vm/memfd_noexec": "2\n"})
    found = by_check(hosts.ask(software.memfds))["kernel.memfd_noexec"]
    assert is_told(found, Level.FAIL, "sysctl -w vm.memfd_noexec=1")


def test_a_slow_clock(hosts):
    hosts.write({"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"})
    assert is_told(hosts.ask(software.clock)[0], Level.WARN, "hpet", "echo tsc")


# ---- packages and native code ----

WANTED = ["grpcio>=1.76", "lmdb>=3.0", "torch>=2.6; extra == 'hf'", "odd"]


def test_packages_that_are_new_enough(hosts):
    found = hosts.ask(software.packages, WANTED, {"grpcio": "1.100.2", "lmdb": "3.0"}.__getitem__)
    assert all_ok(found) and found[-1].found == "grpcio 1.100.2, lmdb 3.0"


def test_packages_that_are_too_old_or_missing(hosts):
    def versions(name):
        if name == "lmdb":
            raise metadata.PackageNotFoundError(name)
        return "1.9.1"

    _, old, missing = hosts.ask(software.packages, WANTED, versions)
    assert is_told(old, Level.FAIL, "grpcio 1.9.1", ">= 1.76", "pip install 'grpcio>=1.76'")
    assert is_told(missing, Level.FAIL, "lmdb is not installed", "pip install 'lmdb>=3.0'")


def test_packages_here_are_compared_with_what_kvd_asks_for(hosts):
    found = hosts.ask(software.packages)
    assert all_ok(found)
    for name in ("grpcio", "protobuf", "lmdb", "numpy"):
        assert f"{name} {metadata.version(name)}" in found[-1].found


def test_a_kvd_that_is_not_installed(hosts, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(software.metadata, "requires", missing)
    assert is_told(hosts.ask(software.packages)[-1], Level.NOTE, "not installed")


def test_native_kernels(hosts):
    loaded = Loaded(SimpleNamespace(path="avx2"), "")
    found = hosts.ask(software.kernels, lambda: loaded)
    assert all_ok(found) and "avx2" in found[0].found
    [found] = hosts.ask(software.kernels, lambda: Loaded(None, "x.so does not exist"))
    assert is_told(found, Level.WARN, "x.so does not exist", "50 to 500 times", "g++")


# ---- systemd ----


def systemd(version, store="4097", files="65536"):
    """Return a `run` that answers as systemctl of a version does for a unit."""
    shown = f"LimitNOFILE={files}\nFileDescriptorStoreMax={store}\n"

    def run(words, **more):
        assert words[0] == "systemctl"
        told = f"systemd {version} ({version}.1)\n" if words[1] == "--version" else shown
        return SimpleNamespace(stdout=told)

    return run


def test_systemd_with_its_unit(hosts):
    found = hosts.ask(software.service, systemd(255))
    assert all_ok(found) and found[0].found == "systemd 255, unit in /etc/systemd/system"
    assert [f.found for f in found[1:]] == [
        "LimitNOFILE is 65536 in kvd.service, 64 slabs",
        "FileDescriptorStoreMax is 4097 in kvd.service, 64 slabs",
    ]
    assert all_ok(hosts.ask(software.service, systemd(255, files="infinity")))


def test_a_unit_that_gives_too_little(hosts):
    _, files, store = hosts.ask(software.service, systemd(255, "64", "511"))
    assert is_told(files, Level.WARN, "is 511", "64 slabs", "LimitNOFILE=512 in kvd.service")
    words = ("is 64", "a restart keeps", "FileDescriptorStoreMax=65 in kvd.service")
    assert is_told(store, Level.WARN, *words)
    assert all_ok(hosts.ask(software.service, systemd(255, "65", "512")))


def test_systemd_without_the_unit_or_old(hosts):
    old = hosts.ask(software.service, systemd(229))[0]
    assert is_told(old, Level.NOTE, "229", "236", "TimeoutStopSec")
    hosts.write({"etc/systemd/system/kvd.service": None})
    [found] = hosts.ask(software.service, systemd(255))
    assert is_told(found, Level.NOTE, "not installed", "systemctl daemon-reload")


def _missing(words, **more):
    raise FileNotFoundError(words[0])


def test_a_systemd_that_does_not_answer(hosts):
    def hang(words, **more):
        raise subprocess.TimeoutExpired(words, 5)

    [found] = hosts.ask(software.service, hang)
    assert all_ok([found]) and "unknown version" in found.found
    [found] = hosts.ask(software.service, _missing)
    assert all_ok([found]) and "unknown version" in found.found


def test_no_systemd(hosts):
    hosts.files.pop("run/systemd/system/.keep")
    assert is_told(hosts.ask(software.service)[0], Level.NOTE, "systemd does not run")


# ---- GPUs ----

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05  Release Build\nGCC version: 14\n"


class Library:
    """The driver's library: the calls that are made, on devices of a test."""

    def __init__(self, names, failing=""):
        self.names, self.failing, self.open = names, failing, 0

    def nvmlInit_v2(self):
        self.open += 1
        return self.failing == "init"

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index + 1
        return self.failing == "handle"

    def nvmlDeviceGetName(self, handle, name, size):
        ctypes.memmove(name, self.names[handle.value - 1], len(self.names[handle.value - 1]))
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total = 80 << 30
        return 0


@pytest.fixture
def gpus(hosts):
    hosts.write({
        "proc/driver/nvidia/version": DRIVER,
        "proc/driver/nvidia/gpus/0000:41:00.0/information": "Model: \t H100\nIRQ: 7\n",
        "proc/driver/nvidia-fs/version": "version: 2.25.7\n",
    })  # fmt: skip
    return hosts


def test_no_gpu_is_ok(hosts):
    assert all_ok(hosts.ask(gpu.driver)) and hosts.ask(gpu.storage) == []


def test_devices_as_the_driver_names_them(gpus):
    library = Library([b"NVIDIA H100", b"NVIDIA H100"])
    found = by_check(gpus.ask(gpu.driver, lambda name: library))
    assert all_ok(list(found.values())) and library.open == 0
    assert "580.95.05" in found["gpu.driver"].found
    assert found["gpu.devices"].found == "0: NVIDIA H100, 80GiB; 1: NVIDIA H100, 80GiB"
    [storage] = gpus.ask(gpu.storage)
    assert all_ok([storage]) and "2.25.7" in storage.found


@pytest.mark.parametrize("library", [Library([]), Library([b"x"], "init")])
def test_a_driver_without_devices(gpus, library):
    found = by_check(gpus.ask(gpu.driver, lambda name: library))["gpu.devices"]
    assert is_told(found, Level.WARN, "no device", "the kernel has H100", "nvidia-smi")


def test_a_device_that_does_not_answer_is_named(gpus):
    found = gpus.ask(gpu.driver, lambda name: Library([b"x"], "handle"))[-1]
    assert "0: does not answer" in found.found


def test_a_driver_without_its_library(gpus):
    [_, found] = gpus.ask(gpu.driver, lambda name: ctypes.CDLL(f"/nowhere/{name}"))
    assert is_told(found, Level.WARN, "libnvidia-ml.so.1", "container toolkit", "H100")


def test_no_gpu_direct_storage(gpus):
    gpus.write({"proc/driver/nvidia-fs/version": None})
    assert is_told(gpus.ask(gpu.storage)[0], Level.NOTE, "no nvidia-fs")


def test_packages_that_reach_a_gpu(gpus):
    known = {"torch": "2.13.0", "cupy-cuda13x": "14.1"}

    def versions(name):
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    found = by_check(gpus.ask(gpu.packages, versions))
    assert all_ok([found["gpu.torch"], found["gpu.cupy"]])
    assert found["gpu.cupy"].found == "cupy-cuda13x 14.1"
    assert is_told(found["gpu.kvikio"], Level.NOTE, "kvikio is not installed")
    known.clear()
    found = by_check(gpus.ask(gpu.packages, versions))
    assert is_told(found["gpu.cupy"], Level.WARN, "pip install 'kvd[gpu]'")


@pytest.fixture
def torch_only(monkeypatch):
    monkeypatch.setattr(gpu, "_PACKAGES", {"torch": (("pytest",), "True")})


def test_imports_are_tried_in_another_process(hosts, torch_only):
    def run(code, out="", error="", words=None):
        assert words[1] == "-c" and "import json, torch" in words[2]
        return SimpleNamespace(returncode=code, stdout=out, stderr=error)

    [good] = hosts.ask(gpu.imports, lambda w, **m: run(0, "noise\ntrue\n", words=w))
    assert all_ok([good]) and good.found == "torch imports and sees a device"
    [bad] = hosts.ask(gpu.imports, lambda w, **m: run(1, "", "x\nImportError: libcudart", words=w))
    assert is_told(bad, Level.WARN, "libcudart", "import torch")


def test_imports_that_hang_or_are_not_there(hosts, monkeypatch, torch_only):
    def hang(words, **more):
        raise subprocess.TimeoutExpired(words, 1)

    assert is_told(hosts.ask(gpu.imports, hang)[0], Level.WARN, "not imported in")
    monkeypatch.setattr(gpu, "_PACKAGES", {"no-such": (("no-such-package",), "True")})
    assert hosts.ask(gpu.imports) == []


def test_a_real_import_in_a_real_process(hosts, monkeypatch):
    monkeypatch.setattr(gpu, "_PACKAGES", {"numpy": (("numpy",), "numpy.zeros(1).any()")})
    [found] = hosts.ask(gpu.imports)
    assert found.found == "numpy imports and sees no device"


# ---- all of it ----


def test_an_empty_host_says_what_could_not_be_looked_at(hosts):
    hosts.files = {}
    findings = list(examine(hosts.scene()))
    unseen = {f.check for f in findings if "could not be looked at: " in f.found}
    assert {"memory.total", "limits.files", "cgroup.memory", "kernel.version", "data.drive",
            "runtime.sockets"} <= unseen  # fmt: skip
    assert all(f.level == Level.NOTE for f in findings if f.check in unseen)
    assert {name for name, _ in PROBES} >= unseen


def test_this_host_is_looked_at_whole(hosts):
    findings = list(examine(scene_of(hosts.plan, Host()), PROBES))
    checks = {finding.check for finding in findings}
    for name in ("memory.total", "cgroup.memory", "data.direct", "data.drive", "kernel.version"):
        assert name in checks
    assert all(f.found and "\n" not in f.found + f.need + f.fix for f in findings)
    assert not [f for f in findings if f.level in (Level.WARN, Level.FAIL) and not f.fix]


def test_a_probe_that_cannot_go_on_keeps_what_it_found(hosts):
    def probe(scene):
        yield from software.kernel(scene)
        raise Unseen("/x: gone")

    first, last = examine(hosts.scene(), [("kernel.version", probe)])
    assert all_ok([first]) and is_told(last, Level.NOTE, "could not be looked at: /x: gone")
    assert [name for name, _ in DEEP] == ["gpu.imports"]

"""The kernel, Python, packages, native code and service manager that kvd finds."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

from kvd.arena.memfd import open_slab
from kvd.codec import native
from kvd.doctor.findings import Finding, fail, note, ok, warn
from kvd.doctor.plan import Scene
from kvd.limits import PAGE_BYTES

_KERNEL_MIN, _KERNEL_GOOD = (5, 14), (6, 5)
_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen", "timebase")
_UNIT_PLACES = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system")
_SYSTEMD_GOOD = 236  # A service may ask for more time to end.
# Of a unit: how many for each slab, how many besides, and what is lost without.
_UNIT_LIMITS = {
    "LimitNOFILE": (8, 0, "dram grows only in part"),
    "FileDescriptorStoreMax": (1, 1, "a restart keeps no dram, or a part of it"),
}
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9.]+)[^;]*$")
_SYSTEMCTL_SECONDS = 5


def kernel(scene: Scene) -> Iterator[Finding]:
    """Compare the kernel's version with the calls that kvd makes."""
    release = scene.host.text("proc/sys/kernel/osrelease").strip()
    version = _numbers(release)[:2]
    if version < _KERNEL_MIN:
        wanted = "5.14: slabs are made with MADV_POPULATE_WRITE"
        yield fail("kernel.version", f"Linux {release}", wanted, "boot a newer kernel")
    elif version < _KERNEL_GOOD:
        said = f"Linux {release}: no SO_PEERPIDFD; a client's process is found by its pid"
        wanted = "6.5, for clients in other containers"
        yield note("kernel.version", said, wanted, "hostPID: true in the daemon's pod, until then")
    else:
        yield ok("kernel.version", f"Linux {release}")


def memfds(scene: Scene) -> Iterator[Finding]:
    """Make a slab of one page with its seals, as a sandbox or a sysctl may refuse it."""
    try:
        open_slab("kvd-doctor", PAGE_BYTES).close()
    except OSError as error:
        said = f"a sealed memfd cannot be made: {error.strerror}"
        fix = "sysctl -w vm.memfd_noexec=1, or let the sandbox pass memfd_create and /proc"
        yield fail("kernel.memfd", said, "memfd_create, seals, /proc/self/fd", fix)
    else:
        yield ok("kernel.memfd", "a sealed memfd was made")
    name = "proc/sys/vm/memfd_noexec"
    if scene.host.has(name) and scene.host.number(name) == 2:
        fix = "sysctl -w vm.memfd_noexec=1"
        yield fail("kernel.memfd_noexec", "vm.memfd_noexec is 2", "0 or 1, for slabs", fix)


def clock(scene: Scene) -> Iterator[Finding]:
    """Say whether reading the clock costs a system call."""
    name = scene.host.text(
        "sys/devices/system/clocksource/clocksource0/current_clocksource"
    ).strip()
    if name in _CLOCKS:
        yield ok("kernel.clock", f"clock source {name}")
    else:
        fix = "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"
        wanted = "one that needs no system call, as tsc: kvd reads the clock for every event"
        yield warn("kernel.clock", f"clock source {name}", wanted, fix)


def packages(
    scene: Scene, requirements: list[str] | None = None, versions=metadata.version
) -> Iterator[Finding]:
    """Compare Python and what is installed with what kvd's own metadata asks for."""
    yield ok("software.python", f"Python {sys.version.split()[0]} at {sys.executable}")
    if requirements is None:
        try:
            requirements = metadata.requires("kvd") or []
        except metadata.PackageNotFoundError:
            yield note("software.packages", "kvd is imported, not installed: nothing to compare")
            return
    good = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            continue  # Of an extra, or without a bound.
        name, least = match.groups()
        try:
            found = versions(name)
        except metadata.PackageNotFoundError:
            found = ""
        if not found or _numbers(found) < _numbers(least):
            said = f"{name} {found or 'is not installed'}"
            yield fail("software.packages", said, f">= {least}", f"pip install '{name}>={least}'")
        else:
            good.append(f"{name} {found}")
    if good:
        yield ok("software.packages", ", ".join(good))


def kernels(scene: Scene, load=native.load) -> Iterator[Finding]:
    """Say which code encodes and decodes here."""
    loaded = load()
    if loaded.library is None:
        said = f"native kernels are missing: {loaded.problem}"
        wanted = "them in clients: numpy encodes and decodes 50 to 500 times slower"
        fix = "install g++ or clang++, then pip install --force-reinstall --no-deps kvd"
        yield warn("software.kernels", said, wanted, fix)
    else:
        yield ok("software.kernels", f"native kernels, {loaded.library.path} path")


def service(scene: Scene, run=subprocess.run) -> Iterator[Finding]:
    """Say whether systemd runs, of which version, and whether the unit is installed."""
    if not scene.host.has("run/systemd/system"):
        yield note("software.systemd", "systemd does not run here: something else starts kvd")
        return
    version = _systemd_version(run)
    said = f"systemd {version or 'of unknown version'}"
    unit = next((p for p in _UNIT_PLACES if scene.host.has(f"{p}/kvd.service")), "")
    if not unit:
        fix = "cp deploy/systemd/kvd.* /etc/systemd/system/ && systemctl daemon-reload"
        yield note("software.systemd", f"{said}, kvd.service is not installed", "the unit", fix)
    elif version and version < _SYSTEMD_GOOD:
        wanted = f"{_SYSTEMD_GOOD}: from there on a daemon that drains can ask for more time"
        fix = "TimeoutStopSec= above drain_seconds in kvd.service"
        yield note("software.systemd", f"{said}, unit in /{unit}", wanted, fix)
    else:
        yield ok("software.systemd", f"{said}, unit in /{unit}")
    if unit:
        shown = _systemctl(run, "show", "kvd.service", "--property=" + ",".join(_UNIT_LIMITS))
        lines = dict(line.partition("=")[::2] for line in shown.splitlines())
        yield from _unit_limits(scene, lines)


def _unit_limits(scene: Scene, lines: dict[str, str]) -> Iterator[Finding]:
    """Compare what the unit gives the daemon with the slabs there will be."""
    slabs = scene.plan.slabs
    for name, (each, more, loss) in _UNIT_LIMITS.items():
        text, need = lines.get(name, ""), each * slabs + more
        if text.isdigit() and int(text) < need:
            said = f"{name} is {text} in kvd.service, {slabs} slabs: {loss}"
            yield warn("software.unit", said, str(need), f"{name}={need} in kvd.service")
        elif text:
            yield ok("software.unit", f"{name} is {text} in kvd.service, {slabs} slabs")


def _systemd_version(run) -> int:
    numbers = _numbers(_systemctl(run, "--version").partition(" ")[2])
    return numbers[0] if numbers else 0


def _systemctl(run, *words: str) -> str:
    """Return what it prints, nothing when it is not there or does not answer."""
    try:
        done = run(
            ["systemctl", *words], capture_output=True, text=True, timeout=_SYSTEMCTL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, as they are compared."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()

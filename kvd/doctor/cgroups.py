"""Bounds of control groups, version 1 and 2, along the whole path from the daemon's to the root."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvd.doctor.devices import disk_of
from kvd.doctor.findings import Finding, fail, ok, warn
from kvd.doctor.host import UNLIMITED, Host, Unseen
from kvd.doctor.mounts import Mount, mount_under, mounts_of
from kvd.doctor.places import nearest
from kvd.doctor.plan import DAEMON_BYTES, Scene
from kvd.units import human

_V1_UNLIMITED = 1 << 60  # It writes the largest multiple of a page.
_IO_NAMES = {
    1: ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
    2: ("io.max",),
}
_THREADS, _THREADS_PER_DIRECTORY = 64, 24


@dataclass(frozen=True, slots=True)
class _Groups:
    """The directories of the process's group for one controller and of all above it."""

    version: int
    directories: tuple[PurePosixPath, ...]


def memory(scene: Scene) -> Iterator[Finding]:
    """Compare every bound of memory with dram: memfds count in the group that touches them."""
    groups = _groups_of(scene.host, "memory")
    hard = "memory.max" if groups.version == 2 else "memory.limit_in_bytes"
    dram, need = scene.plan.dram_bytes, scene.plan.dram_bytes + DAEMON_BYTES
    most = UNLIMITED
    for path, limit in _bounds(scene.host, groups, hard):
        most = min(most, limit)
        if limit < need:
            said = f"{path}/{hard} is {human(limit, down=True)}, dram is {human(dram)}"
            wanted = f"{human(need)}: dram counts there, and {human(DAEMON_BYTES)} for the daemon"
            fix = f"MemoryMax={need} in the unit of {path} (in a container: its memory limit)"
            yield (fail if limit < dram else warn)("cgroup.memory", said, wanted, fix)
    if most >= need:
        size = "no bound" if most == UNLIMITED else human(most, down=True)
        yield ok("cgroup.memory", f"version {groups.version}: {size} along the whole path")
    for path, limit in _bounds(scene.host, groups, "memory.high") if groups.version == 2 else ():
        if limit < need:
            said = f"{path}/memory.high is {human(limit, down=True)}"
            wanted = f"{human(need)}, or the kernel slows the daemon down as dram fills"
            yield warn("cgroup.memory_high", said, wanted, f"MemoryHigh={need} in its unit")


def processes(scene: Scene) -> Iterator[Finding]:
    """Compare every bound of threads with those that the daemon starts."""
    groups = _groups_of(scene.host, "pids")
    need = 0 if scene.running else _THREADS + _THREADS_PER_DIRECTORY * len(scene.plan.data)
    narrow = False
    for path, limit in _bounds(scene.host, groups, "pids.max"):
        left = limit - _number(scene.host, f"{path}/pids.current")
        if left < need:
            narrow = True
            said = f"{path}/pids.max is {limit}, and {left} are left"
            wanted = f"{need} threads"
            yield fail("cgroup.pids", said, wanted, f"TasksMax={limit + need} in its unit")
    if not narrow:
        yield ok("cgroup.pids", "room for the daemon's threads along the whole path")


def io(scene: Scene) -> Iterator[Finding]:
    """Say which drives of the data directories are slowed down by a bound."""
    if not scene.plan.data:
        return
    mounts = mounts_of(scene.host)
    disks: dict[str, Path] = {}
    for path in scene.plan.data:
        mount = mount_under(mounts, nearest(path))
        disk = disk_of(scene.host, mount.device)
        if disk is not None:
            disks[disk.number] = path
    groups = _groups_of(scene.host, "io", "blkio")
    count = 0
    for number, path, where, bound in _io_bounds(scene.host, groups, disks):
        count += 1
        fix = f"IOReadBandwidthMax= and IOWriteBandwidthMax= for {number} in the unit of {where}"
        said = f"{where} bounds the drive of {path}: {bound}"
        yield warn("cgroup.io", said, "no bound, or --ssd-daily-writes instead", fix)
    if not count:
        yield ok("cgroup.io", "no bound on the drives of the data directories")


def _io_bounds(
    host: Host, groups: _Groups, disks: dict[str, Path]
) -> Iterator[tuple[str, Path, PurePosixPath, str]]:
    names = _IO_NAMES[groups.version]
    for directory, name in ((d, n) for d in groups.directories for n in names):
        for line in _lines(host, directory / name):
            number, _, bound = line.partition(" ")
            named = " ".join(w for w in bound.split() if not w.endswith("=max"))
            if number in disks and named:
                yield number, disks[number], directory, f"{name} {named}"


def _lines(host: Host, path: PurePosixPath) -> list[str]:
    return host.text(str(path)).splitlines() if host.has(str(path)) else []


def _number(host: Host, path: str) -> int:
    return host.number(path) if host.has(path) else 0


def _bounds(host: Host, groups: _Groups, name: str) -> Iterator[tuple[PurePosixPath, int]]:
    """Yield every group on the path that has a bound, and it; the root group has no such file."""
    for directory in groups.directories:
        for word in _lines(host, directory / name)[:1]:
            if word.strip().isdigit() and int(word) < _V1_UNLIMITED:
                yield directory, int(word)


def _groups_of(host: Host, controller: str, old_name: str = "") -> _Groups:
    """Return the groups of a controller, version 1 where it is mounted as such; raise Unseen."""
    unified, old_name = None, old_name or controller
    for line in host.of_process("cgroup").splitlines():
        _, names, path = (line.split(":", 2) + ["", ""])[:3]
        if old_name in names.split(","):
            return _Groups(1, _directories(_v1_mount(host, old_name), path))
        unified = path if names == "" else unified
    if unified is None:
        raise Unseen(f"/proc/{host.process}/cgroup: no group for {controller}")
    for mount in mounts_of(host):
        if mount.kind == "cgroup2":
            return _Groups(2, _directories(mount, unified))
    raise Unseen("mountinfo: control groups are not mounted")


def _v1_mount(host: Host, controller: str) -> Mount:
    for mount in mounts_of(host):
        if mount.kind == "cgroup" and controller in mount.options:
            return mount
    raise Unseen(f"mountinfo: the control groups of {controller} are not mounted")


def _directories(mount: Mount, path: str) -> tuple[PurePosixPath, ...]:
    """Return a group's directory and all above it that can be seen from here."""
    group, root = PurePosixPath(path), PurePosixPath(mount.root)
    below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    # A group outside of what is mounted starts with `..`: only the mount's own is to be seen.
    parts = () if ".." in below.parts else below.parts
    point = PurePosixPath(mount.point)
    return tuple(point.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))

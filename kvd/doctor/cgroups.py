"""Bounds of control groups, version 1 and 2, along the whole path from the daemon's to the root."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kvd.doctor.devices import disk_of
from kvd.doctor.findings import Finding, fail, ok, warn
from kvd.doctor.places import nearest
from kvd.doctor.plan import Scene
from kvd.host.groups import MEMORY_FILES, Groups, bounds, groups_of, lines_of
from kvd.host.mounts import mount_under, mounts_of
from kvd.host.reading import UNLIMITED, Host
from kvd.units import human

_IO_NAMES = {
    1: ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
    2: ("io.max",),
}
_THREADS, _THREADS_PER_DIRECTORY = 64, 24


def memory(scene: Scene) -> Iterator[Finding]:
    """Compare every bound of memory with dram: memfds count in the group that touches them."""
    groups = groups_of(scene.host, "memory")
    hard = MEMORY_FILES[groups.version].limit
    dram, need = scene.plan.dram_bytes, scene.plan.memory_bytes
    most = UNLIMITED
    for path, limit in bounds(scene.host, groups, hard):
        most = min(most, limit)
        if limit < need:
            said = f"{path}/{hard} is {human(limit, down=True)}, dram is {human(dram)}"
            wanted = f"{human(need)}: dram counts there, and {human(need - dram)} for the daemon"
            fix = f"MemoryMax={need} in the unit of {path} (in a container: its memory limit)"
            yield (fail if limit < dram else warn)("cgroup.memory", said, wanted, fix)
    if most >= need:
        size = "no bound" if most == UNLIMITED else human(most, down=True)
        yield ok("cgroup.memory", f"version {groups.version}: {size} along the whole path")
    for path, limit in bounds(scene.host, groups, "memory.high") if groups.version == 2 else ():
        if limit < need:
            said = f"{path}/memory.high is {human(limit, down=True)}"
            wanted = f"{human(need)}, or the kernel slows the daemon down as dram fills"
            yield warn("cgroup.memory_high", said, wanted, f"MemoryHigh={need} in its unit")


def processes(scene: Scene) -> Iterator[Finding]:
    """Compare every bound of threads with those that the daemon starts."""
    groups = groups_of(scene.host, "pids")
    need = 0 if scene.running else _THREADS + _THREADS_PER_DIRECTORY * len(scene.plan.data)
    narrow = False
    for path, limit in bounds(scene.host, groups, "pids.max"):
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
    groups = groups_of(scene.host, "io", "blkio")
    count = 0
    for number, path, where, bound in _io_bounds(scene.host, groups, disks):
        count += 1
        fix = f"IOReadBandwidthMax= and IOWriteBandwidthMax= for {number} in the unit of {where}"
        said = f"{where} bounds the drive of {path}: {bound}"
        yield warn("cgroup.io", said, "no bound, or --ssd-daily-writes instead", fix)
    if not count:
        yield ok("cgroup.io", "no bound on the drives of the data directories")


def _io_bounds(
    host: Host, groups: Groups, disks: dict[str, Path]
) -> Iterator[tuple[str, Path, PurePosixPath, str]]:
    names = _IO_NAMES[groups.version]
    for directory, name in ((d, n) for d in groups.directories for n in names):
        for line in lines_of(host, directory / name):
            number, _, bound = line.partition(" ")
            named = " ".join(w for w in bound.split() if not w.endswith("=max"))
            if number in disks and named:
                yield number, disks[number], directory, f"{name} {named}"


def _number(host: Host, path: str) -> int:
    return host.number(path) if host.has(path) else 0

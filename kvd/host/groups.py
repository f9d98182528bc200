"""Control groups, version 1 and 2: the directories of a process's group and of all above it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from kvd.host.mounts import Mount, mounts_of
from kvd.host.reading import Host, Unseen

_V1_UNLIMITED = 1 << 60  # It writes the largest multiple of a page.


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """Names in a group: its bound, what is used, and in memory.stat what the kernel gives back.

    Given back when it is needed are pages of files; those of memfds are not among them.
    """

    limit: str
    usage: str
    given_back: tuple[str, str]


MEMORY_FILES = {
    1: MemoryFiles(
        "memory.limit_in_bytes", "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
    2: MemoryFiles("memory.max", "memory.current", ("inactive_file", "active_file")),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Groups:
    """The directories of the process's group for one controller and of all above it."""

    version: int
    directories: tuple[PurePosixPath, ...]


def lines_of(host: Host, path: PurePosixPath) -> list[str]:
    return host.text(str(path)).splitlines() if host.has(str(path)) else []


def bounds(host: Host, groups: Groups, name: str) -> Iterator[tuple[PurePosixPath, int]]:
    """Yield every group on the path that has a bound, and it; the root group has no such file."""
    for directory in groups.directories:
        for word in lines_of(host, directory / name)[:1]:
            if word.strip().isdigit() and int(word) < _V1_UNLIMITED:
                yield directory, int(word)


def groups_of(host: Host, controller: str, old_name: str = "") -> Groups:
    """Return the groups of a controller, version 1 where it is mounted as such; raise Unseen."""
    unified, old_name = None, old_name or controller
    for line in host.of_process("cgroup").splitlines():
        _, names, path = (line.split(":", 2) + ["", ""])[:3]
        if old_name in names.split(","):
            return Groups(1, _directories(_v1_mount(host, old_name), path))
        unified = path if names == "" else unified
    if unified is None:
        raise Unseen(f"/proc/{host.process}/cgroup: no group for {controller}")
    for mount in mounts_of(host):
        if mount.kind == "cgroup2":
            return Groups(2, _directories(mount, unified))
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

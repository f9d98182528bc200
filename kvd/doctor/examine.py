"""All probes in the order they are told, and what becomes of one that cannot look."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from kvd.doctor import cgroups, doors, gpu, memory, people, remote, software, storage
from kvd.doctor.findings import Finding, note
from kvd.doctor.plan import Plan, Scene
from kvd.host.reading import Host, Unseen

Probe = Callable[[Scene], Iterable[Finding]]

# The name is what is said to be unseen when the probe cannot look.
PROBES: tuple[tuple[str, Probe], ...] = (
    ("memory.total", memory.size),
    ("memory.locked", memory.locked),
    ("memory.huge_pages", memory.huge_pages),
    ("memory.shm", memory.shared),
    ("memory.overcommit", memory.overcommit),
    ("memory.maps", memory.maps),
    ("memory.swap", memory.swap),
    ("memory.numa", memory.nodes),
    ("limits.files", memory.descriptors),
    ("cgroup.memory", cgroups.memory),
    ("cgroup.pids", cgroups.processes),
    ("cgroup.io", cgroups.io),
    ("kernel.version", software.kernel),
    ("kernel.memfd", software.memfds),
    ("kernel.clock", software.clock),
    ("data.tier", storage.tier),
    ("data.access", storage.access),
    ("data.file_system", storage.file_systems),
    ("data.direct", storage.direct),
    ("data.room", storage.room),
    ("data.drive", storage.drives),
    ("users.daemon", people.users),
    ("runtime.directory", people.directory),
    ("runtime.path_length", people.lengths),
    ("runtime.daemon", doors.daemon),
    ("runtime.sockets", doors.sockets),
    ("ports.tcp", doors.ports),
    ("tcp.files", people.files),
    ("tcp.security", remote.security),
    ("gpu.driver", gpu.driver),
    ("gpu.storage", gpu.storage),
    ("gpu.packages", gpu.packages),
    ("software.packages", software.packages),
    ("software.kernels", software.kernels),
    ("software.systemd", software.service),
)
DEEP: tuple[tuple[str, Probe], ...] = (("gpu.imports", gpu.imports),)


def scene_of(plan: Plan, host: Host, uid: int | None = None) -> Scene:
    """Return what is looked at: the daemon's process where one runs, else this one.

    `uid` is the daemon's when it would not be the user who looks.
    """
    try:
        running = doors.running_daemon(host, plan)
    except Unseen:
        running = 0
    if running and host.has(f"proc/{running}"):
        owner = host.path(f"proc/{running}").stat().st_uid
        return Scene(replace(host, process=str(running)), plan, owner, running)
    return Scene(host, plan, os.geteuid() if uid is None else uid, running)


def examine(scene: Scene, probes: Sequence[tuple[str, Probe]] = PROBES) -> Iterator[Finding]:
    """Yield what all probes find."""
    for name, probe in probes:
        try:
            yield from probe(scene)
        except Unseen as unseen:
            yield note(name, f"could not be looked at: {unseen}")

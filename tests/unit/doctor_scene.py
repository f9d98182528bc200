"""A host as a tree of files, everything on it as it should be until a test says otherwise."""

from dataclasses import replace
from pathlib import Path

from kvd.doctor.findings import Finding, Level
from kvd.doctor.plan import Plan, Scene
from kvd.host.reading import Host
from kvd.limits import GIB, MIB

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             96363                96363                processes
Max open files            {files}                {files}               files
Max locked memory         {locked}              {locked}              bytes
"""
MEMINFO = """\
MemTotal:       {total} kB
MemAvailable:   {available} kB
SwapTotal:      {swap} kB
CommitLimit:    {limit} kB
Committed_AS:   {promised} kB
HugePages_Total: {huge}
Hugepagesize:   2048 kB
"""
DEVICE = "259:1"
FILES = {
    "proc/self/limits": LIMITS.format(files=1048576, locked="unlimited"),
    "proc/self/cgroup": "0::/system.slice/kvd.service\n",
    "proc/locks": "",
    "proc/net/unix": "Num       RefCount Protocol Flags    Type St Inode Path\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/vm/max_map_count": "1048576\n",
    "proc/sys/vm/memfd_noexec": "0\n",
    "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled":
        "always within_size [advise] never deny force\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemFree: 33554432 kB\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/fs/cgroup/pids.max": "max\n",
    "sys/fs/cgroup/system.slice/memory.max": "max\n",
    "sys/fs/cgroup/system.slice/kvd.service/memory.max": "max\n",
    "sys/fs/cgroup/system.slice/kvd.service/memory.high": "max\n",
    "sys/fs/cgroup/system.slice/kvd.service/pids.max": "4096\n",
    "sys/fs/cgroup/system.slice/kvd.service/pids.current": "20\n",
    "sys/fs/cgroup/system.slice/kvd.service/io.max": "",
    "sys/devices/nvme0n1/dev": "259:0\n",
    "sys/devices/nvme0n1/queue/rotational": "0\n",
    "sys/devices/nvme0n1/queue/scheduler": "[none] mq-deadline kyber\n",
    "sys/devices/nvme0n1/queue/logical_block_size": "512\n",
    "sys/devices/nvme0n1/nvme0n1p1/partition": "1\n",
    "sys/devices/nvme0n1/nvme0n1p1/dev": f"{DEVICE}\n",
    "run/systemd/system/.keep": "",
    "etc/systemd/system/kvd.service": "[Service]\n",
}  # fmt: skip


def meminfo(total=64 * GIB, available=48 * GIB, swap=0, huge=0, **commit):
    """Return /proc/meminfo; sizes in bytes, `huge` in pages of 2 MiB."""
    commit = {"limit": 48 * GIB, "promised": 4 * GIB} | commit
    sizes = {"total": total, "available": available, "swap": swap, **commit}
    return MEMINFO.format(huge=huge, **{name: size // 1024 for name, size in sizes.items()})


def mountinfo(*mounts: tuple) -> str:
    """Return mountinfo of (point, kind, options, device); what is not said is a good ext4."""
    lines = ["22 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw",
             "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"]  # fmt: skip
    for number, (point, *more) in enumerate(mounts, 40):
        kind, options, device = (*more, *("ext4", "rw", DEVICE)[len(more) :])
        name = str(point).replace(" ", "\\040")
        lines.append(f"{number} 22 {device} / {name} {options} - {kind} source rw")
    return "\n".join(lines) + "\n"


class Hosts:
    """Makes hosts under a directory of the test, and asks one probe at a time."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "host"
        self.plan = Plan(
            directory / "run", ("default",), 4 * GIB, 64 * MIB, frozenset({0, 1000}),
            data=(directory / "data",), ssd_bytes=1 * GIB,
        )  # fmt: skip
        (directory / "data").mkdir(mode=0o700)
        self.files = {**FILES, "proc/meminfo": meminfo(), "proc/self/mountinfo": mountinfo()}
        self.uid = 990

    def write(self, files: dict[str, str | None]) -> None:
        """Change files of the host, or take them away with None."""
        self.files |= files

    def scene(self, **changes) -> Scene:
        for name, text in self.files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        block = self.root / "sys/dev/block"
        block.mkdir(parents=True, exist_ok=True)
        for number, place in (("259:0", "nvme0n1"), (DEVICE, "nvme0n1/nvme0n1p1")):
            (block / number).unlink(missing_ok=True)
            (block / number).symlink_to(f"../../devices/{place}")
        scene = Scene(Host(self.root), self.plan, self.uid)
        return replace(scene, **changes)

    def ask(self, probe, *arguments, **changes) -> list[Finding]:
        return list(probe(self.scene(**changes), *arguments))


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    """Return findings by name, of which each is there once."""
    found = {finding.check: finding for finding in findings}
    assert len(found) == len(findings), findings
    return found


def all_ok(findings: list[Finding]) -> bool:
    """Return whether there is something, and all of it is ok and asks for nothing."""
    return bool(findings) and all(
        f.level == Level.OK and f.found and not f.need and not f.fix for f in findings
    )


def is_told(finding: Finding, level: Level, *words: str) -> bool:
    """Return whether a finding is of a level, has a line that mends it, and says all words."""
    text = f"{finding.found} | {finding.need} | {finding.fix}"
    assert finding.level == level, finding
    assert "\n" not in text and finding.found, finding
    assert all(word in text for word in words), (words, finding)
    return True

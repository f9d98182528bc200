"""Data directories: whose they are, on what file system and drive, with how much room.

Writes one file of a page in each, to see whether O_DIRECT works, and removes it.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kvd.daemon.budget import default_bytes, divide, look
from kvd.disk.files import OsFiles, read_page, write_page
from kvd.doctor.devices import Disk, disk_of
from kvd.doctor.findings import Finding, fail, note, ok, warn
from kvd.doctor.places import may_write, nearest, owned
from kvd.doctor.plan import Scene
from kvd.errors import KvdError
from kvd.host.mounts import Mount, mount_under, mounts_of
from kvd.host.reading import Unseen
from kvd.limits import PAGE_BYTES
from kvd.units import human

_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "lustre", "glusterfs")
_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_LAYERED = ("overlay", "aufs")
_UNSYNCED = ("nobarrier", "barrier=0", "data=writeback")  # Costs durability at a power cut.
_VIRTUAL = ("vd", "xvd")  # What they say of themselves means little.
_QUICK_SCHEDULERS = ("none", "mq-deadline", "kyber", "noop", "deadline", "")


def tier(scene: Scene) -> Iterator[Finding]:
    """Say that there is no disk tier, where there is none."""
    if not scene.plan.data:
        yield ok("data.tier", "no disk tier is configured (--data, --ssd)")


def access(scene: Scene) -> Iterator[Finding]:
    """See whether the daemon can make or use each directory, and whether others can read it."""
    for path in scene.plan.data:
        yield _access(path, scene.uid)


def _access(path: Path, uid: int) -> Finding:
    there = nearest(path)
    if not there.is_dir():
        return fail("data.access", f"{there} is no directory", "one", f"--data other than {path}")
    said = f"{path} " + ("is there" if there == Path(os.path.realpath(path)) else "can be made")
    if not may_write(there, uid):
        fix = f"install -d -m 0700 -o {uid} {path}"
        return fail("data.access", f"{there} is {owned(there)}", f"uid {uid} writes there", fix)
    if path.is_dir() and path.stat().st_uid != uid:
        fix = f"chown -R {uid} {path}"
        return warn("data.access", f"{path} is {owned(path)}", f"one of uid {uid}, the daemon", fix)
    if path.is_dir() and path.stat().st_mode & 0o077:
        wanted = "mode 700: segments hold what tenants computed"
        return warn("data.access", f"{path} is {owned(path)}", wanted, f"chmod 0700 {path}")
    return ok("data.access", said)


def file_systems(scene: Scene) -> Iterator[Finding]:
    """Judge what each directory lies on."""
    mounts = mounts_of(scene.host) if scene.plan.data else []
    for path in scene.plan.data:
        mount = mount_under(mounts, nearest(path))
        yield _kind(path, mount)
        yield from _options(path, mount)


def _kind(path: Path, mount: Mount) -> Finding:
    said = f"{path} is on {mount.kind} at {mount.point}"
    fix = f"mount a local drive at {path}, or --data on one"
    if mount.kind in _LAYERED:
        wanted = "a volume: what a container's own layer holds is gone with it, and slow to write"
        return warn("data.file_system", said, wanted, fix)
    if mount.kind in _MEMORY:
        wanted = "a drive: this is memory, gone with a restart and counted beside dram"
        return warn("data.file_system", said, wanted, fix)
    if mount.kind in _REMOTE or mount.kind.startswith("fuse"):
        wanted = "a local drive: over a network a lock or a sync may not mean what it says"
        return warn("data.file_system", said, wanted, fix)
    return ok("data.file_system", said)


def _options(path: Path, mount: Mount) -> Iterator[Finding]:
    options = mount.options
    said = f"{mount.point} is mounted "
    if "ro" in options:
        fix = f"mount -o remount,rw {mount.point}"
        yield fail("data.options", f"{said}ro", f"rw for {path}", fix)
    elif unsynced := [each for each in _UNSYNCED if each in options]:
        wanted = "without: a durable put may not survive a power cut"
        fix = f"take {','.join(unsynced)} out of the options of {mount.point} in /etc/fstab"
        yield warn("data.options", said + ",".join(unsynced), wanted, fix)
    elif "sync" in options:
        fix = f"mount -o remount,async {mount.point}"
        yield warn("data.options", f"{said}sync", "async: kvd syncs once a batch", fix)
    else:
        yield ok("data.options", said + ",".join(sorted(options & {"rw", "noatime", "relatime"})))


def direct(scene: Scene) -> Iterator[Finding]:
    """Write and read a page with O_DIRECT, and give a file blocks, in each directory."""
    for path in scene.plan.data:
        there = nearest(path)
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            said = f"{there}: uid {os.geteuid()} cannot write there, so it was not tried"
            mended = os.geteuid() in (scene.uid, 0)
            fix = "kvd doctor, when it can be" if mended else f"kvd doctor as uid {scene.uid} or 0"
            yield note("data.direct", said, "", fix)
            continue
        failure = _failure_of(_write_direct, there)
        if failure:
            wanted = "it: without, reads and writes go through the page cache and cost more of all"
            fix = f"--data on ext4 or xfs instead of {path}"
            yield warn("data.direct", f"{there}: O_DIRECT fails: {failure}", wanted, fix)
        else:
            yield ok("data.direct", f"{there}: a page was written and read with O_DIRECT")
        failure = _failure_of(_allocate, there)
        if failure:
            wanted = "it: without, other programs can take the space of segments that exist"
            fix = f"--data on ext4 or xfs instead of {path}"
            yield warn("data.allocate", f"{there}: fallocate fails: {failure}", wanted, fix)


def _failure_of(attempt: Callable[[Path], None], directory: Path) -> str:
    try:
        attempt(directory)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _write_direct(directory: Path) -> None:
    files = OsFiles()
    with tempfile.NamedTemporaryFile(prefix=".kvd-doctor-", dir=directory) as made:
        descriptor = files.open(made.name, os.O_RDWR | os.O_DIRECT)
        try:
            data = os.urandom(PAGE_BYTES)
            write_page(files, descriptor, data)
            if read_page(files, descriptor) != data:
                raise OSError(0, "other bytes were read back than written")
        finally:
            os.close(descriptor)


def _allocate(directory: Path) -> None:
    with tempfile.NamedTemporaryFile(prefix=".kvd-doctor-", dir=directory) as made:
        OsFiles().allocate(made.fileno(), PAGE_BYTES)


def room(scene: Scene) -> Iterator[Finding]:
    """Divide the budget as the daemon will, and compare it with what is free."""
    paths = scene.plan.data
    if not paths:
        return
    try:
        places = look(paths)
        size_bytes = scene.plan.ssd_bytes or default_bytes(places)
        budget = divide(places, size_bytes)
    except KvdError as error:
        yield fail("data.room", error.message, "a budget that fits", "--ssd as said there")
        return
    except OSError as error:
        raise Unseen(f"{error.filename}: {error.strerror}") from None
    left = places.room_bytes - size_bytes
    said = (
        f"ssd is {human(size_bytes)}, {human(places.room_bytes, down=True)} are free or kvd's: "
        f"{budget.segments_max} segments of {human(budget.segment_bytes)}"
    )
    spare = places.spare_bytes * len(places.file_systems)
    if left < 0:
        fix = f"free {human(-left)} there, or --ssd {places.room_bytes // PAGE_BYTES * PAGE_BYTES}"
        yield warn("data.room", said, "all of it: kvd uses what there is meanwhile", fix)
    elif left < spare:
        wanted = f"{human(spare)} besides: kvd gives segments up when others have less than that"
        yield warn("data.room", said, wanted, f"--ssd {max(places.room_bytes - spare, 0)}")
    else:
        yield ok("data.room", said)


def drives(scene: Scene) -> Iterator[Finding]:
    """Say what drive is under each directory, and which share one."""
    if not scene.plan.data:
        return
    mounts, owners = mounts_of(scene.host), {}
    for path in scene.plan.data:
        mount = mount_under(mounts, nearest(path))
        disk = disk_of(scene.host, mount.device)
        for drive in disk.drives if disk else (mount.device,):
            owners.setdefault(drive, []).append(path)
        if disk is None:
            yield note("data.drive", f"{path}: {mount.source} has no drive that can be looked at")
        else:
            yield _drive(path, disk)
    for drive, paths in owners.items():
        if len(paths) > 1:
            said = f"{' and '.join(map(str, paths))} are on one drive, {drive}"
            wanted = "one directory for each drive: two of them on one are no faster"
            yield warn("data.shared_drive", said, wanted, f"--data without {paths[-1]}")


def _drive(path: Path, disk: Disk) -> Finding:
    names = ", ".join(disk.drives)
    said = f"{path}: {names}, scheduler {disk.scheduler or 'none'}"
    if disk.block_bytes > PAGE_BYTES:
        wanted = f"blocks of at most {PAGE_BYTES} bytes for O_DIRECT"
        found = f"{said}, blocks of {disk.block_bytes} bytes"
        return warn("data.drive", found, wanted, f"mkfs on a drive with smaller ones for {path}")
    if disk.rotational and disk.name.startswith(_VIRTUAL):
        wanted = "to know what is under it: seeks would make a fetch slower than recomputing"
        fix = f"fio --name=kvd --rw=randread --bs=64k --direct=1 --size=1G --directory={path}"
        return note("data.drive", f"{said}, a virtual drive that says it rotates", wanted, fix)
    if disk.rotational:
        wanted = "a solid-state drive: seeks make a fetch slower than recomputing"
        return warn("data.drive", f"{said}, rotational", wanted, f"--data on NVMe, not {path}")
    if disk.scheduler not in _QUICK_SCHEDULERS:
        fix = f"echo none > /sys/block/{disk.name}/queue/scheduler"
        return note("data.drive", said, "none or mq-deadline: less work for each read", fix)
    kind = "NVMe" if disk.name.startswith("nvme") else "solid state, or so it says"
    return ok("data.drive", f"{said}, {kind}")

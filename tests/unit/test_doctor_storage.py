"""What the doctor says of data directories: real ones, on drives and mounts made of files."""

import errno
import os
from dataclasses import replace

import pytest

from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.doctor import storage
from kvd.doctor.findings import Level
from kvd.host.reading import Unseen
from kvd.limits import GIB, MIB
from tests.unit.doctor_scene import DEVICE, Hosts, all_ok, by_check, is_told, mountinfo

DRIVE = "sys/devices/nvme0n1"


@pytest.fixture
def hosts(tmp_path):
    made = Hosts(tmp_path)
    made.uid = os.geteuid()
    return made


@pytest.fixture
def data(hosts):
    return hosts.plan.data[0]


def lie_on(hosts, *mount):
    hosts.write({"proc/self/mountinfo": mountinfo((hosts.plan.data[0], *mount))})


PROBES = [
    storage.access, storage.file_systems, storage.direct, storage.room, storage.drives,
]  # fmt: skip


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_a_good_directory_is_ok_and_stays_as_it_is(hosts, data, probe):
    assert all_ok(hosts.ask(probe)) and os.listdir(data) == []


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_a_directory_to_be_made_is_ok_and_is_not_made(hosts, data, probe):
    data.rmdir()
    hosts.plan = replace(hosts.plan, data=(data / "deep" / "er",))
    assert all_ok(hosts.ask(probe)) and not data.exists()


def test_without_a_tier_nothing_is_looked_at(hosts):
    assert hosts.ask(storage.tier) == []
    hosts.plan, hosts.files = replace(hosts.plan, data=()), {}
    assert all_ok(hosts.ask(storage.tier))
    assert [hosts.ask(probe) for probe in PROBES] == [[]] * len(PROBES)


# ---- who may write ----


def test_a_file_in_the_way(hosts, data):
    data.rmdir()
    data.write_text("")
    assert is_told(hosts.ask(storage.access)[0], Level.FAIL, f"{data} is no directory")


def test_a_directory_that_another_user_owns(hosts, data):
    hosts.uid = os.geteuid() + 1
    [found] = hosts.ask(storage.access)
    words = (f"uid {os.geteuid()}, mode 700", f"install -d -m 0700 -o {hosts.uid} {data}")
    assert is_told(found, Level.FAIL, *words)
    data.chmod(0o777)
    [found] = hosts.ask(storage.access)
    assert is_told(found, Level.WARN, f"chown -R {hosts.uid} {data}")


def test_a_directory_that_others_read(hosts, data):
    data.chmod(0o755)
    assert is_told(hosts.ask(storage.access)[0], Level.WARN, "mode 755", f"chmod 0700 {data}")


# ---- file systems ----


@pytest.mark.parametrize(
    ("kind", "word"), [("overlay", "volume"), ("tmpfs", "memory"), ("nfs4", "network"),
                       ("fuse.s3fs", "network")],
)  # fmt: skip
def test_file_systems_that_are_no_drive(hosts, data, kind, word):
    lie_on(hosts, kind)
    found = by_check(hosts.ask(storage.file_systems))["data.file_system"]
    assert is_told(found, Level.WARN, f"on {kind}", str(data), word, "--data on one")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs"])
def test_file_systems_of_drives_are_ok(hosts, kind):
    lie_on(hosts, kind)
    assert all_ok(hosts.ask(storage.file_systems))


@pytest.mark.parametrize(
    ("options", "level", "words"),
    [
        ("ro,relatime", Level.FAIL, ("ro", "mount -o remount,rw")),
        ("rw,nobarrier", Level.WARN, ("nobarrier", "power cut", "/etc/fstab")),
        ("rw,data=writeback,barrier=0", Level.WARN, ("barrier=0,data=writeback", "/etc/fstab")),
        ("rw,sync", Level.WARN, ("sync", "remount,async")),
    ],
)
def test_mount_options(hosts, options, level, words):
    lie_on(hosts, "ext4", options)
    found = by_check(hosts.ask(storage.file_systems))["data.options"]
    assert is_told(found, level, *words)


def test_the_innermost_and_latest_mount_counts(hosts, data):
    hosts.write({
        "proc/self/mountinfo": mountinfo((data.parent, "nfs"), (data, "tmpfs"), (data, "xfs"))
    })  # fmt: skip
    found = by_check(hosts.ask(storage.file_systems))["data.file_system"]
    assert f"{data} is on xfs at {data}" == found.found


def test_mount_points_with_spaces(hosts, data):
    place = data / "a b"
    place.mkdir(mode=0o700)
    hosts.plan = replace(hosts.plan, data=(place,))
    hosts.write({"proc/self/mountinfo": mountinfo((place, "nfs"))})
    assert hosts.ask(storage.file_systems)[0].level == Level.WARN


def test_mounts_that_cannot_be_read_are_unseen(hosts):
    hosts.write({"proc/self/mountinfo": None})
    with pytest.raises(Unseen, match="mountinfo: No such file"):
        hosts.ask(storage.file_systems)
    hosts.write({"proc/self/mountinfo": "31 23 0:28 / /sys rw - sysfs sysfs rw\n"})
    with pytest.raises(Unseen, match="no mount holds"):
        hosts.ask(storage.drives)


# ---- O_DIRECT, fallocate ----


def test_no_direct_io(hosts, data, monkeypatch):
    real = os.open

    def refuse(path, flags, *more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    [found] = hosts.ask(storage.direct)
    assert is_told(found, Level.WARN, str(data), "Invalid argument", "page cache", "ext4 or xfs")
    assert os.listdir(data) == []


def test_other_bytes_than_written(hosts, data, monkeypatch):
    monkeypatch.setattr(storage, "read_page", lambda files, descriptor: bytes(4096))
    assert is_told(hosts.ask(storage.direct)[0], Level.WARN, "other bytes were read back")
    assert os.listdir(data) == []


def test_no_fallocate(hosts, monkeypatch):
    def refuse(self, descriptor, size_bytes):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(OsFiles, "allocate", refuse)
    found = by_check(hosts.ask(storage.direct))
    assert all_ok([found["data.direct"]])
    assert is_told(found["data.allocate"], Level.WARN, "not supported", "other programs")


def test_what_may_not_be_written_is_not_tried(hosts, data, monkeypatch):
    monkeypatch.setattr(storage.os, "access", lambda path, mode: False)
    assert is_told(
        hosts.ask(storage.direct)[0], Level.NOTE, "not tried", str(data), "when it can be"
    )
    monkeypatch.setattr(storage.os, "geteuid", lambda: 7)
    assert is_told(hosts.ask(storage.direct)[0], Level.NOTE, "uid 7", f"as uid {hosts.uid} or 0")


# ---- room ----


def test_a_budget_that_is_too_small(hosts):
    hosts.plan = replace(hosts.plan, ssd_bytes=2 * MIB)
    assert is_told(hosts.ask(storage.room)[0], Level.FAIL, "2MiB", "are needed")


def test_a_budget_larger_than_the_file_system(hosts):
    hosts.plan = replace(hosts.plan, ssd_bytes=1 << 50)
    found = hosts.ask(storage.room)[0]
    assert is_told(found, Level.FAIL, f"{1024 * 1024}GiB", "can hold", "lower --ssd")


def test_a_set_that_lost_room_to_others(hosts, data):
    for directory in open_directories([data], MIB, OsFiles()):
        directory.release()
    hosts.plan = replace(hosts.plan, ssd_bytes=1 << 50)
    assert is_told(hosts.ask(storage.room)[0], Level.WARN, "free", "--ssd")


def test_a_budget_that_leaves_nothing_to_others(hosts, monkeypatch):
    real = storage.look

    def look(paths):
        places = real(paths)
        systems = tuple(replace(s, free_bytes=GIB + 4096) for s in places.file_systems)
        return replace(places, file_systems=systems)

    monkeypatch.setattr(storage, "look", look)
    found = hosts.ask(storage.room)[0]
    assert is_told(found, Level.WARN, "besides", "--ssd")


def test_without_a_budget_the_default_is_divided(hosts):
    hosts.plan = replace(hosts.plan, ssd_bytes=None)
    assert all_ok(hosts.ask(storage.room))


def test_a_file_system_that_does_not_answer_is_unseen(hosts, monkeypatch):
    def fail(paths):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(paths[0]))

    monkeypatch.setattr(storage, "look", fail)
    with pytest.raises(Unseen, match="Input/output error"):
        hosts.ask(storage.room)


# ---- drives ----


def test_a_partition_is_named_by_its_drive(hosts, data):
    [found] = hosts.ask(storage.drives)
    assert found.found == f"{data}: nvme0n1, scheduler none, NVMe"


@pytest.mark.parametrize(
    ("files", "level", "words"),
    [
        ({f"{DRIVE}/queue/rotational": "1\n"}, Level.WARN, ("rotational", "NVMe")),
        ({f"{DRIVE}/queue/scheduler": "none [bfq]\n"}, Level.NOTE,
         ("bfq", "echo none > /sys/block/nvme0n1/queue/scheduler")),
        ({f"{DRIVE}/queue/logical_block_size": "16384\n"}, Level.WARN, ("16384", "4096")),
    ],
)  # fmt: skip
def test_drives_that_are_slow(hosts, files, level, words):
    hosts.write(files)
    assert is_told(hosts.ask(storage.drives)[0], level, *words)


def test_a_virtual_drive_that_says_it_rotates(hosts):
    lie_on(hosts, "ext4", "rw", "254:0")
    scene = hosts.scene()
    drive = scene.host.path("sys/devices/vda")
    (drive / "queue").mkdir(parents=True)
    (drive / "queue/rotational").write_text("1\n")
    scene.host.path("sys/dev/block/254:0").symlink_to("../../devices/vda")
    assert is_told(list(storage.drives(scene))[0], Level.NOTE, "virtual drive", "fio ")


def test_a_file_system_without_a_drive(hosts):
    lie_on(hosts, "zfs", "rw", "0:99")
    assert is_told(hosts.ask(storage.drives)[0], Level.NOTE, "no drive")


def test_a_raid_is_named_by_its_drives(hosts):
    lie_on(hosts, "ext4", "rw", "9:0")
    scene = hosts.scene()
    raid = scene.host.path("sys/devices/md0")
    (raid / "slaves").mkdir(parents=True)
    (raid / "dev").write_text("9:0\n")
    (raid / "slaves/nvme0n1p1").symlink_to("../../nvme0n1/nvme0n1p1")
    scene.host.path("sys/dev/block/9:0").symlink_to("../../devices/md0")
    [found] = storage.drives(scene)
    assert ": nvme0n1, scheduler none" in found.found


def test_two_directories_on_one_drive(hosts, data, tmp_path):
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    hosts.plan = replace(hosts.plan, data=(data, other))
    found = by_check(hosts.ask(storage.drives)[2:])["data.shared_drive"]
    words = (f"{data} and {other}", "nvme0n1", f"--data without {other}")
    assert is_told(found, Level.WARN, *words)
    hosts.write({"proc/self/mountinfo": mountinfo((other, "ext4", "rw", "259:5"))})
    scene = hosts.scene()
    drive = scene.host.path("sys/devices/nvme1n1")
    drive.mkdir()
    (drive / "dev").write_text("259:5\n")
    scene.host.path("sys/dev/block/259:5").symlink_to("../../devices/nvme1n1")
    assert all_ok(list(storage.drives(scene))) and DEVICE != "259:5"

"""What the doctor says of control groups: every bound on the way up, in both versions."""

from dataclasses import replace

import pytest

from kvd.doctor import cgroups
from kvd.doctor.findings import Level
from kvd.host.reading import Unseen
from kvd.limits import GIB, MIB
from tests.unit.doctor_scene import Hosts, all_ok, is_told, mountinfo

V2 = "sys/fs/cgroup"
SLICE, SERVICE = f"{V2}/system.slice", f"{V2}/system.slice/kvd.service"
V1_MOUNTS = """\
22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
37 31 0:34 /docker/17 /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V1_GROUPS = "9:name=systemd:/\n8:pids:/\n7:blkio:/docker/17\n4:memory:/jobs/a\n0::/\n"
PROBES = [cgroups.memory, cgroups.processes, cgroups.io]


@pytest.fixture
def hosts(tmp_path):
    return Hosts(tmp_path)


@pytest.fixture
def old(hosts):
    """A host with control groups of version 1, the drive's seen from inside a container."""
    hosts.write({name: None for name in hosts.files if name.startswith(V2)})
    hosts.write({
        "proc/self/mountinfo": V1_MOUNTS, "proc/self/cgroup": V1_GROUPS,
        f"{V2}/memory/jobs/a/memory.limit_in_bytes": "9223372036854771712\n",
        f"{V2}/memory/jobs/memory.limit_in_bytes": "9223372036854771712\n",
        f"{V2}/pids/pids.max": "max\n",
        f"{V2}/blkio/blkio.throttle.read_bps_device": "",
    })  # fmt: skip
    return hosts


@pytest.mark.parametrize("probe", PROBES)
def test_no_bounds_are_ok(hosts, probe):
    assert all_ok(hosts.ask(probe))


@pytest.mark.parametrize("probe", PROBES)
def test_no_bounds_of_version_1_are_ok(old, probe):
    assert all_ok(old.ask(probe))


@pytest.mark.parametrize("place", [SERVICE, SLICE])
@pytest.mark.parametrize(
    ("limit", "level"), [(2 * GIB, Level.FAIL), (4 * GIB + 100 * MIB, Level.WARN)]
)
def test_memory_bounded_anywhere_on_the_path(hosts, place, limit, level):
    hosts.write({f"{place}/memory.max": f"{limit}\n"})
    [found] = hosts.ask(cgroups.memory)
    need = 4 * GIB + 512 * MIB
    words = (f"/{place}/memory.max", "dram is 4GiB", "4.5GiB", f"MemoryMax={need}", f"/{place} (")
    assert is_told(found, level, *words)


def test_bounds_that_hold_dram_are_ok_and_told(hosts):
    hosts.write({f"{SERVICE}/memory.max": f"{8 * GIB}\n"})
    [found] = hosts.ask(cgroups.memory)
    assert all_ok([found]) and "8GiB" in found.found


def test_several_bounds_are_told_each(hosts):
    hosts.write({f"{SERVICE}/memory.max": "1024\n", f"{SLICE}/memory.max": "2048\n"})
    assert [f.level for f in hosts.ask(cgroups.memory)] == [Level.FAIL, Level.FAIL]


def test_memory_high_slows_down(hosts):
    hosts.write({f"{SERVICE}/memory.high": f"{3 * GIB}\n"})
    good, bad = hosts.ask(cgroups.memory)
    assert all_ok([good]) and bad.check == "cgroup.memory_high"
    assert is_told(bad, Level.WARN, "memory.high is 3GiB", f"MemoryHigh={4 * GIB + 512 * MIB}")


def test_memory_bounded_in_version_1(old):
    old.write({f"{V2}/memory/jobs/memory.limit_in_bytes": f"{1 * GIB}\n"})
    [found] = old.ask(cgroups.memory)
    assert is_told(found, Level.FAIL, f"/{V2}/memory/jobs/memory.limit_in_bytes is 1GiB")


def test_few_processes(hosts):
    hosts.write({f"{SERVICE}/pids.max": "50\n"})
    [found] = hosts.ask(cgroups.processes)
    words = (f"/{SERVICE}/pids.max is 50", "30 are left", "88 threads", "TasksMax=138")
    assert is_told(found, Level.FAIL, *words)
    assert all_ok(hosts.ask(cgroups.processes, running=1))


def test_few_processes_in_version_1(old):
    old.write({f"{V2}/pids/pids.max": "40\n", f"{V2}/pids/pids.current": "39\n"})
    assert is_told(old.ask(cgroups.processes)[0], Level.FAIL, "1 are left")


@pytest.mark.parametrize("place", [SERVICE, SLICE])
def test_a_slowed_drive(hosts, place):
    # The bound names the whole drive; the directory lies on a partition of it.
    hosts.write({f"{place}/io.max": "8:0 rbps=1 wbps=1\n259:0 rbps=max wbps=1048576 riops=max\n"})
    [found] = hosts.ask(cgroups.io)
    words = (str(hosts.plan.data[0]), f"/{place}", "wbps=1048576", "IOWriteBandwidthMax", "259:0")
    assert is_told(found, Level.WARN, *words) and "rbps=max" not in found.found


def test_bounds_of_other_drives_do_not_matter(hosts):
    hosts.write({f"{SERVICE}/io.max": "8:0 rbps=1 wbps=1\n259:0 rbps=max wbps=max\n"})
    assert all_ok(hosts.ask(cgroups.io))


def test_a_slowed_drive_in_version_1(old):
    old.write({f"{V2}/blkio/blkio.throttle.write_bps_device": "259:0 2097152\n"})
    [found] = old.ask(cgroups.io)
    assert is_told(found, Level.WARN, "blkio.throttle.write_bps_device 2097152")


def test_drives_that_are_not_used_do_not_matter(hosts):
    hosts.plan = replace(hosts.plan, data=())
    assert hosts.ask(cgroups.io) == []


def test_a_group_outside_of_what_is_mounted_is_looked_at_where_it_can_be(hosts):
    # As in a container that has the host's control groups named from outside its own root.
    hosts.write({"proc/self/cgroup": "0::/../../other\n", f"{V2}/memory.max": "1024\n"})
    [found] = hosts.ask(cgroups.memory)
    assert is_told(found, Level.FAIL, f"/{V2}/memory.max")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"proc/self/cgroup": None}, "/proc/self/cgroup: No such file"),
        ({"proc/self/mountinfo": None}, "/proc/self/mountinfo: No such file"),
        ({"proc/self/cgroup": "1:name=systemd:/\n"}, "no group for memory"),
        ({"proc/self/cgroup": "4:memory:/\n"}, "of memory are not mounted"),
        ({"proc/self/mountinfo": mountinfo().splitlines()[0]}, "not mounted"),
    ],
)
def test_what_is_not_there_is_unseen(hosts, files, said):
    hosts.write(files)
    with pytest.raises(Unseen, match=said):
        hosts.ask(cgroups.memory)

"""What the doctor says of memory and of limits, good and bad, from trees of files."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvd.doctor import memory
from kvd.doctor.findings import Level
from kvd.host.reading import Host, Unseen
from kvd.limits import GIB, MIB
from tests.unit.doctor_scene import LIMITS, Hosts, all_ok, by_check, is_told, meminfo

ROOT = Path(__file__).resolve().parents[2]
SHMEM = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
PROBES = [getattr(memory, name) for name in (
    "size", "locked", "huge_pages", "shared", "overcommit", "maps", "swap", "nodes", "descriptors",
)]  # fmt: skip


@pytest.fixture
def hosts(tmp_path):
    return Hosts(tmp_path)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_a_good_host_is_ok(hosts, probe):
    assert all_ok(hosts.ask(probe))


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_a_host_without_files_is_unseen_and_named(tmp_path, hosts, probe):
    hosts.files = {}
    if probe is memory.shared:
        return  # It reads nothing.
    with pytest.raises(Unseen, match="/(proc|sys)/.*No such file"):
        hosts.ask(probe)


@pytest.mark.parametrize(
    ("total", "level", "words"),
    [
        (3 * GIB, Level.FAIL, ("3GiB of memory", "dram is 4GiB", "4.5GiB", "--dram 2560MiB")),
        (4 * GIB + 256 * MIB, Level.WARN, ("4.2GiB of memory", "4.5GiB", "--dram 3840MiB")),
    ],
)
def test_too_little_memory(hosts, total, level, words):
    hosts.write({"proc/meminfo": meminfo(total=total)})
    assert is_told(by_check(hosts.ask(memory.size))["memory.total"], level, *words)


def test_memory_that_others_use(hosts):
    hosts.write({"proc/meminfo": meminfo(available=2 * GIB)})
    [total, available] = hosts.ask(memory.size)
    assert all_ok([total])
    assert is_told(available, Level.WARN, "2GiB available", "4.5GiB", "--dram 1536MiB")
    # A daemon that runs has taken its dram already.
    assert all_ok(hosts.ask(memory.size, running=17))


def test_locked_memory_matters_where_there_is_a_gpu(hosts):
    hosts.write({"proc/self/limits": LIMITS.format(files=4096, locked=8 * MIB)})
    words = ("RLIMIT_MEMLOCK is 8MiB", "4GiB", "LimitMEMLOCK=infinity")
    assert is_told(hosts.ask(memory.locked)[0], Level.NOTE, *words)
    hosts.write({"proc/driver/nvidia/version": "NVRM version: NVIDIA 580.1\n"})
    assert is_told(hosts.ask(memory.locked)[0], Level.WARN, *words)
    hosts.write({"proc/self/limits": LIMITS.format(files=4096, locked=4 * GIB)})
    assert all_ok(hosts.ask(memory.locked))


@pytest.mark.parametrize("chosen", ["never", "deny"])
def test_small_pages(hosts, chosen):
    hosts.write({SHMEM: f"always within_size advise [{chosen}] deny force\n"})
    found = by_check(hosts.ask(memory.huge_pages))["memory.huge_pages"]
    line = f"echo advise > /{SHMEM}"
    assert is_told(found, Level.WARN, f"is {chosen}", line, "/etc/tmpfiles.d/kvd.conf")


def test_reserved_huge_pages_are_no_use(hosts):
    hosts.write({"proc/meminfo": meminfo(total=8 * GIB, huge=512)})
    assert all_ok(hosts.ask(memory.huge_pages))
    hosts.write({"proc/meminfo": meminfo(total=8 * GIB, huge=2048)})
    found = by_check(hosts.ask(memory.huge_pages))["memory.reserved_pages"]
    assert is_told(found, Level.WARN, "2048 huge pages", "4GiB", "sysctl -w vm.nr_hugepages=0")


def test_dev_shm_is_said_not_to_matter(hosts):
    assert "/dev/shm" in hosts.ask(memory.shared)[0].found


def test_strict_overcommit(hosts):
    hosts.write({"proc/sys/vm/overcommit_memory": "2\n"})
    assert all_ok(hosts.ask(memory.overcommit))
    hosts.write({"proc/meminfo": meminfo(limit=8 * GIB, promised=5 * GIB)})
    words = ("3GiB", "4.5GiB", "sysctl -w vm.overcommit_memory=0")
    assert is_told(hosts.ask(memory.overcommit)[0], Level.FAIL, *words)
    assert all_ok(hosts.ask(memory.overcommit, running=17))


def test_too_few_mappings(hosts):
    hosts.write({"proc/sys/vm/max_map_count": "4200\n"})
    need = 64 * 3 + 4096
    words = ("4200", "64 slabs", f"sysctl -w vm.max_map_count={need}")
    assert is_told(hosts.ask(memory.maps)[0], Level.FAIL, *words)
    hosts.write({"proc/sys/vm/max_map_count": f"{need}\n"})
    assert all_ok(hosts.ask(memory.maps))


def test_swap(hosts):
    hosts.write({"proc/meminfo": meminfo(swap=2 * GIB)})
    assert is_told(hosts.ask(memory.swap)[0], Level.NOTE, "2GiB of swap", "MemorySwapMax=0")


def test_several_nodes(hosts):
    hosts.write({
        "sys/devices/system/node/node0/meminfo": f"Node 0 MemFree: {6 * GIB // 1024} kB\n",
        "sys/devices/system/node/node1/meminfo": f"Node 1 MemFree: {9 * GIB // 1024} kB\n",
        "sys/devices/system/node/has_cpu": "0-1\n",
    })  # fmt: skip
    words = ("2 NUMA nodes", "node 0 has 6GiB", "node 1 has 9GiB", "NUMAMask=1")
    assert is_told(hosts.ask(memory.nodes)[0], Level.NOTE, *words)
    hosts.plan = replace(hosts.plan, dram_bytes=10 * GIB)
    found = hosts.ask(memory.nodes)[0]
    assert is_told(found, Level.NOTE, "over several") and "NUMAMask" not in found.fix


@pytest.mark.parametrize(
    ("files", "level", "words"),
    [
        (256, Level.FAIL, ("256 at most", "64 slabs", "dram ends at 2GiB", "LimitNOFILE=1024")),
        (600, Level.WARN, ("600 at most", "LimitNOFILE=1024")),
    ],
)
def test_too_few_descriptors(hosts, files, level, words):
    hosts.write({"proc/self/limits": LIMITS.format(files=files, locked=0)})
    assert is_told(hosts.ask(memory.descriptors)[0], level, *words)


def test_more_dram_needs_more_descriptors(hosts):
    hosts.plan = replace(hosts.plan, dram_bytes=1024 * GIB)
    hosts.write({"proc/self/limits": LIMITS.format(files=65536, locked=0)})
    assert is_told(hosts.ask(memory.descriptors)[0], Level.FAIL, "LimitNOFILE=131072", "512GiB")


def test_other_text_than_expected_is_unseen(hosts):
    hosts.write({"proc/sys/vm/max_map_count": "many\n", "proc/meminfo": "nothing here\n"})
    with pytest.raises(Unseen, match="'many' is no number"):
        hosts.ask(memory.maps)
    with pytest.raises(Unseen, match="no line MemTotal"):
        hosts.ask(memory.size)
    hosts.write({"proc/self/limits": "Limit Soft Hard\n"})
    with pytest.raises(Unseen, match="no line 'Max open files'"):
        hosts.ask(memory.descriptors)


LOWERED = """
import json, resource, sys
from kvd.host.reading import Host
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 8192))
print(json.dumps([Host().limit("Max open files"), Host().limit("Max locked memory")]))
"""


def test_limits_of_a_real_process_are_read():
    done = subprocess.run(
        [sys.executable, "-c", LOWERED], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert json.loads(done.stdout) == [[200, 300], [4096, 8192]]


def test_unlimited_is_more_than_anything(hosts):
    host = hosts.scene().host
    soft, hard = host.limit("Max locked memory")
    assert soft == hard > 1 << 60 and isinstance(host, Host)

"""How much dram fits the control groups of a host, in both versions."""

import logging
import os

import pytest

from kvd.daemon.memory_bound import dram_that_fits
from kvd.errors import ErrorKind, KvdError
from kvd.host.footprint import TABLES_PART, daemon_bytes, dram_within, growth_bytes
from kvd.limits import GIB, MIB
from tests.unit.doctor_scene import Hosts

V2 = "sys/fs/cgroup"
SLICE, SERVICE = f"{V2}/system.slice", f"{V2}/system.slice/kvd.service"
OWN = 128 * MIB + 4 * GIB // TABLES_PART


@pytest.fixture
def hosts(tmp_path):
    made = Hosts(tmp_path)
    for group in (SLICE, SERVICE):
        made.write({f"{group}/memory.current": f"{64 * MIB}\n"})
    return made


def fits(hosts, asked=4 * GIB, kept=()):
    return dram_that_fits(asked, kept, hosts.scene().host)


def test_without_a_bound_it_is_as_asked(hosts, caplog):
    assert fits(hosts) == 4 * GIB and growth_bytes(4 * GIB) == OWN
    hosts.write({"proc/self/cgroup": None})
    assert fits(hosts) == 4 * GIB and not caplog.records


@pytest.mark.parametrize("place", [SLICE, SERVICE])
def test_the_least_room_on_the_path_counts(hosts, caplog, place):
    hosts.write({f"{place}/memory.max": f"{1 * GIB}\n"})
    assert fits(hosts) == 1 * GIB - 64 * MIB - OWN
    [line] = [record.getMessage() for record in caplog.records]
    for words in (f"/{place}/memory.max is 1GiB", "816MiB instead of 4GiB", "MemoryMax", "--dram"):
        assert words in line, line
    assert "\n" not in line and caplog.records[0].levelno == logging.WARNING


def test_with_room_for_all_nothing_is_said(hosts, caplog):
    hosts.write({f"{SERVICE}/memory.max": f"{4 * GIB + 512 * MIB}\n"})
    assert fits(hosts) == 4 * GIB and not caplog.records


def test_pages_of_files_make_room_and_those_of_memfds_do_not(hosts):
    stat = (
        f"anon 1\nfile {900 * MIB}\nshmem {100 * MIB}\ninactive_file {500 * MIB}\nactive_file 0\n"
    )
    hosts.write({
        f"{SERVICE}/memory.max": f"{1 * GIB}\n", f"{SERVICE}/memory.stat": stat,
        f"{SERVICE}/memory.current": f"{600 * MIB}\n",
    })  # fmt: skip
    assert fits(hosts) == 1 * GIB - 100 * MIB - OWN


def test_kept_slabs_cost_nothing_more(hosts):
    hosts.write({
        f"{SERVICE}/memory.max": f"{1 * GIB}\n", f"{SERVICE}/memory.current": f"{66 * MIB}\n",
    })  # fmt: skip
    descriptor = os.memfd_create("kept")
    os.posix_fallocate(descriptor, 0, 2 * MIB)
    assert fits(hosts, kept=[descriptor]) == 1 * GIB - 64 * MIB - OWN
    os.close(descriptor)


def test_version_1(hosts):
    at = f"{V2}/memory/jobs"
    hosts.write({
        "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "proc/self/cgroup": "4:memory:/jobs\n0::/\n",
        f"{at}/memory.limit_in_bytes": f"{1 * GIB}\n",
        f"{at}/memory.usage_in_bytes": f"{300 * MIB}\n",
        f"{at}/memory.stat": f"active_file 1\ntotal_active_file {200 * MIB}\n",
    })  # fmt: skip
    assert fits(hosts) == 1 * GIB - 100 * MIB - OWN


def test_nothing_fits(hosts):
    hosts.write({f"{SERVICE}/memory.max": f"{200 * MIB}\n"})
    with pytest.raises(KvdError) as refused:
        fits(hosts)
    assert refused.value.kind is ErrorKind.INVALID
    for words in (f"/{SERVICE}/memory.max is 200MiB", "4GiB asked for", "MemoryMax", "--dram"):
        assert words in refused.value.message


@pytest.mark.parametrize("dram", [1 * MIB, 4 * GIB, 80 * GIB, 96 * GIB, 512 * GIB, 4096 * GIB])
def test_what_operators_are_asked_for_is_enough_for_all_dram(hosts, dram):
    hosts.write({f"{SERVICE}/memory.max": f"{dram + daemon_bytes(dram)}\n"})
    assert fits(hosts, dram) == dram
    assert dram - 2 * MIB <= dram_within(dram + daemon_bytes(dram)) <= dram
    assert dram_within(daemon_bytes(0)) == dram_within(0) == 0

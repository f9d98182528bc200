"""Limits that are too small for others: it works, or says which one, and no signal ends it."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvd.client import EXACT, BlockShape, Client, Dtype, Keyspace
from kvd.limits import KIB, MIB
from tests.e2e.memory_group import memory_group
from tests.e2e.process import DEADLINE_S, ROOT, Daemon, running
from tests.e2e.ssd_node import until

SHAPE = BlockShape.of_attention(1, 1, 64, Dtype.BF16)
CHUNK, CHUNKS = 256, 40
TOKENS = CHUNK * CHUNKS


def limit(what: int, size_bytes: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (size_bytes, size_bytes))


def assert_works(daemon: Daemon) -> None:
    with Client(daemon.tenant, "small", DEADLINE_S) as client:
        assert client.wait_connected(DEADLINE_S)
        space = client.keyspace(Keyspace("small", "r", SHAPE, chunk_tokens=CHUNK))
        ours = np.random.default_rng(1).integers(1, 1 << 15, (1, TOKENS, 64), np.uint16)
        chain = space.chain(np.arange(TOKENS))
        assert space.put(chain, [[ours, ours]]).stored == CHUNKS
        targets = [[np.zeros_like(ours), np.zeros_like(ours)]]
        with space.fetch(chain) as fetch:
            assert fetch.decode((0, 1), EXACT, targets) == CHUNKS
            assert not fetch.pin(), "no GPU, or not enough may be locked: read unpinned"
        assert np.array_equal(targets[0][0], ours) and np.array_equal(targets[0][1], ours)


def touched_bytes(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("RssShmem:")[2].split()[0]) * KIB


def test_hardly_any_memory_may_be_locked(short_directory):
    with running(short_directory, prepare=limit(resource.RLIMIT_MEMLOCK, 64 * KIB)) as daemon:
        assert_works(daemon)


def test_files_may_not_be_as_large_as_a_slab(short_directory):
    """A slab is a file to the kernel: the limit is told by its name, and nothing by SIGXFSZ."""
    with running(short_directory, prepare=limit(resource.RLIMIT_FSIZE, 16 * MIB)) as daemon:
        line = daemon.wait_line("slab not made")
        assert f"RLIMIT_FSIZE is {16 * MIB}" in line and "LimitFSIZE" in line
        with Client(daemon.tenant, "small", DEADLINE_S) as client:
            assert client.wait_connected(DEADLINE_S)
            space = client.keyspace(Keyspace("small", "r", SHAPE, chunk_tokens=CHUNK))
            ours = np.ones((1, TOKENS, 64), np.uint16)
            chain = space.chain(np.arange(TOKENS))
            stored = space.put(chain, [[ours, ours]], deadline_s=0.5)
            assert stored.refused == CHUNKS and stored.reason.name in ("GROWING", "CAPACITY")
        assert daemon.process.poll() is None


def test_a_cgroup_smaller_than_dram_is_a_line_and_less_dram(short_directory):
    """Touching a memfd beyond the bound of a control group is no error: it ends by SIGKILL."""
    with memory_group(448 * MIB) as group:
        daemon = Daemon(short_directory, "--dram", "512MiB", prepare=group.enter)
        try:
            line = daemon.wait_line("dram is")
            assert "instead of 512MiB" in line and f"{group.path}/memory." in line
            assert " is 448MiB" in line and "MemoryMax" in line and "--dram" in line
            assert_works(daemon.ready())
            slabs = daemon.descriptors("memfd:kvd-slab") // 2
            assert 1 <= slabs < 7
            until(lambda: touched_bytes(daemon) >= slabs * 64 * MIB, "all slabs are touched")
            assert daemon.process.poll() is None and group.kills() == 0
        finally:
            daemon.stop()


def test_a_cgroup_that_holds_no_dram_at_all_is_refused(short_directory):
    with memory_group(128 * MIB) as group:
        daemon = Daemon(short_directory, "--dram", "512MiB", prepare=group.enter)
        try:
            line = daemon.wait_line("no room for dram")
            assert f"{group.path}/memory." in line and "MemoryMax" in line
            assert daemon.wait() == 2 and group.kills() == 0 and len(daemon.lines) == 1
        finally:
            daemon.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_shared_memory_that_is_smaller_than_a_slab_does_not_matter(short_directory):
    unshare = shutil.which("unshare")
    mount = "mount -t tmpfs -o size=16m none /dev/shm"
    if not unshare or subprocess.run([unshare, "-m", "sh", "-c", mount], stderr=-3).returncode:
        pytest.skip("no mounts here")

    class Confined(Daemon):
        def _begin(self, words, prepare, python):
            command = f'{mount} && exec "$@"'
            serve = (sys.executable, "-m", "kvd.cli.main", "serve", *words)
            return subprocess.Popen(
                [unshare, "-m", "sh", "-c", command, "sh", *serve],
                stderr=subprocess.PIPE, text=True, cwd=ROOT,
            )  # fmt: skip

    daemon = Confined(short_directory, "--dram", "128MiB")
    try:
        assert_works(daemon.ready())
    finally:
        daemon.stop()

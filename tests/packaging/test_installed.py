"""kvd from its wheel, outside of the source tree: served, put to, fetched from, looked at."""

import json
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.packaging.installed import DEADLINE_S, plain_environment

STORY = """
import sys
import numpy as np
from kvd.client import EXACT, BlockShape, Client, Dtype, Keyspace

shape = BlockShape.of_attention(layers=2, heads=2, width=64, dtype=Dtype.BF16)
client = Client(sys.argv[1])
assert client.wait_connected(20)
space = client.keyspace(Keyspace(model="toy", weight_revision="1", shape=shape))
rng = np.random.default_rng(1)
bits = rng.normal(size=(2, 2, 2, 192, 64)).astype(np.float32).view(np.uint32) >> 16
tensors = [tuple(layer) for layer in bits.astype(np.uint16)]
chain = space.chain(list(range(192)))
print("durable", space.put(chain, tensors, durability="disk").durable)
targets = [tuple(np.zeros_like(each) for each in layer) for layer in tensors]
with space.fetch(chain) as fetch:
    for _ in fetch.arrivals():
        pass
    good = fetch.decode((0, 2), EXACT, targets)
same = all((a == b).all() for x, y in zip(tensors, targets) for a, b in zip(x, y))
print("chunks", good, "same", same)
client.close()
"""


@pytest.fixture(scope="module")
def place():
    path = Path(tempfile.mkdtemp(prefix="kvd-"))  # Short, for the paths of sockets.
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def flags(place):
    return [
        "--directory", str(place / "run"), "--dram", "128MiB", "--data", str(place / "data"),
        "--ssd", "64MiB",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def served(environment, place, flags):
    """Serve, put and fetch, stop; return what was said."""
    daemon = subprocess.Popen(
        [environment.kvd, "serve", *flags], cwd=place, env=plain_environment(),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        lines = []
        for line in daemon.stderr:
            lines.append(line)
            if "ready on" in line:
                break
        assert lines and "ready on" in lines[-1], lines
        story = environment.run(environment.python, "-c", STORY, place / "run" / "default")
        running = environment.run(environment.kvd, "doctor", "--json", *flags)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(DEADLINE_S) == 0
    finally:
        daemon.kill()
        daemon.stderr.close()
    return daemon.pid, story.stdout, json.loads(running.stdout)


def test_what_is_put_is_fetched(served):
    assert served[1].split() == ["durable", "True", "chunks", "3", "same", "True"]


def test_the_doctor_finds_the_daemon(served):
    pid, _, report = served
    assert report["fine"] and report["running"] == pid
    levels = {f["check"]: f["level"] for f in report["findings"]}
    assert levels["software.python"] == levels["runtime.version"] == "ok"


def test_the_doctor_finds_the_native_kernels_of_the_wheel(environment, served, flags):
    report = json.loads(environment.run(environment.kvd, "doctor", "--json", *flags).stdout)
    levels = {f["check"]: f["level"] for f in report["findings"]}
    assert report["running"] == 0 and levels["software.packages"] == "ok"
    assert levels["software.kernels"] == "ok" and levels["data.direct"] in ("ok", "warn")


def test_what_is_on_disk_is_whole(environment, served, place):
    told = environment.run(environment.kvd, "check", "--json", "--data", place / "data")
    report = json.loads(told.stdout)
    assert report["whole"] and report["catalog"]["chunks"] == 3


def test_sizes_are_told(environment):
    told = environment.run(environment.kvd_admin, "size", "smollm2-135m", "--json")
    assert json.loads(told.stdout)["raw_bytes_per_token"] == 23_040

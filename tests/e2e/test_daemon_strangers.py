"""Users of the host who may not come in take no place of those who may, and little of the log."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from kvd.limits import Limits
from kvd.rpc.audit import LINES_AT_ONCE
from kvd.rpc.handshake import PENDING_MAX
from tests.e2e.process import DEADLINE_S, ROOT, running
from tests.e2e.rawclient import RawClient, Refused
from tests.e2e.remote_node import remote_node

NOBODY, FRIEND = 65534, 12345
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

BECOME = """
import os, socket, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.e2e.rawclient import Channel, Refused
tenant = Path({tenant!r})
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
"""
# Two connections of each kind as soon as there is room for one, and nothing said on any.
CROWD = (
    BECOME
    + """
held = []
for number in range({count}):
    for name, kind in (("slabs", socket.SOCK_SEQPACKET), ("session", socket.SOCK_STREAM)):
        held.append(socket.socket(socket.AF_UNIX, kind))
        held[-1].connect(str(tenant / (name + ".sock")))
print("held", flush=True)
sys.stdin.read()
"""
)
KNOCK = (
    BECOME
    + """
for number in range({count}):
    try:
        Channel(tenant).hello()
    except Refused:
        continue
    raise SystemExit("let in")
"""
)


def words_of(code: str, daemon, count: int) -> list[str]:
    code = code.format(root=str(ROOT), tenant=str(daemon.tenant), uid=NOBODY, count=count)
    return [sys.executable, "-c", code]


@pytest.fixture
def daemon(short_directory):
    short_directory.chmod(0o755)
    with running(short_directory / "d", "--allow-uid", "0", "--allow-uid", str(FRIEND)) as daemon:
        yield daemon


def test_a_crowd_of_strangers_keeps_nobody_out(daemon):
    words = words_of(CROWD, daemon, PENDING_MAX + 10)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as crowd:
        assert crowd.stdout.readline() == "held\n"
        RawClient(daemon.tenant).close()
        crowd.stdin.close()


def test_strangers_that_knock_again_and_again_fill_no_log(daemon):
    count = 20 * LINES_AT_ONCE
    child = subprocess.run(words_of(KNOCK, daemon, count), timeout=2 * DEADLINE_S)
    assert child.returncode == 0
    daemon.send(signal.SIGTERM)
    daemon.wait_line("stopped")
    lines = [line for line in daemon.lines if "denied session" in line]
    assert 0 < len(lines) <= 2 * LINES_AT_ONCE, "one in five seconds, beyond the first few"
    assert f"from uid {NOBODY}" in lines[0]


def test_a_user_who_is_added_later_finds_the_door_open(short_directory):
    directory = short_directory / "d"
    with running(directory) as daemon:
        assert stat.S_IMODE(daemon.tenant.stat().st_mode) == 0o700
    with running(directory, "--allow-uid", str(FRIEND)) as daemon:
        assert stat.S_IMODE(daemon.tenant.stat().st_mode) == 0o755


def test_a_tenant_that_begins_sessions_without_end_shuts_no_other_out(short_directory):
    with remote_node(short_directory, Limits(sessions_max=12)) as node:
        run = node.here.directory
        held = []
        with pytest.raises(Refused, match="kept for other tenants"):
            for _ in range(13):
                held.append(RawClient(run / "a"))
        assert len(held) == 9, "less the three that the other is sure of"
        others = [RawClient(run / "b") for _ in range(3)]
        with pytest.raises(Refused, match="sessions_max"):
            RawClient(run / "b")
        for client in (*held, *others):
            client.close()

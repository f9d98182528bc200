"""Who is at the other end, and that their end is noticed once for every session."""

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys

import pytest

from kvd.rpc import peers
from kvd.rpc.peers import Peer, ProcessWatch, open_pidfd, peer_of

DEADLINE_S = 20.0
NO_SUCH_OPTION = 9999


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


def open_like(words: str) -> int:
    """Return how many descriptors /proc describes with `words`; others come and go meanwhile."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(words in link for link in links)


def sleeper() -> subprocess.Popen:
    """Return a process that lives until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )


def test_a_peer_is_known_by_pid_and_uid(pair):
    assert peer_of(pair[0]) == Peer(os.getpid(), os.geteuid())


@pytest.mark.parametrize("option", [peers.SO_PEERPIDFD, NO_SUCH_OPTION], ids=["new", "old kernel"])
def test_a_pidfd_is_of_the_process_that_connected(pair, monkeypatch, option):
    monkeypatch.setattr(peers, "SO_PEERPIDFD", option)
    pidfd = open_pidfd(pair[0], peer_of(pair[0]))
    with open(f"/proc/self/fdinfo/{pidfd}") as info:
        assert f"Pid:\t{os.getpid()}\n" in info.read()
    os.close(pidfd)


def test_without_the_option_a_peer_that_hung_up_is_not_trusted_by_its_pid(pair, monkeypatch):
    monkeypatch.setattr(peers, "SO_PEERPIDFD", NO_SUCH_OPTION)
    peer = peer_of(pair[0])
    pair[1].close()
    with pytest.raises(ProcessLookupError):
        open_pidfd(pair[0], peer)


def test_the_end_of_a_process_is_told_for_every_session_of_it():
    async def main():
        gone, all_gone = [], asyncio.Event()

        def on_gone(session):
            gone.append(session)
            if len(gone) == 3:
                all_gone.set()

        watch = ProcessWatch(asyncio.get_running_loop(), on_gone)
        child = sleeper()
        before = open_like("pidfd")
        for session in (4, 5, 6):
            watch.add(Peer(child.pid, 0), os.pidfd_open(child.pid), session)
        assert open_like("pidfd") == before + 1
        child.stdin.close()
        await asyncio.wait_for(all_gone.wait(), DEADLINE_S)
        assert gone == [6, 5, 4]
        assert open_like("pidfd") == before
        child.wait(DEADLINE_S)

    asyncio.run(main())


def test_a_process_of_many_sessions_leaves_the_loop_to_others():
    async def main():
        loop, gone, count = asyncio.get_running_loop(), [], 50 * peers.TOLD_AT_ONCE
        watch = ProcessWatch(loop, gone.append)
        child = sleeper()
        for session in range(count):
            watch.add(Peer(child.pid, 0), os.pidfd_open(child.pid), session)
        child.stdin.close()
        child.wait(DEADLINE_S)
        told = 0
        while len(gone) < count:
            await asyncio.sleep(0)
            assert len(gone) - told <= 2 * peers.TOLD_AT_ONCE
            told = len(gone)
        assert gone == list(reversed(range(count)))
        watch.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_what_was_not_told_before_the_end_is_not_told_behind_it():
    async def main():
        gone = []
        watch = ProcessWatch(asyncio.get_running_loop(), gone.append)
        child = sleeper()
        for session in range(3 * peers.TOLD_AT_ONCE):
            watch.add(Peer(child.pid, 0), os.pidfd_open(child.pid), session)
        child.stdin.close()
        child.wait(DEADLINE_S)
        while not gone:
            await asyncio.sleep(0)
        watch.close()
        told = len(gone)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(gone) == told < 3 * peers.TOLD_AT_ONCE

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_a_process_that_cannot_be_watched_leaves_nothing():
    class Full:
        """A loop whose epoll takes no more."""

        def add_reader(self, *arguments):
            raise OSError(errno.ENOSPC, "no")

    watch = ProcessWatch(Full(), lambda session: None)
    before = open_like("pidfd")
    for session in (1, 2):
        with pytest.raises(OSError):
            watch.add(Peer(77, 0), os.pidfd_open(os.getpid()), session)
    assert open_like("pidfd") == before
    watch.close()


def test_a_pid_of_a_process_that_ended_is_told_before_another_takes_it():
    async def main():
        gone = []
        watch = ProcessWatch(asyncio.get_running_loop(), gone.append)
        first, second = sleeper(), sleeper()
        watch.add(Peer(77, 0), os.pidfd_open(first.pid), 1)
        first.stdin.close()
        first.wait(DEADLINE_S)
        # The loop did not run since; the same number now names another process.
        watch.add(Peer(77, 0), os.pidfd_open(second.pid), 2)
        assert gone == [1]
        watch.close()
        second.stdin.close()
        second.wait(DEADLINE_S)
        assert gone == [1]

    asyncio.run(main())


def test_processes_of_another_namespace_are_not_taken_for_one():
    async def main():
        watch = ProcessWatch(asyncio.get_running_loop(), lambda session: None)
        before = open_like("pidfd")
        for session in (1, 2):
            watch.add(Peer(0, 0), os.pidfd_open(os.getpid()), session)
        assert open_like("pidfd") == before + 2
        watch.close()

    asyncio.run(main())

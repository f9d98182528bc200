"""What a service manager hears, over real datagram sockets of both kinds of address."""

import asyncio
import os
import socket

import pytest

from kvd.cli.service import take_service
from kvd.clock import NS_PER_MS, NS_PER_S
from kvd.daemon.loop import run as run_loop
from kvd.daemon.notify import Notifier, Watchdog
from kvd.errors import ErrorKind, KvdError

DEADLINE_S = 30.0


@pytest.fixture(params=["path", "abstract"])
def manager(request, short_directory):
    """Yield a listening socket and the address that a daemon is told."""
    address = str(short_directory / "notify")
    if request.param == "abstract":
        address = f"@kvd-test-{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind("\0" + address[1:] if address.startswith("@") else address)
    listening.settimeout(DEADLINE_S)
    yield listening, address
    listening.close()


def test_states_arrive_as_lines(manager):
    listening, address = manager
    notifier = Notifier(address)
    notifier.tell("READY=1", "STATUS=up")
    notifier.status("dram 1 of 2 slabs")
    notifier.status("dram 1 of 2 slabs")
    notifier.extend(3 * NS_PER_S)
    heard = [listening.recv(100) for _ in range(3)]
    assert heard == [
        b"READY=1\nSTATUS=up", b"STATUS=dram 1 of 2 slabs", b"EXTEND_TIMEOUT_USEC=3000000",
    ]  # fmt: skip


def test_descriptors_travel_by_name_in_messages_of_a_bounded_number(manager):
    listening, address = manager
    notifier = Notifier(address)
    mine = [os.memfd_create(f"m{number}") for number in range(70)]
    assert notifier.keep("kvd-slabs", mine)
    inodes = []
    for count in (64, 6):
        data, descriptors, _, _ = socket.recv_fds(listening, 100, 100)
        assert data == b"FDSTORE=1\nFDNAME=kvd-slabs\nFDPOLL=0" and len(descriptors) == count
        inodes += [os.fstat(number).st_ino for number in descriptors]
        for number in descriptors:
            os.close(number)
    assert inodes == [os.fstat(number).st_ino for number in mine]
    notifier.forget("kvd-slabs")
    assert listening.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=kvd-slabs"
    for number in mine:
        os.close(number)


def test_the_end_waits_until_all_was_heard(manager):
    listening, address = manager
    notifier, heard = Notifier(address), []

    async def wait() -> None:
        waiting = asyncio.create_task(asyncio.to_thread(notifier.wait_heard))
        data, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, listening, 100, 4)
        assert data == b"BARRIER=1" and not waiting.done()
        os.close(descriptors[0])
        heard.append(await waiting)

    run_loop(wait())
    assert heard == [True]


def test_a_manager_that_does_not_answer_is_not_waited_for(manager, monkeypatch):
    _, address = manager
    monkeypatch.setattr("kvd.daemon.notify.BARRIER_SECONDS_MAX", 0.05)
    assert not Notifier(address).wait_heard()


def test_nobody_and_somebody_who_went_are_told_nothing(short_directory):
    for address in ("", str(short_directory / "gone"), "@kvd-gone"):
        notifier = Notifier(address)
        assert notifier.is_managed == bool(address)
        assert not notifier.tell("READY=1") and not notifier.keep("x", [0])
        assert not notifier.wait_heard()


def test_a_full_queue_holds_nobody_up_for_long(manager, monkeypatch):
    _, address = manager
    monkeypatch.setattr("kvd.daemon.notify.SEND_SECONDS_MAX", 0.01)
    notifier = Notifier(address)
    taken = 0
    while notifier.tell("STATUS=x"):  # Nobody reads: the kernel has room for some.
        taken += 1
    assert taken and not notifier.tell("READY=1")


def test_the_watchdog_beats_as_long_as_the_loop_turns(manager):
    listening, address = manager
    heard = []

    async def live() -> None:
        watchdog = Watchdog(Notifier(address), asyncio.get_running_loop(), 20 * NS_PER_MS)
        watchdog.beat()
        for _ in range(3):
            heard.append(await asyncio.to_thread(listening.recv, 100))
        watchdog.stop()

    run_loop(live())
    assert heard == [b"WATCHDOG=1"] * 3


def test_nobody_watches_without_a_period(manager):
    listening, address = manager

    async def live() -> None:
        Watchdog(Notifier(address), asyncio.get_running_loop(), 0).beat()

    run_loop(live())
    listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        listening.recv(100)


# ---- the environment ----


def test_a_watchdog_of_another_process_is_not_ours():
    mine = str(os.getpid())
    for pid, period in (("", 500_000), (mine, 500_000), ("1", 0)):
        said = {"WATCHDOG_USEC": "500", "WATCHDOG_PID": pid}
        assert take_service(said).watchdog_ns == period and not said


def test_descriptors_of_another_process_are_not_ours():
    said = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "session.default"}
    assert not take_service(said).listeners and not said


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"LISTEN_FDS": "2", "LISTEN_FDNAMES": "session.default"}, "LISTEN_FDS is 2"),
        ({"LISTEN_FDS": "x", "LISTEN_FDNAMES": ""}, "must be a number"),
        ({"WATCHDOG_USEC": "soon"}, "must be a number"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(said, words):
    with pytest.raises(KvdError) as refused:
        take_service({"LISTEN_PID": str(os.getpid()), **said})
    assert refused.value.kind == ErrorKind.INVALID and words in refused.value.message

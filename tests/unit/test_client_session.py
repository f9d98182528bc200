"""The SDK's handshake, reconnects and misses, against a scripted daemon on real sockets."""

import os
import socket
import threading
import time

import pytest

from kvd.client import Client, KvdError, Reason
from kvd.client import session as session_module
from kvd.errors import ErrorKind
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import DEADLINE_S, HANDLE, KEYSPACE, Peer

CHAIN = bytes(range(64))


@pytest.fixture
def client(short_directory):
    made = Client(short_directory, "test")
    yield made
    made.close()


def until(condition, what: str) -> None:
    """Wait for a condition that another thread brings about."""
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.005)


def counts_reply(*counts: int, lease: int = 0) -> pb.LookupReply:
    data = b"".join(count.to_bytes(4, "little") for count in counts)
    return pb.LookupReply(counts=data, lease=lease)


def test_says_who_it_is_and_learns_whom_it_met(stage):
    assert stage.peer.hello.protocol_min <= 1 <= stage.peer.hello.protocol_max
    assert stage.peer.hello.client == "test"
    status = stage.client.status()
    assert (status.connected, status.reason, status.epoch, status.daemon) == (True, "", 1, "peer")
    assert stage.client.token == "t"


def test_without_a_daemon_all_is_a_miss_and_the_reason_says_what_to_do(client):
    assert not client.wait_connected(0.05)
    space = client.keyspace(KEYSPACE)
    found = space.lookup(CHAIN)
    assert (found.counts, found.reason) == ((0, 0, 0), Reason.DISCONNECTED)
    with space.fetch(CHAIN) as fetch:
        assert fetch.counts == (0, 0, 0) and fetch.reason == Reason.DISCONNECTED
        assert list(fetch.arrivals()) == [] and fetch.error is None
    assert "kvd serve" in client.status().reason
    assert client.status().counters.misses == {"DISCONNECTED": 2}


def test_a_daemon_that_starts_later_is_found(client, short_directory):
    assert not client.wait_connected(0.05)
    peer = Peer(short_directory)
    peer.welcome()
    assert client.wait_connected(DEADLINE_S)
    peer.close()


def test_a_refusal_is_one_line_with_a_remedy(client, short_directory):
    peer = Peer(short_directory)
    peer.accept_channel()
    error = pb.Error(kind=pb.INCOMPATIBLE, message="protocol 1 is too old, this daemon has 2 to 3")
    peer.tell(pb.ToClient(refused=error))
    until(lambda: "too old" in client.status().reason, "the refusal is shown")
    assert "same kvd version" in client.status().reason and "\n" not in client.status().reason
    assert client.keyspace(KEYSPACE).lookup(CHAIN).reason == Reason.DISCONNECTED
    peer.close()


@pytest.mark.parametrize("data", [b"\xff\xff\xff", pb.ToClient().SerializeToString() or b"\x00"])
def test_garbage_instead_of_a_welcome_is_no_connection(client, short_directory, data):
    peer = Peer(short_directory)
    peer.accept_channel()
    peer.channel.send(data)
    until(lambda: client.status().reason not in ("", "connecting"), "a reason is given")
    assert not client.status().connected
    peer.close()


def test_a_welcome_without_its_page_is_no_connection(client, short_directory):
    peer = Peer(short_directory)
    peer.accept_channel()
    peer.tell(pb.ToClient(welcome=pb.Welcome(protocol=1, nonce=b"n", epoch=1)))
    until(lambda: "control page" in client.status().reason, "the missing page is named")
    peer.close()


def test_a_daemon_that_dies_in_the_handshake_is_looked_for_at_once(client, short_directory):
    """As one does that is killed: it takes connections until the very end."""
    peer = Peer(short_directory)
    peer.accept_channel()
    begin = time.monotonic()
    peer.hang_up()
    peer.welcome()
    assert client.wait_connected(DEADLINE_S)
    assert time.monotonic() - begin < 2.0
    peer.close()


def test_a_silent_daemon_is_named(client, short_directory, monkeypatch):
    monkeypatch.setattr(session_module, "HANDSHAKE_SECONDS", 0.1)
    peer = Peer(short_directory)
    peer.accept_channel()
    until(lambda: "does not answer" in client.status().reason, "the silence is named")
    peer.close()


def test_a_lost_daemon_answers_what_waits_and_is_met_again(stage):
    looking = stage.start(stage.space.lookup, CHAIN)
    stage.peer.take_keyspace()
    stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)
    stage.peer.epoch = 2
    stage.peer.hang_up()
    assert looking.result(DEADLINE_S).reason == Reason.LOST
    stage.peer.welcome()
    until(lambda: stage.client.status().epoch == 2, "connected again")
    looking = stage.start(stage.space.lookup, CHAIN)
    stage.peer.take_keyspace()  # Handles of the old session mean nothing any more.
    number, request = stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)
    assert request.keyspace == HANDLE and request.chain == CHAIN
    stage.peer.reply(number, counts_reply(2, 1, 1))
    assert looking.result(DEADLINE_S).counts == (2, 1, 1)


def test_a_late_answer_is_a_miss_and_what_it_grants_goes_back(stage):
    looking = stage.start(stage.space.lookup, CHAIN, lease=True, deadline_s=0.1)
    stage.peer.take_keyspace()
    number, _ = stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)
    assert looking.result(DEADLINE_S).reason == Reason.LATE
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    stage.peer.reply(number, counts_reply(1, 1, 1, lease=5))
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == 5


def test_a_daemon_that_hangs_is_left_so_that_later_misses_do_not_wait(stage):
    looking = stage.start(stage.space.lookup, CHAIN, deadline_s=2.2)
    assert looking.result(DEADLINE_S).reason == Reason.LATE
    until(lambda: "stopped" in stage.client.status().reason, "the hung daemon is named")
    begin = time.monotonic()
    assert stage.space.lookup(CHAIN).reason == Reason.DISCONNECTED
    assert time.monotonic() - begin < DEADLINE_S / 2


def test_an_error_says_why_and_the_callers_own_raises(stage):
    looking = stage.start(stage.space.lookup, CHAIN)
    stage.peer.take_keyspace()
    stage.peer.refuse(stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)[0], pb.OVERLOADED)
    assert looking.result(DEADLINE_S).reason == Reason.OVERLOADED
    looking = stage.start(stage.space.lookup, CHAIN)
    stage.peer.refuse(stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)[0], pb.INVALID)
    with pytest.raises(KvdError) as raised:
        looking.result(DEADLINE_S)
    assert raised.value.kind == ErrorKind.INVALID


@pytest.mark.parametrize(
    ("kind", "number", "body"),
    [
        (FrameKind.REPLY, 12345, b""),
        (FrameKind.PROMISE, 12345, b""),
        (FrameKind.NOTICE, 0, b"\xff\xff"),
        (FrameKind.ERROR, 0, pb.Error(kind=pb.UNAVAILABLE, message="draining").SerializeToString()),
    ],
)
def test_a_frame_that_cannot_be_ends_the_session(stage, kind, number, body):
    stage.peer.send(kind, number, body)
    until(lambda: not stage.client.status().connected, "the session ended")
    assert stage.client.status().reason
    assert stage.space.lookup(CHAIN).reason == Reason.DISCONNECTED


def test_a_frame_beyond_the_limit_ends_the_session(stage):
    stage.peer.stream.sendall(b"\xff\xff\xff\x7f" + bytes(8))
    until(lambda: not stage.client.status().connected, "the session ended")
    assert "frame" in stage.client.status().reason


def test_an_unknown_kind_of_frame_is_passed_over(stage):
    stage.peer.send(200, 0, b"of a later version")
    looking = stage.start(stage.space.lookup, CHAIN)
    stage.peer.take_keyspace()
    stage.peer.reply(stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)[0], counts_reply(1, 0, 0))
    assert looking.result(DEADLINE_S).counts == (1, 0, 0)


def test_a_daemon_that_takes_leave_is_shown(stage):
    assert not stage.client.status().draining
    stage.peer.send(FrameKind.NOTICE, 0, pb.Notice(draining=True).SerializeToString())
    until(lambda: stage.client.status().draining, "the notice is taken in")
    assert stage.client.status().connected


def test_counts_that_grow_are_garbage_and_a_miss(stage):
    looking = stage.start(stage.space.lookup, CHAIN)
    stage.peer.take_keyspace()
    stage.peer.reply(stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)[0], counts_reply(1, 2, 0))
    assert looking.result(DEADLINE_S).reason == Reason.INCOMPATIBLE


def test_no_more_descriptors_is_one_clear_message(client, short_directory, monkeypatch):
    def exhausted(*arguments, **named):
        raise OSError(24, os.strerror(24))

    peer = Peer(short_directory)
    monkeypatch.setattr(socket.socket, "connect", exhausted)
    until(lambda: "ulimit -n" in client.status().reason, "the limit is named")
    peer.close()


def test_closing_gives_its_place_back(stage):
    stage.client.close()
    assert stage.peer.stream.recv(1) == b""
    assert stage.space.lookup(CHAIN).reason == Reason.DISCONNECTED
    stage.client.close()

"""Handshakes, frames and what a session may do, over real sockets."""

import contextlib
import errno
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys

import numpy as np
import pytest

from kvd.limits import Limits
from kvd.rpc import peers
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import CONTROL_MAGIC, CONTROL_PAGE, FRAME_HEAD, FrameKind
from tests.e2e.process import DEADLINE_S, ROOT, in_process, running
from tests.e2e.rawclient import (
    Channel,
    RawClient,
    Refused,
    Stream,
    chain_of,
    keyspace_message,
    small_keyspace,
)
from tests.e2e.strips import fetch_request, lookup, put, read_mapped, register, reserve_all

CELLS = 4  # 2 layers, 1 head, K and V.


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("d")) as daemon:
        yield daemon


@pytest.fixture
def client(daemon):
    client = RawClient(daemon.tenant)
    yield client
    client.close()


def stored(client, model: str, chunks: int = 5):
    keyspace = register(client, keyspace_message(small_keyspace(model)))
    return put(client, keyspace, chain_of(chunks), CELLS, 100)


def pages_here() -> int:
    """Return how many descriptors of control pages this process has open."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum("memfd:kvd-control" in link for link in links)


def error_frame(stream: Stream) -> pb.Error:
    kind, _, body = stream.receive()
    assert kind == FrameKind.ERROR
    return pb.Error.FromString(body)


def assert_closed(stream: Stream) -> None:
    with pytest.raises((EOFError, ConnectionResetError)):
        stream.receive()


# ---- handshake ----


def test_welcome_names_protocol_epoch_and_control_page(client):
    welcome = client.welcome
    assert welcome.protocol == 1 and welcome.frame_bytes_max == Limits().frame_bytes_max
    assert len(welcome.nonce) == 16 and welcome.daemon.startswith("kvd")
    magic, epoch, counter = CONTROL_PAGE.unpack_from(client.page)
    assert (magic, epoch, counter) == (CONTROL_MAGIC, welcome.epoch, 0)


def test_a_wider_range_of_protocols_meets_in_ours(daemon):
    channel = Channel(daemon.tenant)
    assert channel.hello(1, 99)[0].protocol == 1
    channel.close()


def test_no_common_protocol_names_both_ranges(daemon):
    channel = Channel(daemon.tenant)
    with pytest.raises(Refused) as refused:
        channel.hello(7, 9)
    assert refused.value.kind == pb.INCOMPATIBLE
    assert "7 to 9" in refused.value.message and "1 to 1" in refused.value.message
    with pytest.raises(EOFError):
        channel.receive()


@pytest.mark.parametrize("bounds", [(0, 1), (3, 2)])
def test_a_range_that_is_none_is_invalid(daemon, bounds):
    with pytest.raises(Refused) as refused:
        Channel(daemon.tenant).hello(*bounds)
    assert refused.value.kind == pb.INVALID


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 40, pb.ToDaemon(slab_detached=pb.SlabDetached(slab=1)).SerializeToString()],
    ids=["garbage", "not a hello"],
)
def test_a_first_packet_that_is_no_hello_is_refused(daemon, data):
    channel = Channel(daemon.tenant)
    channel.socket.send(data)
    message, _ = channel.receive()
    assert message.refused.kind == pb.INVALID
    with pytest.raises(EOFError):
        channel.receive()


def test_a_packet_beyond_the_limit_is_refused_by_name(daemon):
    channel = Channel(daemon.tenant)
    channel.socket.send(bytes(8192))
    message, _ = channel.receive()
    assert message.refused.kind == pb.INVALID and "4096" in message.refused.message


def test_a_process_that_cannot_be_watched_is_refused_and_leaves_nothing(
    short_directory, monkeypatch
):
    def fail(self, peer, pidfd, session):
        os.close(pidfd)
        raise OSError(errno.ENOSPC, "no")

    limits = Limits(sessions_max=2)
    with in_process(short_directory, limits, limits.slab_bytes) as tenant:
        pages = pages_here()
        with monkeypatch.context() as patch:
            patch.setattr(peers.ProcessWatch, "add", fail)
            for _ in range(3):
                with pytest.raises(Refused, match="no session could be made") as refused:
                    Channel(tenant).hello()
                assert refused.value.kind == pb.UNAVAILABLE
        assert pages_here() == pages
        both = [RawClient(tenant) for _ in range(2)]
        for client in both:
            client.close()


def test_a_second_hello_ends_the_session(client):
    client.channel.send(pb.ToDaemon(hello=pb.Hello(protocol_min=1, protocol_max=1)))
    assert client.channel.listen().refused.kind == pb.INVALID
    assert_closed(client.stream)


def test_descriptors_that_a_client_sends_are_not_kept(daemon, client):
    before = daemon.descriptors("/dev/null")
    detached = pb.ToDaemon(slab_detached=pb.SlabDetached(slab=99)).SerializeToString()
    with open("/dev/null") as null:
        for _ in range(20):
            socket.send_fds(client.channel.socket, [detached], [null.fileno()])
    lookup(client, stored(client, "fds", 1))
    assert daemon.descriptors("/dev/null") == before


# ---- binding ----


def test_a_nonce_binds_once_and_only_itself(daemon):
    channel = Channel(daemon.tenant)
    welcome, _ = channel.hello()
    wrong = Stream(daemon.tenant)
    wrong.send(FrameKind.BIND, 1, pb.Bind(nonce=bytes(16)).SerializeToString())
    assert error_frame(wrong).kind == pb.DENIED
    assert_closed(wrong)
    bind = pb.Bind(nonce=welcome.nonce).SerializeToString()
    first, second = Stream(daemon.tenant), Stream(daemon.tenant)
    first.send(FrameKind.BIND, 1, bind)
    assert first.receive()[:2] == (FrameKind.REPLY, 1)
    second.send(FrameKind.BIND, 1, bind)
    assert error_frame(second).kind == pb.DENIED
    first.close()


def test_a_request_before_bind_is_refused(daemon):
    stream = Stream(daemon.tenant)
    stream.send(FrameKind.LOOKUP, 1, pb.LookupRequest().SerializeToString())
    assert "BIND" in error_frame(stream).message
    assert_closed(stream)


def test_either_sockets_end_ends_the_session(daemon):
    for first in ("stream", "channel"):
        client = RawClient(daemon.tenant)
        getattr(client, first).close()
        if first == "stream":
            with pytest.raises(EOFError):
                client.channel.receive()
        else:
            assert_closed(client.stream)


# ---- frames ----


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (FRAME_HEAD.pack(Limits().frame_bytes_max + 1, 5, FrameKind.LOOKUP, 0, 0), "8388608"),
        (FRAME_HEAD.pack(0, 5, 200, 0, 0), "200"),
        (FRAME_HEAD.pack(0, 5, FrameKind.LOOKUP, 1, 0), "pad"),
        (FRAME_HEAD.pack(0, 5, FrameKind.LOOKUP, 0, 7), "pad"),
        (FRAME_HEAD.pack(0, 5, FrameKind.PIECE, 0, 0), "PIECE"),
        (FRAME_HEAD.pack(0, 0, FrameKind.LOOKUP, 0, 0), "request id 0"),
        (FRAME_HEAD.pack(3, 5, FrameKind.CREDIT, 0, 0) + b"\xff\xff\xff", "CREDIT"),
    ],
    ids=["oversized", "kind", "pad", "pad too", "not a client's", "id 0", "garbage credit"],
)
def test_what_is_no_frame_gets_a_typed_error_and_the_end(client, head, word):
    client.stream.socket.sendall(head)
    error = error_frame(client.stream)
    assert error.kind == pb.INVALID and word in error.message
    assert_closed(client.stream)


def test_random_bytes_end_one_connection_and_no_other(daemon, client):
    other = RawClient(daemon.tenant)
    rng = np.random.default_rng(1)
    for _ in range(20):
        stream = Stream(daemon.tenant)
        stream.socket.sendall(rng.bytes(64))
        assert error_frame(stream).kind == pb.INVALID
        stream.close()
    other.stream.socket.sendall(rng.bytes(4096))
    assert error_frame(other.stream).kind == pb.INVALID
    assert lookup(client, stored(client, "random", 2))[0] == [2, 2, 2]


def test_a_body_that_is_no_message_is_invalid_and_the_stream_goes_on(client):
    client.stream.send(FrameKind.LOOKUP, 77, b"\xff\xff\xff")
    kind, number, body = client.stream.receive()
    assert (kind, number) == (FrameKind.ERROR, 77)
    assert "LookupRequest" in pb.Error.FromString(body).message
    assert lookup(client, stored(client, "goes on", 1))[0] == [1, 1, 1]


def test_frames_may_come_in_any_pieces(client):
    request = keyspace_message(small_keyspace("pieces")).SerializeToString()
    frame = FRAME_HEAD.pack(len(request), 50, FrameKind.REGISTER_KEYSPACE, 0, 0) + request
    for byte in frame:
        client.stream.socket.sendall(bytes([byte]))
    assert client.stream.receive()[:2] == (FrameKind.REPLY, 50)
    client.stream.socket.sendall(frame.replace(struct.pack("<I", 50), struct.pack("<I", 51)) * 1)
    assert client.stream.receive()[:2] == (FrameKind.REPLY, 51)


def test_a_large_frame_is_taken_and_a_small_one_after_it(client):
    first = stored(client, "large", 3)
    chain = first.chain + bytes(32 * 60_000)
    reply = client.call(
        FrameKind.LOOKUP, pb.LookupRequest(keyspace=first.keyspace, lanes=[pb.Lane()], chain=chain)
    )
    assert np.frombuffer(reply.counts, "<u4").tolist() == [3, 3, 3]
    assert lookup(client, first)[0] == [3, 3, 3]


# ---- fields ----


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chain": b""}, "chain has 0 bytes"),
        ({"chain": bytes(33)}, "33 bytes"),
        ({"chain": bytes(32 * 65_537)}, "65537 chunks"),
        ({"lanes": []}, "lanes has 0"),
        ({"lanes": [pb.Lane()] * 65}, "lanes has 65"),
        ({"lanes": [pb.Lane(shard_scheme=9)]}, "shard_scheme is 9"),
        ({"lanes": [pb.Lane(shard_scheme=1, shard_index=2, shard_count=2)]}, "shard_index is 2"),
        ({"lanes": [pb.Lane(shard_count=2)]}, "shard_count is 2"),
        ({"lanes": [pb.Lane(part_profile=b"abc")]}, "part_profile has 3 bytes"),
        ({"lanes": [pb.Lane(part_index=70_000)]}, "part_index is 70000"),
        ({"keyspace": 12}, "keyspace 12"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_outside_their_bounds_are_named(client, changes, words):
    keyspace = register(client, keyspace_message(small_keyspace()))
    fields = {"keyspace": keyspace, "lanes": [pb.Lane()], "chain": chain_of(1)} | changes
    with pytest.raises(Refused) as refused:
        client.call(FrameKind.LOOKUP, pb.LookupRequest(**fields))
    assert refused.value.kind == pb.INVALID and words in refused.value.message


def test_a_keyspace_of_unknown_words_is_refused(client):
    def refusal(change) -> str:
        message = keyspace_message(small_keyspace())
        change(message.keyspace)
        with pytest.raises(Refused) as refused:
            client.call(FrameKind.REGISTER_KEYSPACE, message)
        assert refused.value.kind == pb.INVALID
        return refused.value.message

    def dtype(keyspace):
        keyspace.groups[0].tensors[0].dtype = 77

    def role(keyspace):
        keyspace.groups[0].tensors[0].role = 0

    def text(keyspace):
        keyspace.model = "x" * 2000

    assert "tensor.dtype is 77" in refusal(dtype) and "BF16" in refusal(dtype)
    assert "tensor.role is 0" in refusal(role)
    assert "keyspace.model has 2000 bytes" in refusal(text)


def test_columns_of_odd_lengths_are_refused(client):
    keyspace = register(client, keyspace_message(small_keyspace()))
    reserve = pb.ReserveRequest(keyspace=keyspace, lane=pb.Lane(), chain=chain_of(1), sizes=b"1234")
    with pytest.raises(Refused, match="sizes has 4 bytes"):
        client.call(FrameKind.RESERVE, reserve)
    with pytest.raises(Refused, match="sizes are of 1 chunks, roots of 2"):
        client.call(FrameKind.SEAL, pb.SealRequest(sizes=bytes(12), roots=bytes(48)))
    with pytest.raises(Refused, match="corrupt has 3 bytes"):
        client.call(FrameKind.RELEASE, pb.ReleaseRequest(corrupt=b"123"))
    disk = pb.ReserveRequest(
        keyspace=keyspace, chain=chain_of(1), sizes=np.full(3, 4096, "<u4").tobytes(),
        durability=pb.DURABILITY_DISK,
    )  # fmt: skip
    with pytest.raises(Refused) as refused:
        client.call(FrameKind.RESERVE, disk)
    assert refused.value.kind == pb.UNAVAILABLE


# ---- data ----


def test_what_is_put_is_read_back_by_another_session_through_mappings(daemon, client):
    first = stored(client, "shared", 6)
    other = RawClient(daemon.tenant)
    register(other, keyspace_message(small_keyspace("shared")))
    promise = read_mapped(other, first)
    assert np.frombuffer(promise.counts, "<u4").tolist() == [6, 6, 6]
    slab = np.frombuffer(promise.lanes[0].slabs, "<u4")[0]
    size, descriptor, writable = other.channel.slab(int(slab))
    assert not writable
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, size)
    other.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))
    with pytest.raises(Refused) as refused:
        other.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))
    assert refused.value.kind == pb.LOST
    other.close()


def test_tenants_do_not_see_each_other(tmp_path_factory):
    flags = ("--tenant", "red", "--tenant", "blue")
    with running(tmp_path_factory.mktemp("t"), *flags) as daemon:
        red, blue = (RawClient(daemon.directory / name) for name in ("red", "blue"))
        first = stored(red, "m", 2)
        register(blue, keyspace_message(small_keyspace("m")))
        assert lookup(red, first)[0] == [2, 2, 2]
        assert lookup(blue, first)[0] == [0, 0, 0]
        stolen = Stream(daemon.directory / "blue")
        waiting = Channel(daemon.directory / "red")
        welcome, _ = waiting.hello()
        stolen.send(FrameKind.BIND, 1, pb.Bind(nonce=welcome.nonce).SerializeToString())
        assert error_frame(stolen).kind == pb.DENIED


def test_many_requests_in_flight_are_answered_in_order(client):
    first = stored(client, "flight", 2)
    request = pb.LookupRequest(keyspace=first.keyspace, lanes=[pb.Lane()], chain=first.chain)
    numbers = [client.start(FrameKind.LOOKUP, request) for _ in range(100)]
    assert [client.stream.receive()[1] for _ in numbers] == numbers


def test_unanswered_requests_are_bounded(client):
    first = stored(client, "bounded", 1)
    # Byte delivery without credit is answered only at its deadline.
    waiting = fetch_request(first, delivery=pb.DELIVERY_BYTES)
    limit = Limits().requests_per_session_max
    lease = lookup(client, first, lease=True)[1]
    sizes = np.full(3, 4096, "<u4").tobytes()
    request = pb.ReserveRequest(
        keyspace=first.keyspace, lane=pb.Lane(), chain=chain_of(1, seed=77), sizes=sizes
    )
    reserved = reserve_all(client, request)
    promises = [
        client.answer(client.start(FrameKind.FETCH, waiting), FrameKind.FETCH) for _ in range(limit)
    ]
    with pytest.raises(Refused) as refused:
        client.call(FrameKind.FETCH, waiting)
    assert refused.value.kind == pb.OVERLOADED and str(limit) in refused.value.message
    # What gives back, or keeps, is answered at once and adds nothing: it may come all the same.
    client.call(FrameKind.RENEW, pb.RenewRequest(lease=lease))
    for given in (lease, promises[0].lease):
        client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=given))
    client.call(FrameKind.ABORT, pb.AbortRequest(reservation=reserved.reservation))
    client.stream.send(FrameKind.CANCEL, 3 + 1, b"")


# ---- processes ----

CHILD = """
import os, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.e2e.rawclient import *
from tests.e2e.strips import *
client = RawClient(Path({tenant!r}))
keyspace = register(client, keyspace_message(small_keyspace("child")))
chain = chain_of(3)
sizes = np.full((3, 3), 4096, "<u4")
reserved, deadline = pb.ReserveReply(reason=pb.GROWING), time.monotonic() + 30
while reserved.reason == pb.GROWING and time.monotonic() < deadline:
    reserved = client.call(FrameKind.RESERVE, pb.ReserveRequest(
        keyspace=keyspace, lane=pb.Lane(), chain=chain, sizes=sizes.tobytes()))
assert reserved.reservation, reserved
print("reserved", flush=True)
sys.stdin.read()
"""


def test_a_killed_client_leaves_nothing_and_its_slab_is_written_by_the_next(
    short_directory,
):
    with running(short_directory, "--tenant", "default") as daemon:
        code = CHILD.format(root=str(ROOT), tenant=str(daemon.tenant))
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "reserved\n"
        before = daemon.descriptors("socket:"), daemon.descriptors("pidfd")
        child.send_signal(signal.SIGKILL)
        child.wait(DEADLINE_S)
        client = RawClient(daemon.tenant)
        # More than one slab: this fits only once the dead writer's slab is free to write.
        keyspace = register(client, keyspace_message(small_keyspace("child", layers=2)))
        big = np.full((20, 3), 2 << 20, "<u4")
        request = pb.ReserveRequest(
            keyspace=keyspace, lane=pb.Lane(), chain=chain_of(20), sizes=big.tobytes()
        )
        reserved = reserve_all(client, request)
        assert len(set(np.frombuffer(reserved.slabs, "<u4").tolist())) == 2
        chain = chain_of(20)
        counts = client.call(
            FrameKind.LOOKUP, pb.LookupRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=chain)
        )
        assert np.frombuffer(counts.counts, "<u4").tolist() == [0, 0, 0]
        assert (daemon.descriptors("socket:"), daemon.descriptors("pidfd")) == before


NOBODY = 65534
DENIED = """
import ctypes, os, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.e2e.rawclient import *
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
try:
    Channel(Path({tenant!r})).hello()
except Refused as refused:
    print(refused.kind, refused.message)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_foreign_uid_is_denied_by_name(short_directory):
    short_directory.chmod(0o755)
    with running(short_directory / "d", "--allow-uid", "12345") as daemon:
        code = DENIED.format(root=str(ROOT), tenant=str(daemon.tenant), uid=NOBODY)
        child = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert child.stdout.startswith(str(pb.DENIED)), child.stderr
        assert str(NOBODY) in child.stdout and "12345" in child.stdout
        daemon.wait_line(f"denied session from uid {NOBODY}")


REOPEN = """
import ctypes, mmap, os, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.e2e.rawclient import *
from tests.e2e.strips import *
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
client = RawClient(Path({tenant!r}))
keyspace = register(client, keyspace_message(small_keyspace("reopen")))
request = pb.FetchRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=chain_of(2), class_count=3)
promise = client.call(FrameKind.FETCH, request)
slab = int(np.frombuffer(promise.lanes[0].slabs, "<u4")[0])
size, descriptor, _ = client.channel.slab(slab)
mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
try:
    os.open("/proc/self/fd/%d" % descriptor, os.O_RDWR)
    print("reopened")
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_reading_slab_descriptor_cannot_be_reopened_by_another_user(short_directory):
    short_directory.chmod(0o755)
    with running(short_directory / "d", "--allow-uid", "0", "--allow-uid", str(NOBODY)) as daemon:
        client = RawClient(daemon.tenant)
        stored(client, "reopen", 2)
        code = REOPEN.format(root=str(ROOT), tenant=str(daemon.tenant), uid=NOBODY)
        child = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert child.stdout == "refused\n", child.stderr

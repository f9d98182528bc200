"""What a hostile client does to the memory it was given: cut, punched, sealed, written over.

The daemon and every reader live on, and no wrong byte is called good.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import threading

import numpy as np
import pytest

from kvd.arena.memfd import F_ADD_SEALS
from kvd.client import EXACT, Client, Delivery, Reason
from kvd.client.slabs import SlabTable
from kvd.v1 import kvd_pb2 as pb
from tests.e2e import client_story as story
from tests.e2e.process import DEADLINE_S, running
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.ssd_node import until
from tests.e2e.strips import put, read_mapped, register

KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO_RANGE = 1, 2, 8, 16
SEALS = (0x01, 0x02, 0x04, 0x08, 0x10)  # Seal, shrink, grow, write, future write.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("h"), "--dram", "256MiB") as made:
        yield made


@pytest.fixture
def hostile(daemon, monkeypatch):
    """Return a client that keeps the descriptors it got, and the writable ones by slab."""
    kept: dict[int, int] = {}
    real = SlabTable.give

    def give(self, number, fd, size, *, writable):
        if writable:
            kept[number] = os.dup(fd)
        real(self, number, fd, size, writable=writable)

    monkeypatch.setattr(SlabTable, "give", give)
    with story.connected(daemon.tenant) as client:
        assert client.keyspace(story.KEYSPACE).clear().reason == Reason.NONE
        story.store(client)
        monkeypatch.setattr(SlabTable, "give", real)
        assert kept, "it was given nothing to write"
        yield client, kept
    for descriptor in kept.values():
        os.close(descriptor)


@pytest.fixture
def reader(daemon):
    with story.connected(daemon.tenant) as client:
        yield client


def fallocate(descriptor: int, mode: int, offset: int, size: int) -> str:
    """Return the name of the errno, or nothing."""
    done = _libc.fallocate(descriptor, mode, offset, size)
    return errno.errorcode[ctypes.get_errno()] if done else ""


def denied(action, *arguments) -> bool:
    try:
        action(*arguments)
    except OSError as error:
        return error.errno in (errno.EPERM, errno.EACCES, errno.EBADF, errno.EINVAL)
    return False


def good_of(client: Client, delivery: Delivery) -> int:
    """Return how many chunks are called good, having compared them."""
    targets, right = story.blanks(), story.tensors()
    space = client.keyspace(story.KEYSPACE)
    with space.fetch(story.chain_of(client), delivery=delivery) as fetch:
        list(fetch.arrivals())
        good = fetch.decode(story.ALL, EXACT, targets) if fetch.counts[2] else 0
    end = good * story.CHUNK_TOKENS
    for ours, theirs in zip(targets, right, strict=True):
        for target, tensor in zip(ours, theirs, strict=True):
            assert np.array_equal(target[:, :end], tensor[:, :end])
    return good


def heals(client: Client) -> bool:
    """Return whether another put mends it."""
    story.store(client)
    return story.read_all(client)


# ---- what a descriptor is good for ----


def test_memory_can_be_neither_cut_nor_grown_nor_sealed(hostile, reader):
    for descriptor in hostile[1].values():
        size = os.fstat(descriptor).st_size
        for change in (0, 4096, size // 2, size + 4096):
            assert denied(os.ftruncate, descriptor, change)
        for seal in SEALS:
            assert denied(fcntl.fcntl, descriptor, F_ADD_SEALS, seal)
        assert fallocate(descriptor, 0, size, 4096) == "EPERM"
        assert fallocate(descriptor, COLLAPSE, 0, 4096)
    assert story.read_all(reader)


def test_a_readers_descriptor_changes_nothing_at_all(daemon, hostile):
    raw = RawClient(daemon.tenant)
    writer = RawClient(daemon.tenant)
    keyspaces = [register(c, keyspace_message(small_keyspace("r"))) for c in (writer, raw)]
    stored = put(writer, keyspaces[0], chain_of(3), 4, 100)
    read_mapped(raw, stored)
    for size, descriptor, writable in raw.channel.slabs.values():
        assert not writable
        assert denied(mmap.mmap, descriptor, size)
        assert denied(os.pwrite, descriptor, b"x", 0)
        assert denied(os.ftruncate, descriptor, 0)
        assert fallocate(descriptor, KEEP_SIZE | PUNCH_HOLE, 0, size)
        for seal in SEALS:
            assert denied(fcntl.fcntl, descriptor, F_ADD_SEALS, seal)
        shared = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        address = np.frombuffer(shared, np.uint8).ctypes.data
        assert _libc.mprotect(ctypes.c_void_p(address), 4096, mmap.PROT_READ | mmap.PROT_WRITE)
    read_mapped(raw, stored)
    for client in (raw, writer):
        client.close()


# ---- what a writer can do ----


def _write_over(descriptor: int, size: int) -> None:
    with mmap.mmap(descriptor, size) as memory:
        memory[:] = b"\xee" * size


def _punch(descriptor: int, size: int) -> None:
    assert fallocate(descriptor, KEEP_SIZE | PUNCH_HOLE, 0, size) == ""


def _shift(descriptor: int, size: int) -> None:
    """Every strip in the place of its neighbour, whole and with a sound table."""
    with mmap.mmap(descriptor, size) as memory:
        memory.move(4096, 0, size - 4096)


@pytest.mark.parametrize("delivery", list(Delivery))
def test_what_a_writer_spoils_behind_its_seal_is_a_miss_and_heals(hostile, reader, delivery):
    """For everybody, also for itself."""
    client, descriptors = hostile
    space, blamed = reader.keyspace(story.KEYSPACE), 0
    for harm in (_write_over, _punch, _shift):
        assert good_of(reader, delivery) == story.CHUNKS
        for descriptor in descriptors.values():
            harm(descriptor, os.fstat(descriptor).st_size)
        assert good_of(reader, delivery) == 0
        # The daemon sends no strip without a table, and its reader has nothing to blame then.
        counted = reader.status().counters.checksum_failures
        assert counted > blamed if delivery == Delivery.MAP else counted == 0
        blamed = counted
        until(lambda: space.lookup(story.chain_of(reader)).counts[2] == 0, "it is set aside")
        assert good_of(client, delivery) == 0
        until(lambda: _heals(client, reader, delivery), "it heals")


def _heals(writer: Client, reader: Client, delivery: Delivery) -> bool:
    """Return whether another put mends it; of a delivery only the first broken strip is known."""
    story.store(writer)
    return good_of(reader, delivery) == story.CHUNKS


def test_memory_that_is_punched_again_and_again_kills_nobody(daemon, hostile, reader):
    """While others map, are sent and put: a page that goes comes back as zeros, not as SIGBUS."""
    client, descriptors = hostile
    over, harmed = threading.Event(), threading.Event()

    def punch() -> None:
        while not over.is_set():
            for descriptor in descriptors.values():
                _punch(descriptor, os.fstat(descriptor).st_size)
            harmed.set()

    thread = threading.Thread(target=punch)
    thread.start()
    try:
        assert harmed.wait(DEADLINE_S)
        for _ in range(20):
            for delivery in Delivery:
                good_of(reader, delivery)
            client.keyspace(story.KEYSPACE).put(story.chain_of(client), story.tensors())
    finally:
        over.set()
        thread.join(DEADLINE_S)
    assert daemon.process.poll() is None
    until(lambda: heals(reader), "it heals")


def test_a_slab_that_is_said_to_be_detached_and_written_harms_its_tenant_only(daemon, hostile):
    """A detach is a client's word; what lies behind a lie is caught by the readers' checks."""
    client, descriptors = hostile
    for number in descriptors:
        client._link.thread().post(client._link.current.detached, number)
    with story.connected(daemon.tenant) as second:
        space = second.keyspace(story.KEYSPACE)
        chain = space.chain(np.arange(story.TOKENS) + 7)
        assert space.put(chain, story.tensors(7)).stored == story.CHUNKS
        for descriptor in descriptors.values():
            _write_over(descriptor, os.fstat(descriptor).st_size)
        with space.fetch(chain) as fetch:
            targets = story.blanks()
            good = fetch.decode(story.ALL, EXACT, targets)
            assert good == 0 or story.equal(targets, story.tensors(7))
    assert daemon.process.poll() is None


def test_roots_that_are_lies_are_misses(daemon, reader):
    """A raw client may seal any number as a root: it is what readers then compare with."""
    raw = RawClient(daemon.tenant)
    keyspace = register(raw, keyspace_message(small_keyspace("lies")))
    lied = put(raw, keyspace, chain_of(3), 4, 100)
    seen = read_mapped(raw, lied)
    assert isinstance(seen, pb.Promise) and seen.lease
    space = reader.keyspace(small_keyspace("lies"))
    with space.fetch(lied.chain) as fetch:
        blank = [[np.zeros((1, 12, 8), np.uint16) for _ in range(2)] for _ in range(2)]
        assert fetch.counts == (3, 3, 3) and fetch.decode((0, 2), EXACT, blank) == 0
    raw.close()

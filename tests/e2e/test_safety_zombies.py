"""Who may still write in a slab: a client that is not there any more, its children, its friends.

What they write then is never among the bytes that the daemon offers to anybody else.
"""

import itertools

import numpy as np
import pytest

from kvd.limits import KIB, MIB
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.process import running
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import Stored, lookup, put, read_mapped, register
from tests.e2e.zombie import CHUNKS, zombie

SLABS, SLAB = 4, 4 * MIB
CELLS, CELL_BYTES = 4, 85 * KIB  # Three strips of such are about a mebibyte.
CHUNKS_OF_SLAB = 3
STRIPS_OF_SLAB = 3 * CHUNKS_OF_SLAB


@pytest.fixture
def daemon(short_directory):
    file = short_directory / "kvd.toml"
    file.write_text(f'[limits]\nslab_bytes = "{SLAB >> 20}MiB"\n')
    flags = ("--config", str(file), "--dram", f"{SLABS * SLAB >> 20}MiB")
    with running(short_directory / "run", *flags, "--tenant", "a", "--tenant", "b") as daemon:
        yield daemon


class Neighbour:
    """Another client: puts and reads, and knows every byte that it put."""

    def __init__(self, directory) -> None:
        self.client = RawClient(directory)
        self.keyspace = register(self.client, keyspace_message(small_keyspace("neighbour")))
        self.stored: list[Stored] = []
        self._seeds = itertools.count(5000, 100)

    def put(self) -> None:
        chain = chain_of(1, next(self._seeds))
        self.stored.append(put(self.client, self.keyspace, chain, CELLS, CELL_BYTES))

    def read(self) -> int:
        """Compare every byte of what is there; return how many strips that are."""
        good = 0
        for stored in self.stored:
            promise = read_mapped(self.client, stored)
            good += int(np.frombuffer(promise.counts, "<u4").sum())
            if promise.lease:
                release = pb.ReleaseRequest(lease=promise.lease)
                self.client.call(FrameKind.RELEASE, release)
        return good

    @property
    def written(self) -> set[int]:
        return {number for number, slab in self.client.channel.slabs.items() if slab[2]}


@pytest.mark.parametrize(
    ("how", "tenant"), [("close", "a"), ("fork", "a"), ("send", "a"), ("send", "b")]
)
def test_what_a_zombie_writes_is_in_nothing_that_is_offered(daemon, how, tenant):
    """Its process lives on, a child of it does, or one that it sent its descriptors to (I4)."""
    with zombie(daemon.directory / "a") as writer:
        assert writer.tell(how)
        neighbour = Neighbour(daemon.directory / tenant)
        for _ in range(3 * SLABS * CHUNKS_OF_SLAB):
            neighbour.put()
        assert writer.tell("write") == "written"
        assert neighbour.read() >= 2 * STRIPS_OF_SLAB
        assert not writer.slabs & neighbour.written, "two could write there"
        writer.let_go()
        neighbour.put()
        assert neighbour.read() >= 2 * STRIPS_OF_SLAB
        neighbour.client.close()


@pytest.mark.parametrize("how", ("fork", "send"))
def test_what_a_child_leaves_is_written_again_and_was_read_meanwhile(daemon, how):
    with zombie(daemon.directory / "a") as writer:
        assert writer.tell(how)
        neighbour = Neighbour(daemon.directory / "a")
        keyspace = register(neighbour.client, keyspace_message(small_keyspace("zombie")))
        left = Stored(keyspace, chain_of(CHUNKS), {})
        held, lease = lookup(neighbour.client, left, lease=True)
        assert held == [CHUNKS] * 3 and lease
        for _ in range(SLABS * CHUNKS_OF_SLAB):
            neighbour.put()
        assert not writer.slabs & neighbour.written
        writer.let_go()
        for _ in range(20 * SLABS * CHUNKS_OF_SLAB):
            neighbour.put()
            if writer.slabs & neighbour.written:
                break
        else:
            raise AssertionError("nobody may write there, and nobody does")
        assert neighbour.read() >= 2 * STRIPS_OF_SLAB
        neighbour.client.close()

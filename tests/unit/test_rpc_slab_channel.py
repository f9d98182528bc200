"""The slab channel's sending side: bounded, and with the right descriptor whatever happens."""

import asyncio
import contextlib
import os
import socket

import pytest

from kvd.errors import ErrorKind, KvdError
from kvd.rpc.slab_channel import QUEUED_MAX, SlabChannel
from kvd.v1 import kvd_pb2 as pb

DEADLINE_S = 20.0


def given(slab: int) -> pb.ToClient:
    return pb.ToClient(slab_given=pb.SlabGiven(slab=slab, size=slab))


class Pair:
    """A channel, and the peer's end of its socket."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.messages: list[pb.ToDaemon] = []
        self.closed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.channel = SlabChannel(ours, loop, self.messages.append, self.closed.set)
        self.channel.start(lambda end, action: action())
        self.peer.settimeout(DEADLINE_S)

    def receive(self) -> tuple[pb.ToClient, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.peer, 65536, 4)
        return pb.ToClient.FromString(data), descriptors


def open_like(words: str) -> int:
    """Return how many descriptors /proc describes with `words`; others come and go meanwhile."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(words in link for link in links)


def fill(pair: Pair, descriptor: int) -> int:
    """Send until the queue is full; return how many were taken."""
    sent = 0
    with pytest.raises(BlockingIOError, match=str(QUEUED_MAX)):
        while True:
            pair.channel.send(given(sent + 1), descriptor)
            sent += 1
    return sent


def test_a_peer_that_reads_nothing_is_bounded():
    async def main():
        pair = Pair()
        read, write = os.pipe()
        pipe = os.readlink(f"/proc/self/fd/{write}")
        sent = fill(pair, write)
        assert QUEUED_MAX < sent < QUEUED_MAX + 100 and not pair.channel.is_flushed()
        assert open_like(pipe) == 2 + QUEUED_MAX
        pair.channel.close()
        assert pair.closed.is_set()
        assert open_like(pipe) == 2
        os.close(read)
        os.close(write)

    asyncio.run(main())


def test_what_was_queued_carries_the_file_it_was_sent_with():
    async def main():
        pair = Pair()
        read, write = os.pipe()
        sent = fill(pair, write)
        # The slab is destroyed, and its number becomes another file's.
        os.dup2(read, write)
        os.close(write)
        for number in range(1, sent + 1):
            message, descriptors = await asyncio.to_thread(pair.receive)
            assert message.slab_given.slab == number
            os.write(descriptors[0], b"k")
            os.close(descriptors[0])
        assert os.read(read, 2 * sent) == b"k" * sent
        await asyncio.sleep(0)
        assert pair.channel.is_flushed()
        os.close(read)
        pair.channel.close()

    asyncio.run(main())


def test_a_refusal_is_said_and_then_the_end():
    async def main():
        pair = Pair()
        pair.channel.refuse(KvdError(ErrorKind.DENIED, "no"))
        assert pair.receive()[0].refused.kind == pb.DENIED
        assert pair.peer.recv(10) == b"" and pair.closed.is_set()
        with pytest.raises(OSError):
            pair.channel.send(given(1))
        pair.channel.close()

    asyncio.run(main())


def test_a_peer_that_hangs_up_closes_the_channel():
    async def main():
        pair = Pair()
        detached = pb.ToDaemon(slab_detached=pb.SlabDetached(slab=3))
        pair.peer.send(detached.SerializeToString())
        pair.peer.close()
        await asyncio.wait_for(pair.closed.wait(), DEADLINE_S)
        assert pair.messages == [detached]

    asyncio.run(main())

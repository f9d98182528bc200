"""The slab channel's sending side: bounded, and with the right descriptor whatever happens."""

import asyncio
import contextlib
import os
import socket

import pytest

from kvd.errors import ErrorKind, KvdError
from kvd.rpc.slab_channel import SlabChannel
from kvd.v1 import kvd_pb2 as pb

DEADLINE_S = 20.0
SLABS = 1500  # Shown in one step: 100 GB in slabs of 64 MiB.
FOR_EVER_S = 1e9


def given(slab: int) -> pb.ToClient:
    return pb.ToClient(slab_given=pb.SlabGiven(slab=slab, size=slab))


def gone(slab: int) -> pb.ToClient:
    return pb.ToClient(slab_gone=pb.SlabGone(slab=slab))


def recalled(slab: int) -> pb.ToClient:
    return pb.ToClient(slab_recalled=pb.SlabRecalled(slab=slab))


class Pair:
    """A channel, and the peer's end of its socket."""

    def __init__(self, patience_s: float = FOR_EVER_S) -> None:
        ours, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.messages: list[pb.ToDaemon] = []
        self.closed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.channel = SlabChannel(ours, loop, self.messages.append, self.closed.set, patience_s)
        self.channel.start(lambda end, action: action())
        self.peer.settimeout(DEADLINE_S)

    def receive(self) -> tuple[pb.ToClient, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.peer, 65536, 4)
        return pb.ToClient.FromString(data), descriptors

    def receive_all(self, count: int) -> list[tuple[pb.ToClient, list[int]]]:
        return [self.receive() for _ in range(count)]

    def fill(self) -> int:
        """Send messages that are about no slab until one waits; return how many there are."""
        sent = 0
        while self.channel.is_flushed():
            self.channel.send(pb.ToClient(refused=pb.Error(message="x")))
            sent += 1
        return sent


@contextlib.contextmanager
def piped():
    """Yield both ends of a pipe and how many descriptors of it are open, as a function."""
    read, write = os.pipe()
    name = os.readlink(f"/proc/self/fd/{write}")
    try:
        yield read, write, lambda: open_like(name)
    finally:
        os.close(read)
        with contextlib.suppress(OSError):
            os.close(write)


def open_like(words: str) -> int:
    """Return how many descriptors /proc describes with `words`; others come and go meanwhile."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(words in link for link in links)


def test_a_peer_that_reads_is_shown_any_number_of_slabs_in_one_step():
    async def main():
        pair = Pair(patience_s=DEADLINE_S)
        with piped() as (read, write, count):
            for slab in range(1, SLABS + 1):
                pair.channel.show(given(slab), lambda: write)
            assert count() <= 2, "what waits holds no descriptors"
            got = await asyncio.to_thread(pair.receive_all, SLABS)
            assert [message.slab_given.slab for message, _ in got] == list(range(1, SLABS + 1))
            for _, [descriptor] in got:
                os.write(descriptor, b"k")
                os.close(descriptor)
            assert os.read(read, 2 * SLABS) == b"k" * SLABS
        await asyncio.sleep(0)
        assert pair.channel.is_flushed() and not pair.closed.is_set()
        pair.channel.close()

    asyncio.run(main())


def test_a_slab_that_is_gone_before_it_was_read_is_not_spoken_of():
    async def main():
        pair = Pair()
        filled = pair.fill()
        with piped() as (_, write, count):
            pair.channel.show(given(1), lambda: write)
            pair.channel.send(given(1), write)
            pair.channel.show(given(2), lambda: write)
            assert count() == 3
            pair.channel.send(gone(1))
            assert count() == 2
            await asyncio.to_thread(pair.receive_all, filled)
            message, [descriptor] = await asyncio.to_thread(pair.receive)
            assert message == given(2)
            os.close(descriptor)
            pair.channel.send(gone(1))
            pair.channel.send(gone(2))
            assert pair.receive() == (gone(2), [])
        pair.channel.close()

    asyncio.run(main())


def test_the_descriptor_of_a_slab_that_was_destroyed_is_not_sent():
    async def main():
        pair = Pair()
        filled = pair.fill()
        slabs: dict[int, int] = {}
        pair.channel.show(given(1), lambda: slabs[1])
        pair.channel.send(recalled(2))
        await asyncio.to_thread(pair.receive_all, filled)
        assert await asyncio.to_thread(pair.receive) == (recalled(2), [])
        pair.channel.close()

    asyncio.run(main())


def test_what_is_to_be_written_is_not_given_once_the_peer_gave_it_up():
    """So a peer that takes and gives up without reading has no more queued than slabs."""

    async def main():
        pair = Pair()
        filled = pair.fill()
        with piped() as (_, write, count):
            pair.channel.show(given(1), lambda: write)
            for _ in range(SLABS):
                pair.channel.send(given(1), write)
                pair.channel.send(recalled(1))
                pair.channel.detached(1)
            assert count() == 2
            pair.channel.send(given(1), write)
            await asyncio.to_thread(pair.receive_all, filled)
            got = await asyncio.to_thread(pair.receive_all, 2)
            assert [message for message, _ in got] == [given(1), given(1)]
            for _, [descriptor] in got:
                os.close(descriptor)
        pair.channel.close()

    asyncio.run(main())


def test_a_peer_that_reads_nothing_for_long_is_given_up():
    async def main():
        pair = Pair(patience_s=0.0)
        with piped() as (_, write, count), pytest.raises(BlockingIOError, match="not read"):
            pair.fill()
            for slab in range(1, SLABS):
                pair.channel.send(given(slab), write)
                assert count() <= 2 + slab
        pair.channel.close()
        assert pair.closed.is_set()

    asyncio.run(main())


def test_a_peer_that_read_while_the_loop_was_late_is_not():
    async def main():
        pair = Pair(patience_s=0.0)
        filled = pair.fill()
        pair.receive_all(filled - 1)  # The loop has no turn meanwhile.
        pair.channel.send(recalled(1))
        pair.receive()
        assert pair.receive() == (recalled(1), [])
        pair.channel.close()

    asyncio.run(main())


def test_what_was_queued_for_writing_carries_the_file_it_was_sent_with():
    async def main():
        pair = Pair()
        filled = pair.fill()
        with piped() as (read, write, count):
            for slab in range(1, SLABS):
                pair.channel.send(given(slab), write)
            assert count() == 2 + SLABS - 1
            # The slab is destroyed, and its number becomes another file's.
            os.dup2(read, write)
            os.close(write)
            await asyncio.to_thread(pair.receive_all, filled)
            for slab in range(1, SLABS):
                message, [descriptor] = await asyncio.to_thread(pair.receive)
                assert message.slab_given.slab == slab
                os.write(descriptor, b"k")
                os.close(descriptor)
            assert os.read(read, 2 * SLABS) == b"k" * (SLABS - 1)
        await asyncio.sleep(0)
        assert pair.channel.is_flushed()
        pair.channel.close()

    asyncio.run(main())


def test_what_waits_is_closed_with_the_channel():
    async def main():
        pair = Pair()
        pair.fill()
        with piped() as (_, write, count):
            for slab in range(1, 100):
                pair.channel.send(given(slab), write)
            assert count() == 101
            pair.channel.close()
            assert count() == 2

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

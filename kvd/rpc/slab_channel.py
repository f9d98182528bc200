"""The slab channel: one SOCK_SEQPACKET connection with descriptors, a message for each packet.

Moves messages; knows nothing of sessions. Sending never blocks: a queue takes what the socket does
not. One step may show a thousand slabs before the loop gets to send again, so it is no count that
shows a peer to be stuck. The queue is bounded by what there is to say of each slab.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from kvd.clock import NS_PER_S
from kvd.errors import KvdError
from kvd.limits import KIB, Limits
from kvd.rpc.replies import error_of
from kvd.rpc.wishes import invalid
from kvd.v1 import kvd_pb2 as pb

PACKET_BYTES_MAX = 4 * KIB
SENT_AT_ONCE = 64  # Packets of one peer's queue, before others have their turn of the loop.
PATIENCE_SECONDS = Limits().lease_ttl_ns / NS_PER_S

Find = Callable[[], int]  # Returns a slab's reading descriptor; KeyError once it is destroyed.


@dataclass(eq=False, slots=True)
class Packet:
    """With `find`, its descriptor is looked up when sent; any other is its own once queued."""

    data: bytes
    slab: int = 0  # That it is about.
    descriptor: int = -1
    find: Find | None = None


class SlabChannel:
    """`on_message` gets every message; `on_closed` is called once, when no more can come."""

    def __init__(
        self,
        connection: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[pb.ToDaemon], None],
        on_closed: Callable[[], None],
        patience_s: float = PATIENCE_SECONDS,
    ) -> None:
        """A peer that took nothing for `patience_s` is given up when there is more to say."""
        self.connection, self._patience_s = connection, patience_s
        self._loop, self._on_message, self._on_closed = loop, on_message, on_closed
        self._queue: deque[Packet] = deque()
        self._moved_s = 0.0  # When the queue last became shorter, or began.
        self._known: set[int] = set()  # Slabs that were sent, until they are gone.

    def start(self, contain: Callable[..., None]) -> None:
        """Begin to read; `contain` runs what reads, and ends the connection if that raises."""
        self._loop.add_reader(self.connection.fileno(), contain, self.close, self._readable)

    def send(self, message: pb.ToClient, descriptor: int = -1) -> None:
        """Send a message, and a descriptor that stays the caller's; raise OSError."""
        slab = _slab_of(message)
        if message.HasField("slab_gone"):
            _withdraw(self._queue, lambda packet: packet.slab == slab)
            if slab not in self._known:
                return
            self._known.discard(slab)
        self._put(Packet(message.SerializeToString(), slab, descriptor))

    def show(self, message: pb.ToClient, find: Find) -> None:
        """Send a message with the descriptor that `find` returns by then; raise OSError."""
        self._put(Packet(message.SerializeToString(), _slab_of(message), find=find))

    def detached(self, slab: int) -> None:
        """Take back what was not read yet about writing in a slab that the peer gave up.

        So no more of it is queued than there are slabs, and nobody writes who need not.
        """
        _withdraw(self._queue, lambda packet: packet.slab == slab and packet.find is None)

    def refuse(self, error: KvdError) -> None:
        """Say why, if that can still be said, and close."""
        with contextlib.suppress(OSError):  # The end of the connection says it too.
            self.send(pb.ToClient(refused=error_of(error)))
        self.close()

    def is_flushed(self) -> bool:
        return not self._queue

    def close(self) -> None:
        number = self.connection.fileno()
        if number < 0:
            return
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
        self.connection.close()
        while self._queue:
            _close(self._queue.popleft())
        self._on_closed()

    def _put(self, packet: Packet) -> None:
        if self.connection.fileno() < 0:
            raise BrokenPipeError(errno.EPIPE, "the slab channel is closed")
        if self._queue:
            self._check_patience()
        if not self._queue and self._transmit(packet):
            return
        if packet.descriptor >= 0:
            # The slab may be destroyed, and its number be another file's, before this is sent.
            packet.descriptor = os.dup(packet.descriptor)
        if not self._queue:
            self._loop.add_writer(self.connection.fileno(), self._writable)
            self._moved_s = self._loop.time()
        self._queue.append(packet)

    def _check_patience(self) -> None:
        """Raise BlockingIOError when the peer takes nothing and has taken nothing for long."""
        if self._loop.time() - self._moved_s <= self._patience_s:
            return
        count = len(self._queue)
        self._flush()  # It may be the loop that was late.
        if len(self._queue) == count:
            what = f"{count} messages on the slab channel were not read"
            raise BlockingIOError(errno.EAGAIN, f"{what} for {self._patience_s:g} s")

    def _transmit(self, packet: Packet) -> bool:
        try:
            descriptor = packet.find() if packet.find is not None else packet.descriptor
        except KeyError:
            return True  # Nobody can have it any more.
        descriptors = [descriptor] if descriptor >= 0 else []
        try:
            socket.send_fds(self.connection, [packet.data], descriptors, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        if packet.slab and descriptors:
            self._known.add(packet.slab)
        return True

    def _flush(self) -> None:
        """Send what the socket takes; raise OSError."""
        for _ in range(SENT_AT_ONCE):
            if not self._queue or not self._transmit(self._queue[0]):
                break
            _close(self._queue.popleft())
            self._moved_s = self._loop.time()
        if not self._queue:
            self._loop.remove_writer(self.connection.fileno())

    def _writable(self) -> None:
        try:
            self._flush()
        except OSError:
            self.close()

    def _readable(self) -> None:
        try:
            # No room for descriptors: the kernel closes any that a client sends.
            data, _, flags, _ = self.connection.recvmsg(PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not data:
            self.close()
        elif flags & socket.MSG_TRUNC:
            self.refuse(invalid(f"a packet passes the limit of {PACKET_BYTES_MAX} bytes"))
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        try:
            message = pb.ToDaemon.FromString(data)
        except DecodeError:
            self.refuse(invalid(f"{len(data)} bytes on the slab channel are no ToDaemon"))
            return
        self._on_message(message)


def _withdraw(queue: deque[Packet], is_void: Callable[[Packet], bool]) -> None:
    for packet in [packet for packet in queue if is_void(packet)]:
        queue.remove(packet)
        _close(packet)


def _slab_of(message: pb.ToClient) -> int:
    """Return the slab that a message is about; 0 without one."""
    said = getattr(message, message.WhichOneof("message") or "", None)
    return getattr(said, "slab", 0)


def _close(packet: Packet) -> None:
    if packet.descriptor >= 0:
        os.close(packet.descriptor)

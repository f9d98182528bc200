"""The slab channel: one SOCK_SEQPACKET connection with descriptors, a message for each packet.

Moves messages; knows nothing of sessions. Sending never blocks: a bounded queue takes what the
socket does not, and a peer that lets it fill up is given up.
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

from kvd.errors import KvdError
from kvd.limits import KIB
from kvd.rpc.replies import error_of
from kvd.rpc.wishes import invalid
from kvd.v1 import kvd_pb2 as pb

PACKET_BYTES_MAX = 4 * KIB
QUEUED_MAX = 256  # A client maps what it is given at once, or it is stuck.


@dataclass(frozen=True, slots=True)
class Packet:
    data: bytes
    descriptor: int  # -1 without one.


class SlabChannel:
    """`on_message` gets every message; `on_closed` is called once, when no more can come."""

    def __init__(
        self,
        connection: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[pb.ToDaemon], None],
        on_closed: Callable[[], None],
    ) -> None:
        self.connection = connection
        self._loop, self._on_message, self._on_closed = loop, on_message, on_closed
        self._queue: deque[Packet] = deque()

    def start(self, contain: Callable[..., None]) -> None:
        """Begin to read; `contain` runs what reads, and ends the connection if that raises."""
        self._loop.add_reader(self.connection.fileno(), contain, self.close, self._readable)

    def send(self, message: pb.ToClient, descriptor: int = -1) -> None:
        """Send a message, and a descriptor that stays the caller's; raise OSError."""
        if self.connection.fileno() < 0:
            raise BrokenPipeError(errno.EPIPE, "the slab channel is closed")
        packet = Packet(message.SerializeToString(), descriptor)
        if not self._queue and self._transmit(packet):
            return
        if len(self._queue) >= QUEUED_MAX:
            raise BlockingIOError(
                errno.EAGAIN, f"{QUEUED_MAX} messages on the slab channel were not read"
            )
        if descriptor >= 0:
            # The slab may be destroyed, and its number be another file's, before this is sent.
            packet = Packet(packet.data, os.dup(descriptor))
        if not self._queue:
            self._loop.add_writer(self.connection.fileno(), self._writable)
        self._queue.append(packet)

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

    def _transmit(self, packet: Packet) -> bool:
        descriptors = [packet.descriptor] if packet.descriptor >= 0 else []
        try:
            socket.send_fds(self.connection, [packet.data], descriptors, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        return True

    def _writable(self) -> None:
        try:
            while self._queue and self._transmit(self._queue[0]):
                _close(self._queue.popleft())
        except OSError:
            self.close()
            return
        if not self._queue:
            self._loop.remove_writer(self.connection.fileno())

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


def _close(packet: Packet) -> None:
    if packet.descriptor >= 0:
        os.close(packet.descriptor)

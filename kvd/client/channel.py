"""The slab channel: handshake and descriptors, one protobuf message per SOCK_SEQPACKET packet.

Owns its socket. Runs on the I/O thread.
"""

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator

from google.protobuf.message import DecodeError

from kvd.errors import ErrorKind, KvdError
from kvd.limits import KIB, PROTOCOL_MAX, PROTOCOL_MIN, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FEATURES

_MESSAGE_BYTES_MAX = 64 * KIB
_FD_BYTES = array.array("i").itemsize * Limits().fds_per_message_max

MessageCallback = Callable[[pb.ToClient, list[int]], None]


class SlabChannel:
    """Calls back with every message and its descriptors, which are closed when the call returns."""

    def __init__(
        self, path: str, on_message: MessageCallback, on_lost: Callable[[KvdError], None]
    ) -> None:
        """Connect, or raise OSError at once."""
        self._on_message, self._on_lost = on_message, on_lost
        self._loop = asyncio.get_running_loop()
        self.socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self._loop.add_reader(self.socket.fileno(), self._readable)

    def hello(self, name: str) -> None:
        hello = pb.Hello(
            protocol_min=PROTOCOL_MIN, protocol_max=PROTOCOL_MAX, features=FEATURES, client=name
        )
        self._send(pb.ToDaemon(hello=hello))

    def detached(self, slab: int) -> None:
        self._send(pb.ToDaemon(slab_detached=pb.SlabDetached(slab=slab)))

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            self._loop.remove_reader(self.socket.fileno())
            self.socket.close()

    def _send(self, message: pb.ToDaemon) -> None:
        if self.socket.fileno() < 0:
            return
        try:
            self.socket.send(message.SerializeToString())
        except OSError as error:  # A full queue too: a daemon that reads nothing is gone.
            self._lose(f"the slab channel takes no message ({error.strerror})")

    def _readable(self) -> None:
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(
                _MESSAGE_BYTES_MAX, socket.CMSG_SPACE(_FD_BYTES), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the slab channel broke ({error.strerror})")
            return
        with _owned(ancillary) as descriptors:
            if not data:
                self._lose("the daemon closed the slab channel")
            elif flags & socket.MSG_TRUNC:
                self._lose(f"a message on the slab channel exceeds {_MESSAGE_BYTES_MAX} bytes")
            else:
                self._parse(data, descriptors)

    def _parse(self, data: bytes, descriptors: list[int]) -> None:
        try:
            message = pb.ToClient.FromString(data)
        except DecodeError:
            self._lose("the slab channel carries something else than kvd's messages")
            return
        self._on_message(message, descriptors)

    def _lose(self, why: str) -> None:
        self.close()
        self._on_lost(KvdError(ErrorKind.LOST, why))


@contextlib.contextmanager
def _owned(ancillary: list[tuple[int, int, bytes]]) -> Iterator[list[int]]:
    """Yield the descriptors of a message; close them all behind it, used or not."""
    descriptors: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            descriptors.extend(numbers)
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)

"""One connection to a daemon: handshake, control page, slabs, requests, leases.

Lives on the I/O thread. Ends once and for all: a reconnect makes another session, and nothing of
this one (handles, leases, mappings) is used with it.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from kvd.client.channel import SlabChannel
from kvd.client.doors import SESSION_SOCKET, SLABS_SOCKET
from kvd.client.mapping import Mapping
from kvd.client.mending import LOOK_SECONDS, mend
from kvd.client.messages import error_of, garbage, keyspace_message
from kvd.client.requests import Requests
from kvd.client.slabs import SlabTable
from kvd.client.thread import IoThread
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace
from kvd.limits import DIGEST_BYTES, PAGE_BYTES
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import CONTROL_MAGIC, CONTROL_PAGE, REVOKE_OFFSET, FrameKind

HANDSHAKE_SECONDS = 5.0


class Session:
    def __init__(self, directory: Path, on_ended: Callable[[KvdError], None]) -> None:
        self.alive = False  # Read by any thread; false again for ever once it has ended.
        self.draining = False
        self.welcome = pb.Welcome()
        self.slabs = SlabTable(self.detached)
        self.requests = Requests(self._on_notice, self.end)
        self.on_lease_lost: dict[int, Callable[[], None]] = {}
        self.handles: dict[int, tuple[int, bytes]] = {}  # Handle and digest of keyspaces.
        self._directory, self._on_ended = directory, on_ended
        self._loop = asyncio.get_running_loop()
        self._channel: SlabChannel | None = None
        self._socket: socket.socket | None = None
        self._welcomed: asyncio.Future[pb.Welcome] = self._loop.create_future()
        self._control: Mapping | None = None
        self.puts = 0  # Which may still write, and end before the slabs are given back.

    async def connect(self, name: str) -> None:
        """Shake hands and bind the stream; raise KvdError or OSError, having closed everything."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._handshake(name)
        except TimeoutError:
            silence = f"the daemon does not answer within {HANDSHAKE_SECONDS:g} s; is it stopped?"
            raise KvdError(ErrorKind.UNAVAILABLE, silence) from None
        finally:
            if not self.alive:
                self._close(KvdError(ErrorKind.LOST, "the connection was not completed"))

    async def _handshake(self, name: str) -> None:
        path = str(self._directory / SLABS_SOCKET)
        self._channel = SlabChannel(path, self._on_message, self.end)
        self._channel.hello(name)
        self.welcome = await self._welcomed
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.connect(str(self._directory / SESSION_SOCKET))
        await self.requests.stream.connect(self._socket)
        bind = pb.Bind(nonce=self.welcome.nonce)
        await self.requests.request(FrameKind.BIND, bind, HANDSHAKE_SECONDS)
        self.alive = True

    def end(self, error: KvdError) -> None:
        """End the session: every request is answered with `error`, every lease is lost."""
        was_alive = self.alive
        self._close(error)
        if was_alive:
            self._on_ended(error)

    def _close(self, error: KvdError) -> None:
        self.alive = False
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            self._welcomed.exception()  # Perhaps nobody waits for it any more.
        if self._channel is not None:
            self._channel.close()
        if self._socket is not None and self.requests.stream.transport is None:
            self._socket.close()
        self.requests.close(error)
        lost, self.on_lease_lost = self.on_lease_lost, {}
        for callback in lost.values():
            callback()
        self.slabs.clear()

    def after_fork(self) -> None:
        """Close the parent's sockets in the child, so that their end still means its end."""
        self.alive = False
        self.requests.stream.after_fork()
        for owned in (self._socket, self._channel.socket if self._channel else None):
            if owned is not None and owned.fileno() >= 0:
                with contextlib.suppress(OSError):
                    os.close(owned.detach())

    def revokes(self) -> int:
        """Return the revoke counter: what was read in slabs before it moved may be wrong."""
        assert self._control is not None
        return self._control.word(REVOKE_OFFSET)

    async def keyspace(
        self, keyspace: Keyspace, number: int, timeout_s: float
    ) -> tuple[int, bytes]:
        """Return handle and digest of a keyspace, registered with this session on first use.

        `number` is the client's own of it, which is quicker to look up.
        """
        known = self.handles.get(number)
        if known is not None:
            return known
        message = pb.RegisterKeyspaceRequest(keyspace=keyspace_message(keyspace))
        kind = FrameKind.REGISTER_KEYSPACE
        reply = await self.requests.request(kind, message, timeout_s)
        assert isinstance(reply, pb.RegisterKeyspaceReply)
        if len(reply.digest) != DIGEST_BYTES:
            raise garbage(f"a keyspace digest of {len(reply.digest)} bytes")
        # Asked for by several at once, it is registered several times, which changes nothing.
        self.handles[number] = reply.keyspace, reply.digest
        return self.handles[number]

    def detached(self, slab: int) -> None:
        """Tell the daemon that a slab is not written here any more; from any thread."""
        if self._channel is not None:
            self._loop.call_soon_threadsafe(self._channel.detached, slab)

    @contextlib.contextmanager
    def putting(self, thread: IoThread) -> Iterator[None]:
        """Keep the slabs that may be written for as long as a put is under way, on its thread."""
        thread.post(self._count_put, 1)
        try:
            yield
        finally:
            thread.post(self._count_put, -1)

    def _count_put(self, change: int) -> None:
        self.puts += change
        self._detach_if_due()

    def _detach_if_due(self) -> None:
        """Give back what may be written, once the daemon ends and no put is under way.

        A daemon that is started again has it at once then, and finds in it what was there.
        """
        if self.draining and not self.puts:
            self.slabs.detach_all()

    def _on_notice(self, notice: pb.Notice) -> None:
        if notice.WhichOneof("notice") == "lease_lost":
            lost = self.on_lease_lost.pop(notice.lease_lost, None)
            if lost is not None:
                lost()
        elif notice.draining:
            self.draining = True
            self._detach_if_due()

    def _on_message(self, message: pb.ToClient, descriptors: list[int]) -> None:
        kind = message.WhichOneof("message")
        if not self._welcomed.done():
            self._on_first(kind, message, descriptors)
        elif kind == "slab_given":
            given = message.slab_given
            fd = descriptors[0] if descriptors else None
            lacked = self.slabs.lacks_descriptors
            self.slabs.give(given.slab, fd, given.size, writable=given.writable)
            if self.slabs.lacks_descriptors and not lacked:
                self._loop.call_later(LOOK_SECONDS, mend, self)
        elif kind == "slab_recalled":
            self.slabs.recall(message.slab_recalled.slab)
        elif kind == "slab_gone":
            self.slabs.drop(message.slab_gone.slab)
        elif kind == "refused":
            self.end(error_of(message.refused))

    def _on_first(self, kind: str | None, message: pb.ToClient, descriptors: list[int]) -> None:
        try:
            if kind == "refused":
                raise error_of(message.refused)
            if kind != "welcome":
                raise garbage(f"{kind} before its welcome")
            self._control = _map_control(message.welcome.epoch, descriptors)
            self._welcomed.set_result(message.welcome)
        except KvdError as error:
            self._welcomed.set_exception(error)


def _map_control(epoch: int, descriptors: list[int]) -> Mapping:
    """Map the control page, or raise KvdError."""
    if len(descriptors) != 1:
        raise garbage("no control page; is this process at its limit of open files (ulimit -n)?")
    try:
        control = Mapping(descriptors[0], PAGE_BYTES, writable=False)
    except OSError as error:
        raise garbage(f"a control page that cannot be mapped: {error}") from None
    magic, its_epoch, _ = CONTROL_PAGE.unpack(control.head(CONTROL_PAGE.size))
    if magic != CONTROL_MAGIC or its_epoch != epoch:
        raise garbage(f"a control page {magic!r} of epoch {its_epoch}, not of epoch {epoch}")
    return control

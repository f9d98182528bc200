"""From a connection to a session: versions, who may, and the bounds on those who have not said.

One door for each tenant: the path that a client comes by is the tenant it belongs to.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from kvd.clock import NS_PER_S
from kvd.core.events import SlabDetached
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.audit import Audit
from kvd.rpc.hello import check_hello, welcome_of
from kvd.rpc.peers import Peer, peer_of
from kvd.rpc.requests import StreamRequests
from kvd.rpc.session import Session
from kvd.rpc.sessions import Sessions
from kvd.rpc.slab_channel import SlabChannel
from kvd.rpc.stream import MessageStream
from kvd.rpc.wishes import invalid
from kvd.v1 import kvd_pb2 as pb

HANDSHAKE_SECONDS = 10.0
PENDING_MAX = 64  # Connections of each kind that are nobody's yet.
STRANGERS_MAX = 8  # Of those, who may not come in: they are heard, to be told so.


class Door:
    """Where the clients of one tenant come in."""

    def __init__(
        self,
        tenant: str,
        sessions: Sessions,
        allowed_uids: frozenset[int],
        contain: Callable[..., None],
        audit: Audit,
    ) -> None:
        self.tenant, self.sessions = tenant, sessions
        self.contain, self._audit = contain, audit
        self._allowed_uids = allowed_uids
        self._pending_channels: set[_Client] = set()
        self._pending_streams: set[_StreamPeer] = set()
        self._open_streams: set[_StreamPeer] = set()
        self._no_stream = asyncio.Event()

    async def accept_channel(self, connection: socket.socket) -> None:
        peer = peer_of(connection)
        if self._is_full(self._pending_channels, peer):
            connection.close()
            return
        self._pending_channels.add(_Client(self, peer, connection))

    async def accept_stream(self, connection: socket.socket) -> None:
        who = peer_of(connection)
        if self._is_full(self._pending_streams, who):
            connection.close()
            return
        peer = _StreamPeer(self, who)
        self._pending_streams.add(peer)
        self._open_streams.add(peer)
        loop = asyncio.get_running_loop()
        try:
            _, stream = await loop.connect_accepted_socket(peer.make_stream, connection)
        except OSError:
            peer.closed()
            raise
        peer.expect(stream, loop)

    async def wait_closed(self, seconds: float) -> None:
        """Wait until no stream is open, at most so long."""
        self._no_stream.clear()
        if self._open_streams and seconds:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._no_stream.wait(), seconds)

    def _is_full(self, pending: "set[_Client] | set[_StreamPeer]", peer: Peer) -> bool:
        """Strangers have a bound of their own, and take no place of those who may come in."""
        allowed = peer.uid in self._allowed_uids
        alike = sum((each.peer.uid in self._allowed_uids) == allowed for each in pending)
        return alike >= (PENDING_MAX if allowed else STRANGERS_MAX)

    def channel_settled(self, client: "_Client") -> None:
        """Count a connection no longer among those that are nobody's."""
        self._pending_channels.discard(client)

    def stream_settled(self, peer: "_StreamPeer") -> None:
        self._pending_streams.discard(peer)

    def stream_closed(self, peer: "_StreamPeer") -> None:
        self._pending_streams.discard(peer)
        self._open_streams.discard(peer)
        if not self._open_streams:
            self._no_stream.set()

    def check(self, peer: Peer) -> None:
        if peer.uid not in self._allowed_uids:
            allowed = " ".join(str(uid) for uid in sorted(self._allowed_uids))
            who = f"uid {peer.uid} (pid {peer.pid})"
            self._audit.denied("session", who, f"not a user of tenant {self.tenant}")
            raise KvdError(
                ErrorKind.DENIED,
                f"uid {peer.uid} may not use tenant {self.tenant}; allowed are {allowed} "
                "(--allow-uid)",
            )

    def welcome(self, hello: pb.Hello, peer: Peer, channel: SlabChannel) -> Session:
        """Begin a session and say so; raise KvdError when there can be none."""
        self.check(peer)
        check_hello(hello)
        session, admitted = self.sessions.open(self.tenant, peer, channel)
        session.features = hello.features
        welcome = welcome_of(hello, session, admitted.epoch, self.sessions.inbox.limits)
        welcome.nonce = session.nonce
        session.client = hello.client
        try:
            channel.send(pb.ToClient(welcome=welcome), admitted.page_descriptor)
        except OSError:
            session.end()  # It left during its handshake.
        finally:
            os.close(admitted.page_descriptor)
        return session


class _Client:
    """One connection of the slab channel, before and after its session begins."""

    def __init__(self, door: Door, peer: Peer, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._door, self.peer = door, peer
        self._session: Session | None = None
        patience_s = door.sessions.inbox.limits.lease_ttl_ns / NS_PER_S
        self._channel = SlabChannel(connection, loop, self._on_message, self._on_closed, patience_s)
        self._timer = loop.call_later(HANDSHAKE_SECONDS, self._channel.close)
        self._channel.start(door.contain)

    def _on_message(self, message: pb.ToDaemon) -> None:
        match message.WhichOneof("message"), self._session:
            case "hello", None:
                self._begin(message.hello)
            case "slab_detached", Session(id=session):
                slab = message.slab_detached.slab
                self._channel.detached(slab)
                self._door.sessions.inbox.post(SlabDetached(session, slab))
            case kind, _:
                self._channel.refuse(invalid(f"a message {kind or 'of no kind'} is not due here"))

    def _begin(self, hello: pb.Hello) -> None:
        self._timer.cancel()
        self._door.channel_settled(self)
        try:
            self._session = self._door.welcome(hello, self.peer, self._channel)
        except KvdError as error:
            self._channel.refuse(error)

    def _on_closed(self) -> None:
        self._timer.cancel()
        self._door.channel_settled(self)
        if self._session is not None:
            self._session.end()


class _StreamPeer:
    """Who is behind one connection of the message stream, until it is bound."""

    def __init__(self, door: Door, peer: Peer) -> None:
        self._door, self.peer = door, peer
        self._is_pending = True
        self._timer: asyncio.TimerHandle | None = None

    def make_stream(self) -> MessageStream:
        limit = self._door.sessions.inbox.limits.frame_bytes_max
        return MessageStream(lambda stream: StreamRequests(stream, self, limit), self._door.contain)

    def expect(self, stream: MessageStream, loop: asyncio.AbstractEventLoop) -> None:
        """Close the stream unless it is bound in time; it may be bound already."""
        if self._is_pending:
            self._timer = loop.call_later(HANDSHAKE_SECONDS, stream.abort)

    def bind(self, nonce: bytes) -> Session:
        self._door.check(self.peer)
        session = self._door.sessions.bind(self._door.tenant, self.peer.uid, nonce)
        self._door.stream_settled(self)
        self._settle()
        return session

    def closed(self) -> None:
        self._door.stream_closed(self)
        self._settle()

    def _settle(self) -> None:
        self._is_pending = False
        if self._timer is not None:
            self._timer.cancel()

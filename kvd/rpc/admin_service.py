"""The operators' door: the service KvdAdmin on a socket that only the daemon's own user may open.

What is read comes from the daemon's desk; what changes anything is a wish, answered like any other.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import grpc
from google.protobuf.message import Message

from kvd.clock import NS_PER_MS
from kvd.core.effects import Cleared, Evicted, Outcome, Pinned
from kvd.core.events import Event
from kvd.core.operator_events import EvictWanted, ForgetWanted, PinWanted, UnpinWanted
from kvd.daemon.inbox import Inbox
from kvd.errors import KvdError
from kvd.limits import DIGEST_BYTES, PROTOCOL_MAX, PROTOCOL_MIN
from kvd.rpc import admin_replies as replies
from kvd.rpc.grpc_call import abort
from kvd.rpc.grpc_service import server_options
from kvd.rpc.handshake import daemon_version
from kvd.rpc.listener import remove_socket
from kvd.rpc.operator import OperatorLink
from kvd.rpc.sessions import Sessions
from kvd.rpc.wishes import chain_of, invalid, lane_of
from kvd.types import CLASS_COUNT
from kvd.v1 import admin_pb2 as admin
from kvd.v1 import kvd_pb2 as pb

SERVICE = admin.DESCRIPTOR.services_by_name["KvdAdmin"].full_name
CALLS_MAX = 64
LOOK_SECONDS = 0.25  # Between two words on how far draining is.

Context = grpc.aio.ServicerContext


class AdminDoor:
    """Serves operators on one Unix socket."""

    def __init__(
        self, path: Path, inbox: Inbox, sessions: Sessions, settings: replies.Settings
    ) -> None:
        self._path, self._inbox, self._sessions = path, inbox, sessions
        self._desk, self._settings = inbox.desk, settings
        self._link = OperatorLink()
        self._server: grpc.aio.Server | None = None

    async def open(self) -> None:
        """Bind and serve; the caller holds the directory's lock, as for any gRPC door."""
        self._desk.admit(self._link)
        options = server_options(self._inbox.limits)
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        methods = {name: self._unary(*how) for name, how in self._reads().items()}
        methods |= {name: self._unary(*how) for name, how in self._wishes().items()}
        methods["Drain"] = grpc.unary_stream_rpc_method_handler(
            self._drain, admin.DrainRequest.FromString, _serialize
        )
        handler = grpc.method_handlers_generic_handler(SERVICE, methods)
        server.add_generic_rpc_handlers((handler,))
        remove_socket(self._path)
        # Nobody else may connect in the moment before chmod: the process has umask 077.
        server.add_insecure_port(f"unix:{self._path}")
        await server.start()
        os.chmod(self._path, 0o600)
        self._server = server

    async def close(self, grace_s: float) -> None:
        self._link.end()
        if self._server is not None:
            await self._server.stop(grace_s)
        self._path.unlink(missing_ok=True)

    def _unary(
        self, request_type: type[Message], answer: Callable[..., Message]
    ) -> grpc.RpcMethodHandler:
        async def serve(request: Message, context: Context) -> Message:
            try:
                reply = answer(request)
                return await reply if asyncio.iscoroutine(reply) else reply
            except KvdError as error:
                await abort(context, error)

        return grpc.unary_unary_rpc_method_handler(serve, request_type.FromString, _serialize)

    # ---- what is read ----

    def _reads(self) -> dict[str, tuple[type[Message], Callable[..., Message]]]:
        return {
            "Status": (admin.StatusRequest, self._status),
            "Tiers": (admin.TiersRequest, lambda _: admin.TiersReply(tiers=self._tiers())),
            "Sessions": (admin.SessionsRequest, self._list_sessions),
            "Keyspaces": (admin.KeyspacesRequest, self._list_keyspaces),
            "Explain": (admin.ExplainRequest, self._explain),
            "Misses": (admin.MissesRequest, self._list_misses),
            "Pins": (admin.PinsRequest, self._list_pins),
        }

    def _status(self, _: Message) -> admin.StatusReply:
        summary = self._desk.summary()
        return admin.StatusReply(
            version=daemon_version(),
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            pid=os.getpid(),
            epoch=self._inbox.epoch,
            uptime_ms=self._desk.age_ns() // NS_PER_MS,
            state=summary.state,
            problems=list(self._desk.problems()),
            tiers=self._tiers(),
            sessions=summary.sessions,
            leases=summary.leases,
            reservations=summary.reservations,
            fetches_waiting=summary.fetches_waiting,
            pins=summary.pins,
            generation=summary.generation,
            tenants=self._settings.tenants,
            directory=str(self._path.parent),
            keyspaces=summary.keyspaces,
        )

    def _tiers(self) -> list[admin.TierInfo]:
        return [replies.tier_info(tier, self._settings) for tier in self._desk.tiers()]

    def _list_sessions(self, _: Message) -> admin.SessionsReply:
        now_ns, known = self._inbox.now_ns(), self._sessions.get
        found = [(each, known(each.session)) for each in self._desk.sessions()]
        return admin.SessionsReply(
            sessions=[replies.session_info(each, session, now_ns) for each, session in found]
        )

    def _list_keyspaces(self, _: Message) -> admin.KeyspacesReply:
        return admin.KeyspacesReply(keyspaces=map(replies.keyspace_info, self._desk.keyspaces()))

    def _list_misses(self, _: Message) -> admin.MissesReply:
        misses = self._desk.misses()
        return admin.MissesReply(
            misses=[replies.miss_info(miss, finding, self._desk) for miss, finding in misses]
        )

    def _list_pins(self, _: Message) -> admin.PinsReply:
        return admin.PinsReply(pins=[replies.pin_info(p, self._desk) for p in self._desk.pins()])

    def _explain(self, request: admin.ExplainRequest) -> admin.ExplainReply:
        chain = chain_of(request.chain, self._inbox.limits)
        lanes = tuple(map(lane_of, request.lanes))
        tenant, reports = self._desk.explain(request.keyspace, chain, lanes)
        return admin.ExplainReply(
            tenant=tenant, lanes=[replies.lane_report(report, self._desk) for report in reports]
        )

    # ---- what is done ----

    def _wishes(self) -> dict[str, tuple[type[Message], Callable[..., Message]]]:
        return {
            "Evict": (admin.EvictRequest, self._evict),
            "Forget": (admin.ForgetRequest, self._forget),
            "Pin": (admin.PinRequest, self._pin),
            "Unpin": (admin.UnpinRequest, self._unpin),
        }

    async def _evict(self, request: admin.EvictRequest) -> admin.EvictReply:
        """Free step by step, so that everybody else has his turn in between."""
        whose = request.tenant, _digest(request.keyspace)
        reply, left, more = admin.EvictReply(), request.bytes, True
        while more:
            wish = partial(self._evict_wish, *whose, left, lossy=request.lossy)
            outcome = await self._ask(wish)
            assert isinstance(outcome, Evicted), outcome
            reply.strips += outcome.strips
            reply.bytes += outcome.size_bytes
            left -= min(left, outcome.size_bytes)
            more = outcome.more and (left > 0 or not request.bytes)
            await asyncio.sleep(0)
        return reply

    @staticmethod
    def _evict_wish(tenant: str, keyspace: bytes, left: int, request: int, *, lossy: bool) -> Event:
        return EvictWanted(request, tenant, keyspace, left, lossy)

    async def _forget(self, request: admin.ForgetRequest) -> pb.ClearReply:
        tenant, keyspace = request.tenant, _digest(request.keyspace)
        limits = self._inbox.limits
        span_ns = request.deadline_ms * NS_PER_MS or limits.deadline_ns
        deadline_ns = self._inbox.now_ns() + min(span_ns, limits.deadline_ns_max)
        outcome = await self._ask(lambda n: ForgetWanted(n, tenant, keyspace, deadline_ns))
        assert isinstance(outcome, Cleared), outcome
        return pb.ClearReply(chunks=outcome.chunks, held=outcome.held)

    async def _pin(self, request: admin.PinRequest) -> admin.PinReply:
        chain = chain_of(request.chain, self._inbox.limits)
        classes = request.class_count or CLASS_COUNT
        if classes > CLASS_COUNT:
            raise invalid(f"class_count is {classes}, allowed are 1 to {CLASS_COUNT}")
        keyspace = _digest(request.keyspace)
        outcome = await self._ask(lambda n: PinWanted(n, keyspace, chain, classes))
        assert isinstance(outcome, Pinned), outcome
        return admin.PinReply(pin=outcome.pin, counts=outcome.counts, bytes=outcome.size_bytes)

    async def _unpin(self, request: admin.UnpinRequest) -> admin.UnpinReply:
        await self._ask(lambda n: UnpinWanted(n, request.pin))
        return admin.UnpinReply()

    async def _drain(self, _: Message, context: Context) -> AsyncIterator[admin.DrainReply]:
        self._desk.stop()
        while not self._link.has_ended:
            progress = self._desk.progress()
            yield admin.DrainReply(
                sessions=progress.sessions,
                requests=progress.requests,
                saved=progress.saved,
                left_ms=progress.left_ns // NS_PER_MS,
            )
            await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self, make_wish: Callable[[int], Event]) -> Outcome:
        """Post a wish and wait for its answer; raise what it was refused with."""
        request = self._inbox.next_request()
        answered = self._link.expect(request)
        self._inbox.post(make_wish(request))
        outcome = await answered
        if isinstance(outcome, KvdError):
            raise outcome
        return outcome


def _digest(data: bytes) -> bytes:
    if len(data) not in (0, DIGEST_BYTES):
        raise invalid(f"keyspace has {len(data)} bytes; it is a digest of {DIGEST_BYTES}")
    return data


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()

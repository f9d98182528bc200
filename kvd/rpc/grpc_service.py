"""The gRPC door of one tenant: the same messages, the same wishes, the same answers.

A call belongs to the session whose bearer token it carries; without one only Health answers.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from kvd.core.effects import FetchDone
from kvd.errors import KvdError
from kvd.limits import Limits
from kvd.rpc.grpc_call import Call, abort
from kvd.rpc.replies import reply_of
from kvd.rpc.session import Session
from kvd.rpc.sessions import Sessions
from kvd.rpc.wishes import WISHES, wish_of
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

SERVICE = pb.DESCRIPTOR.services_by_name["Kvd"].full_name
HEALTH_PREFIX = "/grpc.health.v1.Health/"
UNARY = {
    "RegisterKeyspace": FrameKind.REGISTER_KEYSPACE,
    "Reserve": FrameKind.RESERVE,
    "Seal": FrameKind.SEAL,
    "Abort": FrameKind.ABORT,
    "Lookup": FrameKind.LOOKUP,
    "Prefetch": FrameKind.PREFETCH,
    "Clear": FrameKind.CLEAR,
    "Release": FrameKind.RELEASE,
    "Renew": FrameKind.RENEW,
}
BEARER = "Bearer "
NO_TOKEN = "send `authorization: Bearer TOKEN` with the token of a live session of this tenant"
CALLS_MAX = 1024
DEADLINE_MS_MAX = 0xFFFF_FFFF

Context = grpc.aio.ServicerContext
Metadata = tuple[tuple[str, str | bytes], ...]


def server_options(limits: Limits) -> list[tuple[str, int]]:
    """Return every bound that the library would otherwise choose by itself."""
    return [
        ("grpc.max_receive_message_length", limits.frame_bytes_max),
        ("grpc.max_send_message_length", limits.frame_bytes_max),
        ("grpc.max_concurrent_streams", limits.requests_per_session_max),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def token_of(metadata: Metadata | None) -> str:
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value.startswith(BEARER):
            return value.removeprefix(BEARER)
    return ""


class GrpcDoor:
    """Serves one tenant on one Unix socket."""

    def __init__(self, tenant: str, sessions: Sessions, path: Path) -> None:
        self._tenant, self._sessions, self._path = tenant, sessions, path
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def open(self) -> None:
        """Bind and serve. The caller holds the directory's lock: binding does not fail on a path
        that another server has."""
        server = grpc.aio.server(
            options=server_options(self._sessions.inbox.limits),
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        server.add_generic_rpc_handlers((self._methods(), self._reflection()))
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        server.add_insecure_port(f"unix:{self._path}")
        await server.start()
        self._server = server

    async def drain(self) -> None:
        await self._health.enter_graceful_shutdown()

    async def close(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    def _methods(self) -> grpc.GenericRpcHandler:
        methods = {name: self._unary(kind) for name, kind in UNARY.items()}
        methods["Fetch"] = grpc.unary_stream_rpc_method_handler(
            self._fetch, pb.FetchRequest.FromString, _serialize
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _reflection(self) -> grpc.GenericRpcHandler:
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        servicer = reflection.aio.ReflectionServicer(names)

        async def answer(requests: AsyncIterator[Message], context: Context) -> None:
            await self._session(context)
            async for reply in servicer.ServerReflectionInfo(requests, context):
                await context.write(reply)

        method = grpc.stream_stream_rpc_method_handler(
            answer, reflection_pb2.ServerReflectionRequest.FromString, _serialize
        )
        return grpc.method_handlers_generic_handler(
            reflection.SERVICE_NAME, {"ServerReflectionInfo": method}
        )

    def _unary(self, kind: FrameKind) -> grpc.RpcMethodHandler:
        async def answer(request: Message, context: Context) -> Message:
            call = Call()
            await self._ask(kind, request, context, call)
            outcome = await call.next()
            if isinstance(outcome, KvdError):
                await abort(context, outcome)
            return reply_of(kind, outcome)

        message_type, _ = WISHES[kind]
        return grpc.unary_unary_rpc_method_handler(answer, message_type.FromString, _serialize)

    async def _fetch(self, request: pb.FetchRequest, context: Context) -> None:
        call = Call()
        session, number = await self._ask(FrameKind.FETCH, request, context, call)
        try:
            while isinstance(told := await call.next(), pb.FetchReply):
                await context.write(told)
                call.taken(told)
            if isinstance(told, KvdError):
                await abort(context, told)
            assert isinstance(told, FetchDone), told
            await context.write(pb.FetchReply(done=reply_of(FrameKind.FETCH, told)))
        finally:
            session.cancel(number)  # The caller may have gone before the end.

    async def _ask(
        self, kind: FrameKind, request: Message, context: Context, call: Call
    ) -> tuple[Session, int]:
        session = await self._session(context)
        take_over_deadline(request, context.time_remaining())
        try:
            return session, session.ask(call, lambda asker: wish_of(kind, request, asker))
        except KvdError as error:
            await abort(context, error)

    async def _session(self, context: Context) -> Session:
        """Return whose token the call carries, or end the call."""
        token = token_of(context.invocation_metadata())
        session = self._sessions.by_token(self._tenant, token)
        if session is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)
            raise AssertionError("abort returned")
        return session


def take_over_deadline(request: Message, remaining_s: float | None) -> None:
    """Have the call's own deadline hold for a request that can state one and does not."""
    if remaining_s is None or "deadline_ms" not in request.DESCRIPTOR.fields_by_name:
        return
    if not request.deadline_ms:  # type: ignore[attr-defined]
        request.deadline_ms = max(1, min(int(remaining_s * 1000), DEADLINE_MS_MAX))  # type: ignore[attr-defined]


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()

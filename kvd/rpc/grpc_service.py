"""A gRPC door: the same messages, the same wishes, the same answers, and sessions by Attach.

A call belongs to the session whose bearer token it carries; an Attach shows who somebody is. With
neither, only Health answers.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from kvd.core.effects import FetchDone
from kvd.core.events import Event
from kvd.errors import ErrorKind, KvdError
from kvd.limits import KIB, Limits
from kvd.rpc.attached import AttachStream
from kvd.rpc.audit import Audit
from kvd.rpc.credentials import Denied
from kvd.rpc.entrance import Context, Entrance, token_of
from kvd.rpc.grpc_call import Call, answering
from kvd.rpc.grpc_reading import Reading
from kvd.rpc.hello import check_hello, welcome_of
from kvd.rpc.replies import reply_of
from kvd.rpc.session import Session
from kvd.rpc.sessions import Sessions
from kvd.rpc.wishes import Asker, parse, parse_message, wish_of
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

SERVICE = pb.DESCRIPTOR.services_by_name["Kvd"].full_name
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
NO_TOKEN = "send `authorization: Bearer TOKEN` with the token of a live session of this tenant"
NO_CREDENTIAL = (
    "Attach needs `authorization: Bearer TOKEN` with a token of the tenant's token_file, or a "
    "client certificate with one of its client_names"
)
CALLS_MAX = 1024  # Of one tenant.
CONNECTIONS_PER_SESSION = 2  # Of one door, for as many sessions as there may be.
RETRY_MS = 100  # For a call, when a tenant has as many as it may.
DEADLINE_MS_MAX = 0xFFFF_FFFF
METADATA_BYTES_MAX = 8 * KIB
# A peer that vanished is found in half a minute, and its session ended.
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 20_000, 10_000
PING_INTERVAL_MS_MIN = 10_000  # Of a client; one that asks more often is disconnected.


def server_options(limits: Limits) -> list[tuple[str, int]]:
    """Return every bound that the library would otherwise choose by itself."""
    return [
        ("grpc.max_receive_message_length", limits.frame_bytes_max),
        ("grpc.max_send_message_length", limits.frame_bytes_max),
        # Nobody is asked who he is before he calls, so at a socket too connections are bounded.
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_PER_SESSION * limits.sessions_max),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),  # Without any call: not even an Attach.
        # Of one connection; two more for an Attach and a look at the health.
        ("grpc.max_concurrent_streams", limits.requests_per_session_max + 2),
        # Else windows grow with the link, and messages that nobody reads yet come all the same.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        # Only as sent: a small message that unpacks to a large one is no way past the bounds.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # Of pings that measure the link, too: one that is not answered holds up those above.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # Else it would stop asking after two.
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        ("grpc.http2.max_ping_strikes", 2),
    ]


class GrpcDoor:
    """Serves those whom its entrance lets in, where `bind` has it listen."""

    def __init__(self, entrance: Entrance, sessions: Sessions, audit: Audit) -> None:
        self._entrance, self._sessions, self._audit = entrance, sessions, audit
        self._health, self._reading = _Health(), Reading()
        self._server: grpc.aio.Server | None = None
        self._calls: Counter[str] = Counter()

    async def open(
        self, bind: Callable[[grpc.aio.Server], object], options: list[tuple[str, int]]
    ) -> None:
        """Bind and serve; raise what `bind` raises."""
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(
            (self._methods(), self._health.methods(), self._reflection())
        )
        bind(server)
        await server.start()
        self._server = server

    async def drain(self) -> None:
        self._health.status = health_pb2.HealthCheckResponse.NOT_SERVING

    async def close(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    def _methods(self) -> grpc.GenericRpcHandler:
        methods = {name: self._unary(kind) for name, kind in UNARY.items()}
        # As streams, though all have one message: those the library would read before it asks us.
        methods["Fetch"] = grpc.stream_stream_rpc_method_handler(self._fetch, None, _serialize)
        methods["Attach"] = grpc.stream_stream_rpc_method_handler(self._attach, None, _serialize)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _reflection(self) -> grpc.GenericRpcHandler:
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        servicer = reflection.aio.ReflectionServicer(names)

        async def answer(requests: AsyncIterator[Message], context: Context) -> None:
            async with self._asking(context):
                async for reply in servicer.ServerReflectionInfo(requests, context):
                    await context.write(reply)

        method = grpc.stream_stream_rpc_method_handler(
            answer, reflection_pb2.ServerReflectionRequest.FromString, _serialize
        )
        return grpc.method_handlers_generic_handler(
            reflection.SERVICE_NAME, {"ServerReflectionInfo": method}
        )

    def _unary(self, kind: FrameKind) -> grpc.RpcMethodHandler:
        async def answer(_: AsyncIterator[bytes], context: Context) -> Message:
            call = Call(traceparent_of(context))
            async with self._asking(context) as session:
                _ask(session, kind, await self._read(session, context), context, call)
                outcome = await call.next()
                if isinstance(outcome, KvdError):
                    raise outcome
                return reply_of(kind, outcome)

        return grpc.stream_unary_rpc_method_handler(answer, None, _serialize)

    async def _fetch(self, _: AsyncIterator[bytes], context: Context) -> None:
        call = Call(traceparent_of(context))
        async with self._asking(context) as session:
            data = await self._read(session, context)
            number = _ask(session, FrameKind.FETCH, data, context, call)
            try:
                while isinstance(told := await call.next(), pb.FetchReply):
                    await context.write(told)
                    call.taken(told)
            finally:
                session.cancel(number)  # The caller may have gone before the end.
            if isinstance(told, KvdError):
                raise told
            assert isinstance(told, FetchDone), told
            await context.write(pb.FetchReply(done=reply_of(FrameKind.FETCH, told)))

    async def _attach(self, _: AsyncIterator[bytes], context: Context) -> None:
        """Begin a session; whatever ends this call, its caller's death included, ends it."""
        try:
            tenant = self._entrance.tenant_of(context)
        except Denied as denied:
            self._audit.denied("attach", context.peer(), denied.why)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_CREDENTIAL)
        async with answering(context):
            with self._counted(tenant):  # Of those that have begun, the sessions are bounded.
                request = parse(pb.AttachRequest, await self._reading.data(tenant, context))
            hello, stream = request.hello, AttachStream()
            check_hello(hello)
            session, epoch = self._sessions.attach(tenant, stream)
            session.client, session.transport = hello.client, context.peer()
            session.features = hello.features
            self._entrance.made(session)
            try:
                limits = self._sessions.inbox.limits
                welcome = welcome_of(hello, session, epoch, limits)
                await context.write(pb.AttachReply(welcome=welcome))
                while isinstance(told := await stream.next(), pb.Notice):
                    await context.write(pb.AttachReply(notice=told))
                raise told
            finally:
                session.end()

    @contextlib.asynccontextmanager
    async def _asking(self, context: Context) -> AsyncIterator[Session]:
        """Have a call of the session whose token it carries; what is raised is its answer."""
        session = await self._session(context)
        async with answering(context):
            with self._counted(session.tenant):
                yield session

    async def _read(self, session: Session, context: Context) -> bytes:
        with self._sessions.inbox.observer.refusing(session.tenant):
            return await self._reading.data(session.tenant, context)

    @contextlib.contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        if self._calls[tenant] >= CALLS_MAX:
            what = f"tenant {tenant} has {CALLS_MAX} calls under way, the limit"
            with self._sessions.inbox.observer.refusing(tenant):
                raise KvdError(ErrorKind.OVERLOADED, what, RETRY_MS)
        self._calls[tenant] += 1
        try:
            yield
        finally:
            self._calls[tenant] -= 1

    async def _session(self, context: Context) -> Session:
        """Return whose token the call carries, or end the call."""
        token = token_of(context.invocation_metadata())
        session = self._sessions.by_token(token)
        if session is None or not self._entrance.admits(session, context):
            why = "a token of no session that lives here" if token else "no token"
            self._audit.denied("call", context.peer(), why)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)
            raise AssertionError("abort returned")
        return session


class _Health:
    """Answers anybody, and holds nothing for anybody: it says of the daemon what it is asked of any
    service, without reading which, as what nobody is known to have sent is not read."""

    def __init__(self) -> None:
        self.status = health_pb2.HealthCheckResponse.SERVING

    def methods(self) -> grpc.GenericRpcHandler:
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check, None, _serialize),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, None, _serialize),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    async def _check(self, _: AsyncIterator[bytes], context: Context) -> Message:
        return health_pb2.HealthCheckResponse(status=self.status)

    async def _watch(self, _: AsyncIterator[bytes], context: Context) -> None:
        """A watch would cost as long as it lasts."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask Check; there is no Watch here")


def _ask(session: Session, kind: FrameKind, data: bytes, context: Context, call: Call) -> int:
    def make_wish(asker: Asker) -> Event:
        request = parse_message(kind, data)
        take_over_deadline(request, context.time_remaining())
        return wish_of(kind, request, asker)

    return session.ask(kind, call, make_wish)


def traceparent_of(context: Context) -> str:
    """Return the caller's span as W3C writes it, empty where none was told."""
    for name, value in context.invocation_metadata() or ():
        if name == "traceparent" and isinstance(value, str):
            return value
    return ""


def take_over_deadline(request: Message, remaining_s: float | None) -> None:
    """Have the call's own deadline hold for a request that can state one and does not."""
    if remaining_s is None or "deadline_ms" not in request.DESCRIPTOR.fields_by_name:
        return
    if not request.deadline_ms:  # type: ignore[attr-defined]
        request.deadline_ms = max(1, min(int(remaining_s * 1000), DEADLINE_MS_MAX))  # type: ignore[attr-defined]


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()

"""The operators' door: the service KvdAdmin on a socket that only the daemon's own user may open.

What is read comes from the daemon's desk; what changes anything is a wish, answered like any other.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
from google.protobuf.message import Message

from kvd.clock import NS_PER_MS
from kvd.daemon.inbox import Inbox
from kvd.errors import KvdError
from kvd.limits import Limits
from kvd.rpc import admin_replies as replies
from kvd.rpc.admin_reads import Reads
from kvd.rpc.admin_wishes import OperatorWishes
from kvd.rpc.grpc_call import abort
from kvd.rpc.grpc_service import server_options
from kvd.rpc.listener import remove_socket
from kvd.rpc.sessions import Sessions
from kvd.v1 import admin_pb2 as admin
from kvd.wire import ADMIN_REPLY_BYTES_MAX

SERVICE = admin.DESCRIPTOR.services_by_name["KvdAdmin"].full_name
CALLS_MAX = 64
LOOK_SECONDS = 0.25  # Between two words on how far draining is.

Context = grpc.aio.ServicerContext


def door_options(limits: Limits) -> list[tuple[str, int]]:
    """Return what holds for operators: replies are lists of all there is, and may be long."""
    larger = {"grpc.max_send_message_length": ADMIN_REPLY_BYTES_MAX}
    return list((dict(server_options(limits)) | larger).items())


class AdminDoor:
    """Serves operators on one Unix socket."""

    def __init__(
        self, path: Path, inbox: Inbox, sessions: Sessions, settings: replies.Settings
    ) -> None:
        self._path, self._inbox = path, inbox
        self._reads = Reads(inbox, sessions, settings, str(path.parent))
        self._wishes = OperatorWishes(inbox, settings.tenants)
        self._server: grpc.aio.Server | None = None

    async def open(self) -> None:
        """Bind and serve; the caller holds the directory's lock, as for any gRPC door."""
        options = door_options(self._inbox.limits)
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        answers = {**self._reads.answers(), **self._wishes.answers()}
        methods = {name: _unary(*how) for name, how in answers.items()}
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
        self._wishes.link.end()
        if self._server is not None:
            await self._server.stop(grace_s)
        self._path.unlink(missing_ok=True)

    async def _drain(self, _: Message, context: Context) -> AsyncIterator[admin.DrainReply]:
        self._inbox.desk.stop()
        while not self._wishes.link.has_ended:
            progress = self._inbox.desk.progress()
            yield admin.DrainReply(
                sessions=progress.sessions,
                requests=progress.requests,
                saved=progress.saved,
                left_ms=progress.left_ns // NS_PER_MS,
            )
            await asyncio.sleep(LOOK_SECONDS)


def _unary(request_type: type[Message], answer: Callable[..., Message]) -> grpc.RpcMethodHandler:
    async def serve(request: Message, context: Context) -> Message:
        try:
            reply = answer(request)
            return await reply if asyncio.iscoroutine(reply) else reply
        except KvdError as error:
            await abort(context, error)

    return grpc.unary_unary_rpc_method_handler(serve, request_type.FromString, _serialize)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()

"""Opens the sockets of every tenant, and closes them: the only door of rpc for `kvd serve`.

One of the borders where any exception is taken: it ends the connection that it came from.
"""

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import grpc

from kvd.config import ADMIN_SOCKET, SOCKET_NAMES, ServeConfig, TcpSettings
from kvd.daemon.inbox import Inbox
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.admin_replies import Settings
from kvd.rpc.admin_service import AdminDoor
from kvd.rpc.audit import Audit
from kvd.rpc.credentials import Credentials
from kvd.rpc.entrance import Entrance, TcpEntrance, TenantEntrance
from kvd.rpc.grpc_service import GrpcDoor, server_options
from kvd.rpc.handshake import Door
from kvd.rpc.listener import (
    accept_forever,
    adopt_listening,
    listen,
    remove_socket,
    unknown_sockets,
)
from kvd.rpc.lock import DirectoryLock
from kvd.rpc.sessions import Sessions
from kvd.rpc.tcp import add_port, check_tcp, tcp_options
from kvd.types import Tier

GRACE_SECONDS = 1.0  # At the end, for what was written to reach clients that read.

Listening = tuple[socket.socket, Path, Callable[[socket.socket], Awaitable[None]]]

_log = logging.getLogger("kvd.server")


def contain(end: Callable[[], None], action: Callable[..., None], *arguments: object) -> None:
    """Run what one connection does; whatever it raises is logged once and ends that connection."""
    try:
        action(*arguments)
    except Exception:
        _log.exception("a connection failed and is closed")
        end()


class Server:
    """All doors of all tenants. Entered once; leaving it closes every session."""

    def __init__(
        self,
        config: ServeConfig,
        inbox: Inbox,
        loop: asyncio.AbstractEventLoop,
        passed: Mapping[str, socket.socket] | None = None,
    ) -> None:
        """Raise KvdError for credentials or a port that would be open to the wrong ones.

        `passed`: sockets that listen already, by names like `session.TENANT`; owned from now on.
        """
        self._config, self._loop = config, loop
        self._passed = dict(passed or {})
        self._credentials = Credentials(config.tenants, inbox.now_ns)
        self.tcp_address = ""
        if config.tcp is not None:
            check_tcp(config.tcp, self._credentials)
        self._audit = Audit(inbox.now_ns, lambda what: inbox.observer.denied(what))
        self._sessions = Sessions(inbox, loop, config.tenants)
        self._listening: list[Listening] = []
        self._grpc: list[GrpcDoor] = []
        self._admin: AdminDoor | None = None
        self._paths: list[Path] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._doors: list[Door] = []
        self._stack = AsyncExitStack()
        self.grace_s = GRACE_SECONDS

    async def __aenter__(self) -> Self:
        """Open everything; raise KvdError or OSError for what cannot be had, leaving nothing."""
        async with AsyncExitStack() as stack:
            make_directory(self._config.directory, 0o755)
            lock = DirectoryLock(self._config.directory)
            stack.callback(lock.release)
            stack.push_async_callback(self._close)
            await self._open_admin()
            for tenant in self._config.tenant_names:
                await self._open_tenant(tenant)
            if self._passed:
                raise unknown_sockets(self._passed, self._config.tenant_names)
            if self._config.tcp is not None:
                await self._open_tcp(self._config.tcp)
            # Last, as a task group wraps whatever is raised inside it.
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            self._accepting = [tasks.create_task(accept_forever(*one)) for one in self._listening]
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *failure: object) -> None:
        for task in self._accepting:
            task.cancel()
        await self._stack.aclose()

    async def stop_accepting(self) -> None:
        """Let no new client in; those that are in go on."""
        for task in self._accepting:
            task.cancel()
        for door in self._grpc:
            await door.drain()
        for listening, _, _ in self._listening:
            listening.close()

    async def _open_admin(self) -> None:
        config, inbox = self._config, self._sessions.inbox
        quotas = {
            Tier.DRAM: {t.name: t.dram_quota_bytes or 0 for t in config.tenants},
            Tier.SSD: {t.name: t.ssd_quota_bytes or 0 for t in config.tenants},
        }
        settings = Settings(config.tenant_names, quotas)
        self._admin = AdminDoor(config.directory / ADMIN_SOCKET, inbox, self._sessions, settings)
        await self._admin.open()

    async def _open_tenant(self, tenant: str) -> None:
        config = self._config
        # Without other users there is nobody to refuse politely: the kernel keeps them out.
        shared = not config.allowed_uids <= {os.geteuid(), 0}
        mode = 0o666 if shared else 0o600
        directory = config.directory / tenant
        make_directory(directory, 0o755 if shared else 0o700)
        if shared:
            open_to_others(directory)
        door = Door(tenant, self._sessions, config.allowed_uids, contain, self._audit)
        self._doors.append(door)
        session_path, slabs_path, grpc_path = (directory / name for name in SOCKET_NAMES)
        for path, kind, take in (
            (session_path, socket.SOCK_STREAM, door.accept_stream),
            (slabs_path, socket.SOCK_SEQPACKET, door.accept_channel),
        ):
            passed = self._passed.pop(f"{path.stem}.{tenant}", None)
            if passed is not None:
                # Whoever made it removes it, and keeps who connects meanwhile.
                self._listening.append((passed, path, take))
                adopt_listening(passed, kind, f"{path.stem}.{tenant}")
                continue
            self._listening.append((listen(path, kind, mode), path, take))
            self._paths.append(path)
        remove_socket(grpc_path)
        self._paths.append(grpc_path)
        # Binding does not fail on a path that another server has: the directory's lock does.
        await self._open_grpc(
            TenantEntrance(tenant, self._credentials),
            lambda server: server.add_insecure_port(f"unix:{grpc_path}"),
        )
        os.chmod(grpc_path, mode)

    async def _open_tcp(self, tcp: TcpSettings) -> None:
        def bind(server: grpc.aio.Server) -> None:
            self.tcp_address = add_port(server, tcp)

        await self._open_grpc(TcpEntrance(self._credentials), bind, tcp_options())
        tls = "plain, of this machine only" if tcp.certificate is None else "TLS"
        mutual = ", client certificates" if tcp.client_ca is not None else ""
        _log.info("gRPC on tcp %s, %s%s", self.tcp_address, tls, mutual)

    async def _open_grpc(
        self,
        entrance: Entrance,
        bind: Callable[[grpc.aio.Server], object],
        more_options: Sequence[tuple[str, int]] = (),
    ) -> None:
        door = GrpcDoor(entrance, self._sessions, self._audit)
        self._grpc.append(door)
        options = [*server_options(self._sessions.inbox.limits), *more_options]
        await door.open(bind, options)

    async def _close(self) -> None:
        for listening, _, _ in self._listening:
            listening.close()
        self._sessions.close()
        for door in self._doors:
            await door.wait_closed(self.grace_s)
        for grpc_door in self._grpc:
            await grpc_door.close(self.grace_s)
        if self._admin is not None:
            await self._admin.close(self.grace_s)
        self._remove_sockets()

    def _remove_sockets(self) -> None:
        while self._paths:
            self._paths.pop().unlink(missing_ok=True)


def make_directory(path: Path, mode: int) -> None:
    """Make a directory of exactly this mode; one that is there already keeps its own."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise KvdError(ErrorKind.INVALID, f"{path} is not a directory") from None
        return
    path.chmod(mode)


def open_to_others(path: Path) -> None:
    """Let others into a directory that was made when one user was allowed, by this user."""
    found = path.stat()
    if (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.geteuid()):
        path.chmod(0o755)

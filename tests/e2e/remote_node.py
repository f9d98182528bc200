"""A daemon with a TCP port and two tenants, in this process; and sessions that attach to it."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from kvd.config import ServeConfig, TcpSettings, TenantSettings
from kvd.limits import MIB, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.v1 import kvd_pb2_grpc as pb_grpc
from kvd.wire import FEATURES
from tests.e2e.process import DEADLINE_S, Here, served
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import Stored, put, register
from tests.e2e.test_daemon_delivery import CELL_BYTES, CELLS, LAYERS

A_TOKEN, A_NEXT, B_TOKEN = "tenant-a." + "a" * 32, "tenant-a." + "c" * 32, "tenant-b." + "b" * 32
CHUNKS = 5
DRAM_BYTES = 128 * MIB


def bearer(token: str) -> dict:
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": DEADLINE_S}


def refusal(call) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value


def until(condition, what: str):
    """Return what `condition` returns once it is true."""
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        pause.wait(0.01)
    return found


def write_tokens(path: Path, *tokens: str) -> Path:
    """Put a file with these tokens in place of what is there, as a careful operator does."""
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text("# made by a test\n\n" + "".join(f"{token}\n" for token in tokens))
    return fresh.replace(path)


@dataclass
class Node:
    """`clients` are raw sessions of the sockets, by tenant; `stored` is what each has put."""

    here: Here
    a_tokens: Path
    clients: dict[str, RawClient] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)

    def put(self, tenant: str, chunks: int = CHUNKS) -> Stored:
        client = self.clients[tenant] = RawClient(self.here.directory / tenant)
        keyspace = register(client, keyspace_message(small_keyspace("remote", LAYERS)))
        self.stored[tenant] = put(client, keyspace, chain_of(chunks), CELLS, CELL_BYTES)
        return self.stored[tenant]


@contextlib.contextmanager
def remote_node(
    directory: Path, limits: Limits | None = None, rates: dict | None = None, **tcp
) -> Iterator[Node]:
    """Yield a daemon of the tenants a and b; `rates` are of a.

    `tcp` is of TcpSettings, beyond where it listens.
    """
    a_tokens = write_tokens(directory / "a.tokens", A_TOKEN)
    config = ServeConfig(
        directory / "run",
        (
            TenantSettings("a", token_file=a_tokens, client_names=("client-a",), **(rates or {})),
            TenantSettings(
                "b",
                token_file=write_tokens(directory / "b.tokens", B_TOKEN),
                client_names=("client-b",),
            ),
        ),
        DRAM_BYTES,
        frozenset({os.geteuid()}),
        limits or Limits(),
        tcp=TcpSettings("127.0.0.1", 0, **tcp),
    )
    with served(config) as here:
        node = Node(here, a_tokens)
        yield node
        for client in node.clients.values():
            client.close()


class Attached:
    """A session by Attach, and the notices it is told, which a thread takes in."""

    def __init__(self, channel: grpc.Channel, token: str = "", features: int = FEATURES) -> None:
        """Raise grpc.RpcError where it is not let in."""
        self.stub = pb_grpc.KvdStub(channel)
        hello = pb.Hello(protocol_min=1, protocol_max=1, features=features, client="test")
        metadata = bearer(token)["metadata"] if token else ()
        self.call = self.stub.Attach(pb.AttachRequest(hello=hello), metadata=metadata)
        self.welcome = next(self.call).welcome
        self.told: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def credentials(self) -> dict:
        return bearer(self.welcome.token)

    def register(self) -> int:
        message = keyspace_message(small_keyspace("remote", LAYERS))
        return self.stub.RegisterKeyspace(message, **self.credentials).keyspace

    def next(self) -> pb.Notice | grpc.RpcError:
        """Return the next notice, or what ended the session."""
        return self.told.get(timeout=DEADLINE_S)

    def _read(self) -> None:
        try:
            for reply in self.call:
                self.told.put(reply.notice)
        except grpc.RpcError as error:
            self.told.put(error)


@contextlib.contextmanager
def channel_to(
    target: str, credentials: grpc.ChannelCredentials | None = None
) -> Iterator[grpc.Channel]:
    """Yield a channel with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    made = (
        grpc.insecure_channel(target, options)
        if credentials is None
        else grpc.secure_channel(target, credentials, options)
    )
    with made as channel:
        yield channel

"""What an operator is told of a call that failed: the daemon refused it, or nobody is there."""

import argparse
import asyncio
import threading
from contextlib import contextmanager

import grpc
import pytest

from kvd.admin.asking import AdminClient, NoDaemon
from kvd.cli.admin_change import run_drain
from kvd.config import ADMIN_SOCKET
from kvd.errors import ErrorKind, KvdError
from kvd.limits import Limits
from kvd.rpc.admin_service import door_options
from kvd.rpc.grpc_call import answering
from kvd.v1 import admin_pb2 as admin

SAID = "what the daemon said, and no more"


@contextmanager
def served(path, answer):
    """Serve Forget as the daemon's door does; `answer` is awaited with the call's context."""
    loop, stopping, begun = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def forget(_, context):
        return await answer(context)

    async def serve():
        server = grpc.aio.server(options=door_options(Limits()))
        handler = grpc.unary_unary_rpc_method_handler(
            forget, admin.ForgetRequest.FromString, lambda reply: reply.SerializeToString()
        )
        handlers = grpc.method_handlers_generic_handler("kvd.v1.KvdAdmin", {"Forget": handler})
        server.add_generic_rpc_handlers((handlers,))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        begun.set()
        await stopping.wait()
        await server.stop(None)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(30)
        with AdminClient(path) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()


@pytest.fixture
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("a") / ADMIN_SOCKET


@pytest.mark.parametrize("kind", ErrorKind)
def test_what_the_daemon_refuses_is_said_as_it_says_it(path, kind):
    async def answer(context):
        async with answering(context):
            raise KvdError(kind, SAID, retry_after_ms=3)

    with served(path, answer) as client, pytest.raises(KvdError) as refused:
        client.call("Forget", admin.ForgetRequest())
    assert not isinstance(refused.value, NoDaemon)
    assert (refused.value.kind, refused.value.message) == (kind, SAID)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (grpc.StatusCode.UNAVAILABLE, "no daemon answers"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "did not answer within"),
    ],
)
def test_a_status_without_a_kind_is_the_transports(path, status, said):
    async def answer(context):
        await context.abort(status, SAID)

    with served(path, answer) as client, pytest.raises(NoDaemon, match=said):
        client.call("Forget", admin.ForgetRequest())


def test_a_kind_that_is_not_known_is_the_daemons_all_the_same(path):
    async def answer(context):
        await context.abort(grpc.StatusCode.UNAVAILABLE, SAID, (("kvd-error-kind", "WEARY"),))

    with served(path, answer) as client, pytest.raises(KvdError, match=SAID) as refused:
        client.call("Forget", admin.ForgetRequest())
    assert not isinstance(refused.value, NoDaemon)
    assert refused.value.kind == ErrorKind.UNAVAILABLE


def test_replies_may_be_as_large_as_operators_take_them(path):
    async def answer(context):
        return admin.KeyspacesReply(keyspaces=[admin.KeyspaceInfo(tenant="t" * size)])

    size = 4 * Limits().frame_bytes_max
    with served(path, answer) as client:
        reply = client.call("Forget", admin.ForgetRequest())
    assert reply.ByteSize() > size


class Draining:
    """Answers Drain with some replies, and then as a connection that breaks."""

    def __init__(self, *replies):
        self._replies = replies

    def stream(self, name, request):
        yield from self._replies
        raise NoDaemon("the connection broke")


@pytest.mark.parametrize(
    ("replies", "code"),
    [
        ([admin.DrainReply()], 1),
        ([admin.DrainReply(sessions=3, left_ms=9), admin.DrainReply()], 1),
        ([admin.DrainReply(left_ms=9), admin.DrainReply(saved=True)], 0),
    ],
)
def test_a_daemon_that_was_heard_has_ended_when_its_connection_breaks(capsys, replies, code):
    assert run_drain(Draining(*replies), argparse.Namespace(json=False)) == code
    assert "the daemon has ended" in capsys.readouterr().out


def test_a_daemon_that_was_never_heard_has_not_ended(capsys):
    with pytest.raises(NoDaemon):
        run_drain(Draining(), argparse.Namespace(json=False))


def test_a_daemon_that_does_not_answer_hangs(path):
    async def answer(context):
        await asyncio.Event().wait()

    with served(path, answer) as client, pytest.raises(NoDaemon, match="within 0.2 s: it hangs"):
        client.call("Forget", admin.ForgetRequest(), timeout_s=0.2)

"""A row of the table: what an operator's door is asked, over a daemon's desk and core."""

import asyncio
from functools import cache

from google.protobuf.message import DecodeError, Message

from kvd.config import TenantSettings
from kvd.errors import KvdError
from kvd.limits import DIGEST_BYTES
from kvd.rpc.admin_reads import Reads
from kvd.rpc.admin_replies import Settings
from kvd.rpc.admin_wishes import OperatorWishes
from kvd.rpc.sessions import Sessions
from kvd.v1 import admin_pb2 as admin
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.rawclient import chain_of
from tests.fuzz.hostile import Hostile
from tests.fuzz.messages import run
from tests.fuzz.parser import Parser
from tests.fuzz.sessions import CoreInbox

SECONDS_MAX = 20.0


def _answers(inbox: CoreInbox) -> dict:
    loop = asyncio.get_running_loop()
    sessions = Sessions(inbox, loop, [TenantSettings("t")])  # type: ignore[arg-type]
    reads = Reads(inbox, sessions, Settings(("t",)), "/run/kvd")  # type: ignore[arg-type]
    return {**reads.answers(), **OperatorWishes(inbox, ("t",)).answers()}  # type: ignore[arg-type]


def _take_call(data: bytes) -> bool:
    """The first byte says which call it is."""
    return bool(data) and run(_ask(data))


async def _ask(data: bytes) -> bool:
    inbox = CoreInbox()
    for kind in (FrameKind.REGISTER_KEYSPACE, FrameKind.RESERVE, FrameKind.SEAL):
        inbox.say(kind, Hostile(3).decent(kind))
    answers = _answers(inbox)
    name = NAMES[data[0] % len(NAMES)]
    message_type, answer = answers[name]
    request = message_type.FromString(data[1:])
    async with asyncio.timeout(SECONDS_MAX):
        reply = answer(request)
        reply = await reply if asyncio.iscoroutine(reply) else reply
    assert isinstance(reply, Message) and reply.IsInitialized()
    reply.SerializeToString()
    inbox.check()
    return True


NAMES = ("Status", "Tiers", "Sessions", "Keyspaces", "Stats", "Explain", "Misses", "Pins",
         "Evict", "Forget", "Pin", "Unpin")  # fmt: skip


@cache
def _calls() -> tuple[bytes, ...]:
    digest, chain, lane = CoreInbox.digest(), chain_of(3), pb.Lane()
    asked: dict[str, Message] = {
        "Stats": admin.StatsRequest(prefix="kvd_"),
        "Explain": admin.ExplainRequest(keyspace=digest, chain=chain, lanes=[lane]),
        "Evict": admin.EvictRequest(tenant="t", bytes=4096, lossy=True),
        "Forget": admin.ForgetRequest(tenant="t", keyspace=digest, deadline_ms=100),
        "Pin": admin.PinRequest(keyspace=digest, chain=chain, class_count=2),
        "Unpin": admin.UnpinRequest(pin=1),
    }
    assert len(digest) == DIGEST_BYTES
    return tuple(
        bytes([at]) + (asked[name].SerializeToString() if name in asked else b"")
        for at, name in enumerate(NAMES)
    )


PARSERS = (
    Parser(
        "operators", _take_call, _calls,
        ("rpc/admin_wishes.py:_digest", "rpc/admin_wishes.py:_whose", "rpc/admin_reads.py:_explain",
         "rpc/admin_reads.py:_stats"),
        (DecodeError, KvdError), protobuf=True, head=1,
        tries=60,
    ),
)  # fmt: skip

"""What operators do: each wish is an event of the core, answered through one link."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from google.protobuf.message import Message

from kvd.clock import NS_PER_MS
from kvd.core import census
from kvd.core.effects import Cleared, Evicted, Outcome, Pinned
from kvd.core.events import Event
from kvd.core.operator_events import EvictWanted, ForgetWanted, PinWanted, UnpinWanted
from kvd.daemon.inbox import Inbox
from kvd.errors import KvdError
from kvd.limits import DIGEST_BYTES
from kvd.rpc.operator import OperatorLink
from kvd.rpc.wishes import chain_of, invalid
from kvd.types import CLASS_COUNT
from kvd.v1 import admin_pb2 as admin
from kvd.v1 import kvd_pb2 as pb

_log = logging.getLogger("kvd.operator")

Answers = dict[str, tuple[type[Message], Callable[..., object]]]  # By name of the call.


class OperatorWishes:
    def __init__(self, inbox: Inbox, tenants: tuple[str, ...]) -> None:
        """`tenants` are those configured; there may be chunks of others."""
        self._inbox, self.link, self._tenants = inbox, OperatorLink(), tenants
        inbox.desk.admit(self.link)

    def answers(self) -> Answers:
        return {
            "Evict": (admin.EvictRequest, self._evict),
            "Forget": (admin.ForgetRequest, self._forget),
            "Pin": (admin.PinRequest, self._pin),
            "Unpin": (admin.UnpinRequest, self._unpin),
        }

    async def _evict(self, request: admin.EvictRequest) -> admin.EvictReply:
        """Free step by step, so that everybody else has his turn in between."""
        whose = self._whose(request)
        _say("evict", *whose, f"{request.bytes or 'all'} bytes{' lossy' * request.lossy}")
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
        tenant, keyspace = self._whose(request)
        _say("clear", tenant, keyspace)
        limits = self._inbox.limits
        span_ns = request.deadline_ms * NS_PER_MS or limits.deadline_ns
        deadline_ns = self._inbox.now_ns() + min(span_ns, limits.deadline_ns_max)
        outcome = await self._ask(lambda n: ForgetWanted(n, tenant, keyspace, deadline_ns))
        assert isinstance(outcome, Cleared), outcome
        return pb.ClearReply(chunks=outcome.chunks, held=outcome.held)

    def _whose(self, request: admin.EvictRequest | admin.ForgetRequest) -> tuple[str, bytes]:
        """Return what is meant; raise INVALID unless it names a keyspace, or a tenant there is."""
        known = {*self._tenants, *self._inbox.desk.read(census.tenants)}
        if not request.keyspace and request.tenant not in known:
            names = ", ".join(sorted(known))
            raise invalid(f"there is no tenant {request.tenant!r}; there are {names}")
        return request.tenant, _digest(request.keyspace)

    async def _pin(self, request: admin.PinRequest) -> admin.PinReply:
        chain = chain_of(request.chain, self._inbox.limits)
        classes = request.class_count or CLASS_COUNT
        if classes > CLASS_COUNT:
            raise invalid(f"class_count is {classes}, allowed are 1 to {CLASS_COUNT}")
        keyspace = _digest(request.keyspace)
        _say("pin", "", keyspace, f"{len(chain) // DIGEST_BYTES} chunks, {classes} classes")
        outcome = await self._ask(lambda n: PinWanted(n, keyspace, chain, classes))
        assert isinstance(outcome, Pinned), outcome
        return admin.PinReply(pin=outcome.pin, counts=outcome.counts, bytes=outcome.size_bytes)

    async def _unpin(self, request: admin.UnpinRequest) -> admin.UnpinReply:
        _say("unpin", "", b"", f"pin {request.pin}")
        await self._ask(lambda n: UnpinWanted(n, request.pin))
        return admin.UnpinReply()

    async def _ask(self, make_wish: Callable[[int], Event]) -> Outcome:
        """Post a wish and wait for its answer; raise what it was refused with."""
        request = self._inbox.next_request()
        answered = self.link.expect(request)
        self._inbox.post(make_wish(request))
        outcome = await answered
        if isinstance(outcome, KvdError):
            raise outcome
        return outcome


def _say(verb: str, tenant: str, keyspace: bytes, more: str = "") -> None:
    """Leave a trace of what an operator does."""
    parts = (f"tenant {tenant}" * bool(tenant), f"keyspace {keyspace.hex()[:12]}" * bool(keyspace))
    _log.info("an operator asks to %s: %s", verb, " ".join(filter(None, (*parts, more))))


def _digest(data: bytes) -> bytes:
    if len(data) not in (0, DIGEST_BYTES):
        raise invalid(f"keyspace has {len(data)} bytes; it is a digest of {DIGEST_BYTES}")
    return data

"""The question without data: how much of a prefix is there. On the I/O thread."""

import asyncio
from collections.abc import Sequence

from kvd.client.messages import lane_message, parse_counts
from kvd.client.outcomes import Found, Reason
from kvd.client.scope import Scope
from kvd.errors import KvdError
from kvd.limits import DIGEST_BYTES
from kvd.types import Lane
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind


async def find(
    scope: Scope, chain: bytes, lanes: Sequence[Lane], deadline_s: float, *, lease: bool
) -> Found:
    """Return the chunks per class that all `lanes` have; a failure is a miss with its reason."""
    scope.link.counters.lookups += 1
    loop = asyncio.get_running_loop()
    deadline_at = loop.time() + deadline_s
    try:
        session = scope.link.session()
        handle, _ = await session.keyspace(scope.keyspace, deadline_s)
        left_s = deadline_at - loop.time()
        message = pb.LookupRequest(
            keyspace=handle,
            lanes=[lane_message(lane) for lane in lanes],
            chain=chain,
            lease=lease,
            deadline_ms=max(1, int(left_s * 1000)),
        )
        reply = await session.requests.request(FrameKind.LOOKUP, message, left_s)
        assert isinstance(reply, pb.LookupReply)
        counts = parse_counts(reply.counts, len(chain) // DIGEST_BYTES)
    except KvdError as error:
        return Found((0, 0, 0), 0, scope.missed(error))
    if counts[0] == 0:
        scope.link.counters.miss(Reason.NOT_STORED)
        return Found(counts, 0, Reason.NOT_STORED)
    return Found(counts, scope.held.hold(session, reply.lease))


async def let_go(scope: Scope, lease: int) -> None:
    """Release a lease that a lookup was granted and no fetch took over."""
    try:
        session = scope.link.session()
    except KvdError:
        return
    number = scope.held.take(lease, session)
    if number:
        session.requests.tell(FrameKind.RELEASE, pb.ReleaseRequest(lease=number))

"""What is asked about a keyspace beside its data: lookup, prefetch, clear; and their answers.

`lanes` None means the space's own. Every question raises INVALID for arguments that cannot be.
"""

from collections.abc import Sequence

from google.protobuf.message import Message

from kvd.client.asking import Question
from kvd.client.messages import lane_message, parse_counts, said
from kvd.client.outcomes import Cleared, Found, Reason
from kvd.client.scope import Scope, check_class_count, chunk_count, told_ms
from kvd.client.session import Session
from kvd.errors import KvdError
from kvd.types import Lane
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import Feature, FrameKind


def lookup(
    scope: Scope,
    chain: bytes,
    lanes: Sequence[Lane] | None,
    deadline_s: float | None,
    *,
    lease: bool,
) -> Question[Found]:
    """How many leading chunks of `chain` do all `lanes` have; with `lease` they are held."""
    count, seconds = chunk_count(chain), scope.deadline(deadline_s)
    asked = _messages(scope, lanes)
    scope.link.counters.lookups += 1

    def say(handle: int) -> Message:
        return pb.LookupRequest(
            keyspace=handle,
            lanes=asked,
            chain=chain,
            lease=lease,
            deadline_ms=max(1, int(seconds * 1000)),
        )

    def take(session: Session, reply: Message) -> Found:
        assert isinstance(reply, pb.LookupReply)
        counts = parse_counts(reply.counts, count)
        if counts[0] == 0:
            scope.link.counters.miss(Reason.NOT_STORED)
            return Found(counts, 0, Reason.NOT_STORED)
        return Found(counts, scope.held.hold(session, reply.lease))

    def unwanted(answer: Found | KvdError) -> None:
        if isinstance(answer, Found):
            let_go(scope, answer.lease)

    return Question(scope, FrameKind.LOOKUP, say, take, seconds, unwanted=unwanted)


def prefetch(
    scope: Scope,
    chain: bytes,
    class_count: int,
    lanes: Sequence[Lane] | None,
    deadline_s: float | None,
) -> Question[Found]:
    """As a lookup, and what is not in memory is to be read into it."""
    count, seconds = chunk_count(chain), scope.deadline(deadline_s)
    check_class_count(class_count)
    asked = _messages(scope, lanes)
    scope.link.counters.prefetches += 1

    def say(handle: int) -> Message:
        return pb.PrefetchRequest(
            keyspace=handle, lanes=asked, chain=chain, class_count=class_count
        )

    def take(session: Session, reply: Message) -> Found:
        assert isinstance(reply, pb.PrefetchReply)
        counts = parse_counts(reply.counts, count)
        return Found(counts)

    return Question(scope, FrameKind.PREFETCH, say, take, seconds, Feature.PREFETCH)


def clear(scope: Scope, deadline_s: float | None) -> Question[Cleared]:
    """Forget all chunks of the keyspace."""
    seconds = scope.deadline(deadline_s)

    def say(handle: int) -> Message:
        return pb.ClearRequest(keyspace=handle, deadline_ms=told_ms(seconds))

    def take(session: Session, reply: Message) -> Cleared:
        assert isinstance(reply, pb.ClearReply)
        return Cleared(reply.chunks, reply.held)

    return Question(scope, FrameKind.CLEAR, say, take, seconds, Feature.CLEAR)


def found_of(scope: Scope, answer: Found | KvdError) -> Found:
    """Return the answer, a failure as a miss with its reason; raise the caller's own mistakes."""
    if isinstance(answer, KvdError):
        return Found((0, 0, 0), 0, scope.missed(answer))
    return answer


def cleared_of(scope: Scope, answer: Cleared | KvdError) -> Cleared:
    """Return the answer, a failure with its reason; raise the caller's own mistakes."""
    if isinstance(answer, KvdError):
        return Cleared(0, 0, scope.missed(answer))
    return answer


def _messages(scope: Scope, lanes: Sequence[Lane] | None) -> list[pb.Lane]:
    return [said(lane_message, lane) for lane in ((scope.lane,) if lanes is None else lanes)]


def let_go(scope: Scope, lease: int) -> None:
    """Release a lease that a lookup was granted and no fetch took over; from any thread."""
    try:
        session = scope.link.session()
    except KvdError:
        return
    number = scope.held.take(lease, session)
    if number:
        session.requests.tell(FrameKind.RELEASE, pb.ReleaseRequest(lease=number))

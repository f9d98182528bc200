"""A fetch between its promise and its one final answer: what comes from disk, and byte delivery."""

import numpy as np

from kvd.core import postpone, waits
from kvd.core.effects import (
    WHOLE,
    WHOLES,
    Answer,
    DeliverMore,
    Effect,
    FetchDone,
    Shortfall,
    StopDelivery,
    TellReady,
)
from kvd.core.events import CancelWanted, DeliveryEnded, DeliveryMoved
from kvd.core.leases import RELEASED, condemn_read, end, lose, renew, revoke
from kvd.core.state import Pending, Session, State
from kvd.core.transitions import LeaseState
from kvd.errors import ErrorKind, FaultKind, KvdError
from kvd.types import CLASS_COUNT

Ready = tuple[int, int, int]


def ready_of(state: State, strips: tuple[np.ndarray, ...], before: Ready = (0, 0, 0)) -> Ready:
    """Return per class how many leading pieces of each of its strips are in dram, or WHOLE.

    What was WHOLE `before` is so still.
    """
    missing = state.index.missing.reshape(-1)
    ready = []
    for each, known in zip(strips, before, strict=True):
        if known == WHOLE:
            ready.append(WHOLE)
            continue
        words = missing[each]
        words = words[words != 0]
        # The lowest bit that is missing anywhere: as many pieces come before it.
        lowest = words & (~words + np.uint64(1))
        ready.append(int(lowest.min()).bit_length() - 1 if len(words) else WHOLE)
    return ready[0], ready[1], ready[2]


def left_of(state: State, strips: tuple[np.ndarray, ...]) -> int:
    """Return the sum of all words of missing pieces, exactly: halves of them pass no word."""
    words = np.concatenate([state.index.missing.reshape(-1)[each].ravel() for each in strips])
    high, low = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
    return (int(high.sum()) << 32) + int(low.sum())


def progress(state: State) -> list[Effect]:
    """Tell those who wait for reads of what has come; end what is whole, or has failed."""
    ssd, effects = state.ssd, []
    assert ssd is not None
    for wish in list(state.pending.values()):
        if wish.ready != WHOLES:
            effects += _progress_of(state, wish, failed=ssd.reads_failed)
    ssd.reads_failed = False
    return effects


def _progress_of(state: State, wish: Pending, *, failed: bool) -> list[Effect]:
    if failed:
        _cut(state, wish)
    if wish.cut and not wish.mapped:
        _count_cut(state, wish)
        gone = KvdError(ErrorKind.UNAVAILABLE, "a strip that was promised could not be read")
        return [StopDelivery(wish.request), *answer_pending(state, wish.request, gone)]
    _renew_by_disk(state, wish)
    ready = ready_of(state, wish.strips, wish.ready)
    effects: list[Effect] = []
    if ready != wish.ready:
        wish.ready = ready
        if not wish.mapped:
            return [DeliverMore(wish.request, ready)]
        if not wish.cut:  # It would be heard as said of chunks that are not to come.
            effects.append(TellReady(wish.request, wish.session, ready))
    if ready != WHOLES:
        return effects
    done = FetchDone(0)
    if wish.cut:
        _count_cut(state, wish)
        done = FetchDone(0, wish.counts, Shortfall.READ_FAILED)
    return [*effects, *answer_pending(state, wish.request, done)]


def _renew_by_disk(state: State, wish: Pending) -> None:
    """A disk that moves is progress, too; until the wish's deadline at the latest."""
    left, lease = left_of(state, wish.strips), state.leases[wish.lease]
    if left < wish.left and lease.state == LeaseState.GRANTED:
        renew(state, lease)
    wish.left = left


def _count_cut(state: State, wish: Pending) -> None:
    state.counts.fetch_cuts[state.sessions[wish.session].tenant] += 1


def _cut(state: State, wish: Pending) -> None:
    """Leave out of the promise what could not be read, and what is no use without it (I5, I6)."""
    index = state.index
    failed, slab = index.failed.reshape(-1), index.slab.reshape(-1)
    limit, counts, strips = len(wish.strips[0]), [], []
    for plane_class in range(CLASS_COUNT):
        each = wish.strips[plane_class][:limit]
        lost = np.flatnonzero((failed[each] | (slab[each] == 0)).any(axis=1))
        if len(lost):
            limit = int(lost[0])
        limit = min(limit, len(each))
        counts.append(limit)
        strips.append(each[:limit])
    wish.cut = wish.cut or tuple(counts) != wish.counts
    wish.counts, wish.strips = (counts[0], counts[1], counts[2]), tuple(strips)


def answer_pending(state: State, request: int, outcome: FetchDone | KvdError) -> list[Effect]:
    """Give the one final answer of a pending wish, unless it was given before (I10)."""
    wish = state.pending.pop(request, None)
    if wish is None:
        return []
    state.sessions[wish.session].requests.remove(request)
    return [Answer(request, wish.session, outcome)]


def on_delivery_moved(state: State, event: DeliveryMoved) -> list[Effect]:
    lease = state.leases.get(state.delivering.get(event.request, 0))
    if lease is not None and lease.state == LeaseState.GRANTED:
        renew(state, lease)
    return []


def on_delivery_ended(state: State, event: DeliveryEnded) -> list[Effect]:
    """Answer the wish; the lease stays with the reader, or ends if it was lost meanwhile."""
    lease = state.leases[state.delivering.pop(event.request)]
    lease.deliveries -= 1
    tenant, counts = state.sessions[lease.session].tenant, state.counts
    counts.deliveries[tenant, "whole" if event.fault is None else "ended_early"] += 1
    counts.delivered_bytes[tenant] += event.delivered_bytes
    outcome: FetchDone | KvdError = FetchDone(event.delivered_bytes)
    if event.fault is not None:
        kind = ErrorKind.LOST
        if event.fault.kind == FaultKind.CHECKSUM:
            kind = ErrorKind.CORRUPT
        outcome = KvdError(kind, event.fault.message)
    if event.broken is not None:
        lane, chunk = event.broken
        condemn_read(state, lease, [lane << 24 | chunk])
    effects = answer_pending(state, event.request, outcome)
    if lease.state == LeaseState.LOST and lease.free_at_ns <= state.now_ns and not lease.deliveries:
        effects += end(state, lease, RELEASED) if lease.released else revoke(state, lease)
    return effects


def on_cancel(state: State, event: CancelWanted) -> list[Effect]:
    if answered := postpone.on_cancel(state, event.request, event.session):
        return answered
    if waits.on_cancel(state, event.request, event.session):
        return waits.settle(state)
    wish = state.pending.get(event.request)
    if wish is None or wish.session != event.session:
        return []  # Answered already; the two crossed.
    late = KvdError(ErrorKind.LATE, "cancelled by the client")
    return [*_stop(wish), *answer_pending(state, event.request, late)]


def _stop(wish: Pending) -> list[Effect]:
    return [] if wish.mapped else [StopDelivery(wish.request)]


def end_of_session(state: State, session: Session) -> list[Effect]:
    """Stop its deliveries and take its leases back; there is nobody left to answer."""
    effects: list[Effect] = []
    waits.end_of_session(state, session)
    postpone.end_of_session(state, session)
    for request in sorted(session.requests):
        effects += _stop(state.pending.pop(request))
    session.requests.clear()
    for lease_id in sorted(session.leases):
        lease = state.leases[lease_id]
        if lease.state == LeaseState.GRANTED:
            lose(state, lease)
    return effects


def on_tick(state: State) -> list[Effect]:
    """Answer LATE what passed its deadline."""
    effects: list[Effect] = []
    for wish in [w for w in state.pending.values() if w.deadline_ns <= state.now_ns]:
        late = KvdError(ErrorKind.LATE, "the deadline passed before everything was delivered")
        effects += _stop(wish)
        effects += answer_pending(state, wish.request, late)
    return effects

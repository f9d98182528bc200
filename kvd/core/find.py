"""Lookup and fetch: the longest prefix per class over all lanes, promised under one lease.

Both answer the same question; a fetch also walks the chain and names places.
"""

import numpy as np

from kvd.core.effects import (
    Answer,
    Deliver,
    Effect,
    FetchDone,
    Found,
    LaneColumns,
    Promise,
    Shortfall,
    StopDelivery,
    Tell,
)
from kvd.core.events import (
    CancelWanted,
    Delivery,
    DeliveryEnded,
    DeliveryMoved,
    FetchWanted,
    LookupWanted,
)
from kvd.core.index import NO_ROW, Index, Tree
from kvd.core.keyspaces import tree_of
from kvd.core.leases import end, find_lease, grant, lose, renew, revoke
from kvd.core.slabs import show
from kvd.core.state import Pending, Session, State
from kvd.core.transitions import LeaseState
from kvd.errors import ErrorKind, FaultKind, KvdError
from kvd.limits import DIGEST_BYTES
from kvd.policy.value import heat_after
from kvd.types import CLASS_COUNT

Counts = tuple[int, int, int]


def _trees(state: State, event: LookupWanted | FetchWanted) -> tuple[Session, tuple[Tree, ...]]:
    assert event.lanes
    found = [tree_of(state, event.session, event.keyspace, lane) for lane in event.lanes]
    if len(set(event.lanes)) != len(event.lanes):
        raise KvdError(ErrorKind.INVALID, "the same lane is asked for twice")
    return found[0][0], tuple(tree for _, tree in found)


def _counts(index: Index, trees: tuple[Tree, ...], chain: bytes, class_count: int) -> Counts:
    """Return the chunks that every lane has, per class; never growing (I6)."""
    counts, known = [0] * CLASS_COUNT, chain
    for plane_class in range(class_count):
        for tree in trees:
            known = known[: index.count(tree, known, plane_class) * DIGEST_BYTES]
        counts[plane_class] = len(known) // DIGEST_BYTES
    return counts[0], counts[1], counts[2]


def _pins(
    index: Index, trees: tuple[Tree, ...], chain: bytes, counts: Counts
) -> list[tuple[int, int]]:
    pins = []
    for tree in trees:
        for plane_class, count in enumerate(counts):
            if count:
                digest = chain[(count - 1) * DIGEST_BYTES : count * DIGEST_BYTES]
                pins.append((tree.rows[digest], plane_class))
    return pins


def _touch(state: State, trees: tuple[Tree, ...], chain: bytes, counts: Counts) -> None:
    """Heat the end of the prefix: what it was built on inherits the heat when it goes."""
    if counts[0]:
        digest = chain[(counts[0] - 1) * DIGEST_BYTES : counts[0] * DIGEST_BYTES]
        for tree in trees:
            row = tree.rows[digest]
            state.index.heat[row] = heat_after(state.index.heat[row], state.now_ns)


def _size_bound(trees: tuple[Tree, ...], counts: Counts) -> int:
    return sum(
        count * tree.strip_bytes_max[plane_class]
        for tree in trees
        for plane_class, count in enumerate(counts)
    )


def _uncondemned(index: Index, trees: tuple[Tree, ...], chain: bytes) -> bytes:
    """Cut a chain before the first chunk that is condemned: a fetch would not name it either."""
    end = len(chain)
    for tree in trees:
        for at in range(0, end, DIGEST_BYTES):
            row = tree.rows.get(chain[at : at + DIGEST_BYTES], NO_ROW)
            if row == NO_ROW or index.condemned[row]:
                end = at
                break
    return chain[:end]


def on_lookup(state: State, event: LookupWanted) -> list[Effect]:
    session, trees = _trees(state, event)
    chain = event.chain
    if state.index.condemned.any():  # Rare: else a bisection is enough.
        chain = _uncondemned(state.index, trees, chain)
    counts = _counts(state.index, trees, chain, CLASS_COUNT)
    lease = 0
    if event.lease and counts[0]:
        pins = _pins(state.index, trees, event.chain, counts)
        lease = grant(state, session, pins, _size_bound(trees, counts)).id
        _touch(state, trees, event.chain, counts)
    return [Answer(event.request, event.session, Found(counts, lease))]


def _walk(
    index: Index, trees: tuple[Tree, ...], chain: bytes, class_count: int
) -> tuple[list[np.ndarray], Counts, Shortfall]:
    """Return the rows of every lane, and the counts of what really follows each other."""
    counts = _counts(index, trees, chain, class_count)
    rows = [index.rows_of(tree, chain, counts[0]) for tree in trees]
    sound = min(len(lane) for lane in rows)
    reason = Shortfall.NONE
    if sound < counts[0]:
        reason = Shortfall.CONDEMNED
        # What lies behind the cut may have misled the bisection of the other classes.
        counts = _counts(index, trees, chain[: sound * DIGEST_BYTES], class_count)
        rows = [lane[:sound] for lane in rows]
    elif counts[class_count - 1] < len(chain) // DIGEST_BYTES:
        reason = Shortfall.NOT_STORED
    assert counts[0] == sound
    return rows, counts, reason


def _columns(index: Index, rows: np.ndarray, counts: Counts) -> LaneColumns:
    per_class = [rows[:count] for count in counts]

    def column(values: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(values[lane, c] for c, lane in enumerate(per_class))

    return LaneColumns(
        index.generation[rows], index.profile[rows],
        column(index.slab), column(index.offset), column(index.size), column(index.root),
    )  # fmt: skip


def on_fetch(state: State, event: FetchWanted) -> list[Effect]:
    """Promise what is there under a lease, then name it, or have it delivered."""
    session, trees = _trees(state, event)
    index, limits = state.index, state.config.limits
    layers = tuple(tree.grid.layers for tree in trees)
    _check_fetch(state, session, event, layers)
    held = find_lease(state, event.session, event.lease) if event.lease else None
    rows, counts, reason = _walk(index, trees, event.chain, event.class_count)
    if not counts[0]:
        return [
            *(end(state, held) if held and not held.deliveries else []),
            Tell(event.request, event.session, _nothing(reason)),
            Answer(event.request, event.session, FetchDone(0)),
        ]
    pins = _pins(index, trees, event.chain, counts)
    # The new lease first, then the old one ends: nothing is free in between.
    over = held if held and not held.deliveries else None
    lease = grant(state, session, pins, _size_bound(trees, counts), over)
    _touch(state, trees, event.chain, counts)
    effects: list[Effect] = end(state, over) if over else []
    columns = tuple(_columns(index, lane, counts) for lane in rows)
    promise = Promise(lease.id, counts, columns, reason, limits.lease_ttl_ns)
    if event.delivery == Delivery.MAP:
        named = {int(s) for lane in columns for c in lane.slabs for s in np.unique(c)}
        effects += show(state, session, named)
        effects.append(Tell(event.request, event.session, promise))
        effects.append(Answer(event.request, event.session, FetchDone(0)))
        return effects
    lease.deliveries += 1
    state.delivering[event.request] = lease.id
    deadline_ns = min(event.deadline_ns, state.now_ns + limits.deadline_ns_max)
    state.pending[event.request] = Pending(event.request, session.id, lease.id, deadline_ns)
    session.requests.add(event.request)
    cells = tuple(len(tree.grid.row) for tree in trees)
    effects.append(Tell(event.request, event.session, promise))
    effects.append(
        Deliver(
            event.request,
            session.id,
            counts,
            columns,
            event.layer_begin,
            event.layer_end or max(layers),
            layers,
            cells,
            event.rate_bits,
        )  # fmt: skip
    )
    return effects


def _nothing(reason: Shortfall) -> Promise:
    none = tuple(np.zeros(0, np.uint64) for _ in range(CLASS_COUNT))
    few = tuple(np.zeros(0, np.uint32) for _ in range(CLASS_COUNT))
    empty = LaneColumns(none[0], none[0], few, none, few, none)
    return Promise(0, (0, 0, 0), (empty,), reason, 0)


def _check_fetch(
    state: State, session: Session, event: FetchWanted, layers: tuple[int, ...]
) -> None:
    assert event.request not in state.pending
    if not 1 <= event.class_count <= CLASS_COUNT:
        raise KvdError(
            ErrorKind.INVALID, f"class_count is {event.class_count}, allowed are 1 to {CLASS_COUNT}"
        )
    end_layer = event.layer_end or max(layers)
    if not 0 <= event.layer_begin < end_layer <= max(layers):
        raise KvdError(
            ErrorKind.INVALID,
            f"layers {event.layer_begin} to {event.layer_end} are outside 0 to {max(layers)}",
        )
    limit = state.config.limits.requests_per_session_max
    if len(session.requests) >= limit:
        raise KvdError(
            ErrorKind.OVERLOADED,
            f"session has {limit} unanswered requests, the limit requests_per_session_max",
            retry_after_ms=100,
        )


# ---- byte delivery ----


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
    outcome: FetchDone | KvdError = FetchDone(event.delivered_bytes)
    if event.fault is not None:
        kind = ErrorKind.LOST
        if event.fault.kind == FaultKind.CHECKSUM:
            kind = ErrorKind.CORRUPT
        outcome = KvdError(kind, event.fault.message)
    effects = answer_pending(state, event.request, outcome)
    if lease.state == LeaseState.LOST and lease.free_at_ns <= state.now_ns and not lease.deliveries:
        effects += end(state, lease) if lease.released else revoke(state, lease)
    return effects


def on_cancel(state: State, event: CancelWanted) -> list[Effect]:
    wish = state.pending.get(event.request)
    if wish is None or wish.session != event.session:
        return []  # Answered already; the two crossed.
    late = KvdError(ErrorKind.LATE, "cancelled by the client")
    return [StopDelivery(event.request), *answer_pending(state, event.request, late)]


def end_of_session(state: State, session: Session) -> list[Effect]:
    """Stop its deliveries and take its leases back; there is nobody left to answer."""
    effects: list[Effect] = []
    for request in sorted(session.requests):
        del state.pending[request]
        effects.append(StopDelivery(request))
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
        effects.append(StopDelivery(wish.request))
        effects += answer_pending(state, wish.request, late)
    return effects

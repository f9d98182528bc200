"""Lookup and fetch: the longest prefix per class over all lanes, promised under one lease.

Both answer the same question; a fetch also walks the chain and names places.
"""

import numpy as np

from kvd.core import postpone, tallies
from kvd.core.deliver import left_of, ready_of
from kvd.core.effects import (
    WHOLES,
    Answer,
    Deliver,
    Effect,
    FetchDone,
    Found,
    LaneColumns,
    Promise,
    Shortfall,
    Tell,
)
from kvd.core.events import Delivery, FetchWanted, LookupWanted, PrefetchWanted
from kvd.core.index import NO_ROW, Index, Tree
from kvd.core.keyspaces import need_request, tree_of
from kvd.core.leases import TAKEN_OVER, end, find_lease, grant
from kvd.core.load import Plan, plan
from kvd.core.slabs import show
from kvd.core.state import Lease, Pending, Session, State
from kvd.core.story import Miss
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES
from kvd.policy.value import heat_after, heats_after
from kvd.types import CLASS_COUNT

Counts = tuple[int, int, int]


def _trees(
    state: State, event: LookupWanted | FetchWanted | PrefetchWanted
) -> tuple[Session, tuple[Tree, ...]]:
    assert event.lanes
    found = [tree_of(state, event.session, event.keyspace, lane) for lane in event.lanes]
    if len(set(event.lanes)) != len(event.lanes):
        raise KvdError(ErrorKind.INVALID, "the same lane is asked for twice")
    return found[0][0], tuple(tree for _, tree in found)


def _counts(index: Index, trees: tuple[Tree, ...], chain: bytes, class_count: int) -> Counts:
    """Return the chunks that every lane has, per class; never growing (I6)."""
    counts, known = [0] * CLASS_COUNT, chain
    for plane_class in range(class_count):
        length = -1
        while length != len(known):  # Of a chain that never was a lane may have less than it said.
            length = len(known)
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


def _note_miss(
    state: State, event: LookupWanted | FetchWanted, trees: tuple[Tree, ...], first: int
) -> None:
    """Remember a question that found only `first` chunks whole, of a lane that lacks the next."""
    asked = len(event.chain) // DIGEST_BYTES
    if first == asked:
        return
    begin = first * DIGEST_BYTES
    chunk = event.chain[begin : begin + DIGEST_BYTES]
    before = event.chain[max(0, begin - DIGEST_BYTES) : begin]
    lacking = (t for t in trees if not _is_whole(state.index, t, chunk))
    tree = next(lacking, trees[0])
    assert tree.keyspace is not None
    state.story.miss(
        Miss(
            state.now_ns,
            tree.tenant,
            event.session,
            tree.digest,
            tree.keyspace,
            tree.lane,
            chunk,
            before,
            first,
            asked,
        )  # fmt: skip
    )


def _is_whole(index: Index, tree: Tree, digest: bytes) -> bool:
    row = tree.rows.get(digest, NO_ROW)
    return row != NO_ROW and index.complete(row)


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
    _note_miss(state, event, trees, counts[-1])
    tallies.on_lookup(state.counts, session.tenant, event, counts)
    return [Answer(event.request, event.session, Found(counts, lease))]


def walk(
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
    """Promise what is there or can be read under a lease, then name it, or have it delivered."""
    session, trees = _trees(state, event)
    index = state.index
    layers = tuple(tree.grid.layers for tree in trees)
    _check_fetch(state, session, event, layers)
    held = find_lease(state, event.session, event.lease) if event.lease else None
    rows, counts, reason = walk(index, trees, event.chain, event.class_count)
    planned = Plan(counts, (), reason, [])
    if counts[0]:
        planned = plan(state, session.tenant, rows, counts)
        if postpone.waits(state, event, planned.reason):
            return planned.effects
    _note_miss(state, event, trees, counts[event.class_count - 1])
    over = held if held and not held.deliveries else None
    if not planned.counts[0]:
        promise = _nothing(planned.reason or reason)
        tallies.on_fetch(state, session.tenant, event, planned, promise)
        return [
            *planned.effects,
            *(end(state, over, TAKEN_OVER) if over else []),
            Tell(event.request, event.session, promise),
            Answer(event.request, event.session, FetchDone(0)),
        ]
    counts = planned.counts
    pins = _pins(index, trees, event.chain, counts)
    named = np.concatenate([each.ravel() for each in planned.strips])
    # The new lease first, then the old one ends: nothing is free in between.
    try:
        lease = grant(state, session, pins, _size_bound(trees, counts), over, named)
    except KvdError as refusal:
        # What is being read for it is read all the same: it is in dram for the next one.
        return [*planned.effects, Answer(event.request, event.session, refusal)]
    for lane in rows:
        index.heat[lane] = heats_after(index.heat[lane], state.now_ns)
    effects = planned.effects + (end(state, over, TAKEN_OVER) if over else [])
    columns = tuple(_columns(index, lane[: counts[0]], counts) for lane in rows)
    promise = Promise(
        lease.id, counts, columns, planned.reason or reason, state.config.limits.lease_ttl_ns,
        ready_of(state, planned.strips),
    )  # fmt: skip
    tallies.on_fetch(state, session.tenant, event, planned, promise)
    deliver = _deliver_mapped if event.delivery == Delivery.MAP else _deliver_bytes
    return effects + deliver(state, event, lease, promise, planned, trees)


def _wait(state: State, event: FetchWanted, lease: Lease, promise: Promise, planned: Plan) -> None:
    deadline_ns = min(event.deadline_ns, state.now_ns + state.config.limits.deadline_ns_max)
    mapped = event.delivery == Delivery.MAP
    state.pending[event.request] = Pending(
        event.request, event.session, lease.id, deadline_ns, mapped,
        planned.strips, promise.ready,
        counts=planned.counts, left=left_of(state, planned.strips),
    )  # fmt: skip
    state.sessions[event.session].requests.add(event.request)


def _deliver_mapped(
    state: State,
    event: FetchWanted,
    lease: Lease,
    promise: Promise,
    planned: Plan,
    trees: tuple[Tree, ...],
) -> list[Effect]:
    session = state.sessions[event.session]
    named = {int(s) for lane in promise.lanes for c in lane.slabs for s in np.unique(c)}
    told = [*show(state, session, named), Tell(event.request, session.id, promise)]
    if promise.ready == WHOLES:
        return [*told, Answer(event.request, session.id, FetchDone(0))]
    _wait(state, event, lease, promise, planned)
    return told


def _deliver_bytes(
    state: State,
    event: FetchWanted,
    lease: Lease,
    promise: Promise,
    planned: Plan,
    trees: tuple[Tree, ...],
) -> list[Effect]:
    lease.deliveries += 1
    state.delivering[event.request] = lease.id
    _wait(state, event, lease, promise, planned)
    layers = tuple(tree.grid.layers for tree in trees)
    deliver = Deliver(
        event.request, event.session, promise.counts, promise.lanes,
        event.layer_begin, event.layer_end or max(layers), layers,
        tuple(len(tree.grid.row) for tree in trees), event.rate_bits, promise.ready,
    )  # fmt: skip
    return [Tell(event.request, event.session, promise), deliver]


def on_prefetch(state: State, event: PrefetchWanted) -> list[Effect]:
    """Have read what is on disk only, for a fetch that is to come; nothing is held for it."""
    session, trees = _trees(state, event)
    _check_classes(event.class_count)
    rows, counts, reason = walk(state.index, trees, event.chain, event.class_count)
    planned = Plan(counts, (), reason, [])
    if counts[0]:
        planned = plan(state, session.tenant, rows, counts)
        _touch(state, trees, event.chain, planned.counts)
    state.counts.prefetches[session.tenant] += 1
    answer = Answer(event.request, event.session, Found(planned.counts, 0))
    return [*planned.effects, answer]


def _nothing(reason: Shortfall) -> Promise:
    none = tuple(np.zeros(0, np.uint64) for _ in range(CLASS_COUNT))
    few = tuple(np.zeros(0, np.uint32) for _ in range(CLASS_COUNT))
    empty = LaneColumns(none[0], none[0], few, none, few, none)
    return Promise(0, (0, 0, 0), (empty,), reason, 0)


def _check_fetch(
    state: State, session: Session, event: FetchWanted, layers: tuple[int, ...]
) -> None:
    assert event.request not in state.pending
    _check_classes(event.class_count)
    end_layer = event.layer_end or max(layers)
    if not 0 <= event.layer_begin < end_layer <= max(layers):
        raise KvdError(
            ErrorKind.INVALID,
            f"layers {event.layer_begin} to {event.layer_end} are outside 0 to {max(layers)}",
        )
    need_request(state, session)


def _check_classes(class_count: int) -> None:
    if not 1 <= class_count <= CLASS_COUNT:
        raise KvdError(
            ErrorKind.INVALID, f"class_count is {class_count}, allowed are 1 to {CLASS_COUNT}"
        )

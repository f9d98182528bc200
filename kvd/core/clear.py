"""Clear: a keyspace is forgotten. Nothing of it is offered from the first moment on.

The rows go a few at a time, deepest first, so that no step takes long; the answer comes when the
catalog has forgotten all of them, durably (I7).
"""

import numpy as np

from kvd.core.disk_effects import Commit
from kvd.core.drops import condemn, drop_all, is_held
from kvd.core.effects import Answer, Cleared, Effect
from kvd.core.events import ClearWanted
from kvd.core.index import Tree
from kvd.core.keyspaces import need_request, open_session
from kvd.core.operator_events import OPERATOR
from kvd.core.slabs import settle
from kvd.core.state import Clear, Pin, Session, State
from kvd.core.story import Why
from kvd.errors import ErrorKind, KvdError
from kvd.types import PlaneClass

ROWS_PER_STEP = 256
CLEARS_MAX = 64  # Under way at a time, those that were answered LATE included.


def on_clear(state: State, event: ClearWanted) -> None:
    """Condemn all chunks of the keyspace; they are dropped from now on."""
    session = open_session(state, event.session)
    found = session.keyspaces.get(event.keyspace)
    if found is None:
        raise KvdError(ErrorKind.INVALID, f"keyspace {event.keyspace} was not registered")
    need_request(state, session)
    begin(
        state, event.request, event.session,
        [tree for tree in state.index.trees if tree.digest == found[0]], event.deadline_ns,
    )  # fmt: skip
    session.requests.add(event.request)
    state.counts.clears[session.tenant] += 1


def begin(state: State, request: int, session: int, trees: list[Tree], deadline_ns: int) -> None:
    """Condemn all chunks of some trees; raise UNAVAILABLE when that cannot be made durable."""
    if state.ssd is not None and state.ssd.broken is not None:
        message = f"clear cannot be made durable: {state.ssd.broken.message}"
        raise KvdError(ErrorKind.UNAVAILABLE, message)
    if len(state.clears) >= CLEARS_MAX:
        message = f"{CLEARS_MAX} clears are under way, the most"
        raise KvdError(ErrorKind.OVERLOADED, message, retry_after_ms=1000)
    digests = {tree.digest for tree in trees}
    for pin in [pin for pin in state.pins.values() if pin.digest in digests]:
        unpin(state, pin)
    index = state.index
    rows = np.array([row for tree in trees for row in tree.rows.values()], np.int64)
    index.condemned[rows] = True
    index.heat[rows] = -np.inf  # What is held now goes first later.
    rows = rows[np.argsort(index.depth[rows], kind="stable")]
    limit_ns = state.now_ns + state.config.limits.deadline_ns_max
    state.clears.append(
        Clear(
            request,
            session,
            min(deadline_ns or limit_ns, limit_ns),
            rows,
            index.generation[rows],
        )  # fmt: skip
    )


def unpin(state: State, pin: Pin) -> None:
    """Let go of what an operator held."""
    del state.pins[pin.id]
    for row, plane_class in pin.pins:
        state.index.pins[row, plane_class] -= 1
        assert state.index.pins[row, plane_class] >= 0
    reads = state.index.reads.reshape(-1)
    reads[pin.reads] -= 1
    assert (reads[pin.reads] >= 0).all()


def advance(state: State) -> list[Effect]:
    """Drop some rows of the oldest clear; answer those that are done, or late."""
    effects: list[Effect] = []
    for clear in state.clears:
        if len(clear.rows):
            effects += _drop_some(state, clear)
            break
    for clear in list(state.clears):
        if not len(clear.rows) and (not clear.untold or _all_told(state)):
            effects += _answer(state, clear, Cleared(clear.chunks, clear.held))
        elif clear.deadline_ns <= state.now_ns:
            # What is left of it goes on: else the catalog would bring it back with a restart.
            late = KvdError(ErrorKind.LATE, "cleared, but not known to be durable by the deadline")
            effects += _answer(state, clear, late)
    return effects


def _all_told(state: State) -> bool:
    ssd = state.ssd
    return ssd is None or (ssd.commit is None and not ssd.journal)


def _drop_some(state: State, clear: Clear) -> list[Effect]:
    index, slabs = state.index, set()
    some, clear.rows = clear.rows[-ROWS_PER_STEP:], clear.rows[:-ROWS_PER_STEP]
    generations = clear.generations[-ROWS_PER_STEP:]
    clear.generations = clear.generations[:-ROWS_PER_STEP]
    clear.untold = True
    for row, generation in zip(some[::-1].tolist(), generations[::-1].tolist(), strict=True):
        if index.generation[row] != generation or not index.present[row, 0]:
            continue  # It went before, or was replaced: that is a put after the clear.
        slabs.update(index.slab[row][index.slab[row] != 0].tolist())
        if is_held(state, row, PlaneClass.ANCHOR) or index.children[row].any():
            condemn(state, row, Why.CLEARED)
            clear.held += 1
        else:
            drop_all(state, [row], PlaneClass.ANCHOR, Why.CLEARED)
            clear.chunks += 1
    return [effect for slab in sorted(slabs) for effect in settle(state, slab)]


def on_commit_sent(state: State, commit: Commit) -> None:
    """What was dropped until now is in this commit."""
    for clear in state.clears:
        if not len(clear.rows) and not clear.commit:
            clear.commit = commit.batch


def on_commit_durable(state: State, batch: int) -> None:
    for clear in state.clears:
        if clear.commit == batch:
            clear.untold = False


def on_commit_failed(state: State, batch: int) -> None:
    for clear in state.clears:
        if clear.commit == batch:
            clear.commit = 0


def _answer(state: State, clear: Clear, outcome: Cleared | KvdError) -> list[Effect]:
    """Tell who asked, if he is there still; forget the clear once no rows of it are left."""
    session, clear.session = clear.session, None
    if not len(clear.rows):
        state.clears.remove(clear)
    if session is None:
        return []
    if session != OPERATOR:
        state.sessions[session].requests.discard(clear.request)
    return [Answer(clear.request, session, outcome)]


def end_of_session(state: State, session: Session) -> None:
    """The clear goes on without anybody to be told."""
    for clear in state.clears:
        if clear.session == session.id:
            session.requests.discard(clear.request)
            clear.session = None

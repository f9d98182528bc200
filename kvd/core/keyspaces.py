"""From a session's handles to trees: the only way a wish reaches the index.

The digest of a keyspace covers the tenant, so no handle of one tenant names another's chunks.
"""

from kvd.core.disk_effects import LaneName
from kvd.core.effects import Answer, Effect, KeyspaceGranted
from kvd.core.events import KeyspaceWanted
from kvd.core.index import NO_ROW, Tree
from kvd.core.state import Session, State
from kvd.core.transitions import SessionState
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace, keyspace_digest, validate_keyspace
from kvd.shape import cell_grid
from kvd.types import Lane


def open_session(state: State, session_id: int) -> Session:
    """Return the session; raise LOST when it has ended."""
    session = state.sessions.get(session_id)
    if session is None or session.state != SessionState.OPEN:
        raise KvdError(ErrorKind.LOST, f"session {session_id} has ended")
    return session


def need_request(state: State, session: Session) -> None:
    """Raise OVERLOADED unless the session may leave one more wish unanswered (I9)."""
    limit = state.config.limits.requests_per_session_max
    if len(session.requests) >= limit:
        raise KvdError(
            ErrorKind.OVERLOADED,
            f"session has {limit} unanswered requests, the limit requests_per_session_max",
            retry_after_ms=100,
        )


def on_keyspace(state: State, event: KeyspaceWanted) -> list[Effect]:
    """Give the session a handle; the same fields give the same handle again."""
    session = open_session(state, event.session)
    validate_keyspace(event.keyspace)
    digest = keyspace_digest(event.keyspace, session.tenant)
    for handle, (known, _) in session.keyspaces.items():
        if known == digest:
            return [Answer(event.request, event.session, KeyspaceGranted(handle, digest))]
    limit = state.config.limits.keyspaces_per_session_max
    if len(session.keyspaces) >= limit:
        raise KvdError(
            ErrorKind.OVERLOADED,
            f"session has {limit} keyspaces, the limit keyspaces_per_session_max",
        )
    handle = len(session.keyspaces) + 1
    session.keyspaces[handle] = (digest, event.keyspace)
    return [Answer(event.request, event.session, KeyspaceGranted(handle, digest))]


def tree_of(state: State, session_id: int, handle: int, lane: Lane) -> tuple[Session, Tree]:
    """Return the session and the tree of one lane of a keyspace it registered.

    A tree that nothing was ever put in is made for this question only: asking costs no memory.
    """
    session = open_session(state, session_id)
    found = session.keyspaces.get(handle)
    if found is None:
        raise KvdError(ErrorKind.INVALID, f"keyspace {handle} was not registered by this session")
    digest, keyspace = found
    grid = cell_grid(keyspace.shape, lane)
    known = state.index.trees_by_key.get((digest, lane))
    return session, known or Tree(NO_ROW, digest, session.tenant, lane, grid, keyspace=keyspace)


def named_tree(state: State, name: LaneName, keyspace: Keyspace, tenant: str) -> Tree | None:
    """Return the tree of what an earlier daemon left, taken in if it is new; None: it cannot be."""
    index = state.index
    known = index.trees_by_key.get((name.keyspace, name.lane))
    if known is not None:
        return known
    try:
        grid = cell_grid(keyspace.shape, name.lane)
    except KvdError:
        return None
    tree = Tree(NO_ROW, name.keyspace, tenant, name.lane, grid, keyspace=keyspace)
    index.adopt(tree)
    return tree

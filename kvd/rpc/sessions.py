"""All live sessions, found by what their clients were told: the nonce once, the token always."""

import asyncio
import errno
import os
import resource

from kvd.core.events import ProcessGone
from kvd.daemon.inbox import Admitted, Inbox
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.peers import Peer, ProcessWatch, open_pidfd
from kvd.rpc.session import Session
from kvd.rpc.slab_channel import SlabChannel

SESSION_DIGITS_MAX = 20
RETRY_MS = 1000  # For a new session, at a bound that only other sessions' ends relieve.


def no_session(error: OSError) -> KvdError:
    """Return why a session could not be made, with a remedy."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        what = f"all {limit} descriptors of the daemon are in use; raise LimitNOFILE"
        return KvdError(ErrorKind.OVERLOADED, what, RETRY_MS)
    return KvdError(ErrorKind.UNAVAILABLE, f"no session could be made: {error}", RETRY_MS)


class Sessions:
    def __init__(self, inbox: Inbox, loop: asyncio.AbstractEventLoop) -> None:
        self.inbox = inbox
        self._watch = ProcessWatch(loop, lambda session: self._on_gone(session))
        self._by_id: dict[int, Session] = {}
        self._by_nonce: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, tenant: str, peer: Peer, channel: SlabChannel) -> tuple[Session, Admitted]:
        """Begin a session; raise KvdError when there can be none now."""
        if self.inbox.is_draining():
            raise KvdError(ErrorKind.UNAVAILABLE, "the daemon is draining; go without", RETRY_MS)
        limit = self.inbox.limits.sessions_max
        if len(self._by_id) >= limit:
            what = f"there are {limit} sessions, the limit sessions_max"
            raise KvdError(ErrorKind.OVERLOADED, what, RETRY_MS)
        session = Session(self.inbox, tenant, peer.uid, channel, self._forget)
        try:
            pidfd = open_pidfd(channel.connection, peer)
        except OSError as error:
            raise no_session(error) from None
        try:
            admitted = self.inbox.admit(tenant, session)
        except OSError as error:
            os.close(pidfd)
            raise no_session(error) from None
        session.id = admitted.session
        self._watch.add(peer, pidfd, session.id)
        self._by_id[session.id] = self._by_nonce[session.nonce] = session
        return session, admitted

    def bind(self, tenant: str, uid: int, nonce: bytes) -> Session:
        """Return the session that awaits its stream; raise DENIED without one."""
        session = self._by_nonce.get(nonce)
        if session is None or session.tenant != tenant or session.uid != uid:
            raise KvdError(ErrorKind.DENIED, "the nonce is not of a session that awaits a stream")
        del self._by_nonce[nonce]
        return session

    def by_token(self, tenant: str, token: str) -> Session | None:
        number, _, _ = token.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < SESSION_DIGITS_MAX):
            return None
        session = self._by_id.get(int(number))
        if session is None or session.tenant != tenant or not session.has_token(token):
            return None
        return session

    def close(self) -> None:
        for session in list(self._by_id.values()):
            session.end()
        self._watch.close()

    def _forget(self, session: Session) -> None:
        self._by_id.pop(session.id, None)
        self._by_nonce.pop(session.nonce, None)

    def _on_gone(self, number: int) -> None:
        session = self._by_id.get(number)
        if session is not None:
            session.end()  # A forked child may hold its sockets open.
        self.inbox.post(ProcessGone(number))

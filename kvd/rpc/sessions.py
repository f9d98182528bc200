"""All live sessions, found by what their clients were told: the nonce once, the token always."""

import asyncio
import errno
import os
import resource
from collections import Counter
from collections.abc import Sequence

from kvd.config import TenantSettings
from kvd.daemon.inbox import Admitted, Inbox
from kvd.errors import ErrorKind, KvdError
from kvd.rpc.attached import AttachStream, NoSlabs, refuse_slabs
from kvd.rpc.peers import Peer, ProcessWatch, open_pidfd
from kvd.rpc.rate import RequestRate
from kvd.rpc.session import Session
from kvd.rpc.sharing import SharedPace
from kvd.rpc.slab_channel import SlabChannel

SESSION_DIGITS_MAX = 20
NOBODY = 0xFFFF_FFFF  # In place of a uid, which no socket has told; as (uid_t) -1, no user's.
RETRY_MS = 1000  # For a new session, at a bound that only other sessions' ends relieve.


def no_session(error: OSError) -> KvdError:
    """Return why a session could not be made, with a remedy."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        what = f"all {limit} descriptors of the daemon are in use; raise LimitNOFILE"
        return KvdError(ErrorKind.OVERLOADED, what, RETRY_MS)
    return KvdError(ErrorKind.UNAVAILABLE, f"no session could be made: {error}", RETRY_MS)


class Sessions:
    def __init__(
        self, inbox: Inbox, loop: asyncio.AbstractEventLoop, tenants: Sequence[TenantSettings] = ()
    ) -> None:
        self.inbox, self._tenants = inbox, [tenant.name for tenant in tenants]
        self._rates = {
            tenant.name: RequestRate(
                tenant.name,
                tenant.requests_per_second,
                inbox.now_ns(),
                lambda name: inbox.observer.rate_refused(name),
            )
            for tenant in tenants
            if tenant.requests_per_second
        }
        behind = inbox.limits.piece_bytes_max
        self._paces = {
            tenant.name: SharedPace(tenant.bytes_per_second, inbox.now_ns, loop.call_later, behind)
            for tenant in tenants
            if tenant.bytes_per_second
        }
        self._watch = ProcessWatch(loop, lambda session: self._on_gone(session))
        self._by_id: dict[int, Session] = {}
        self._by_nonce: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, tenant: str, peer: Peer, channel: SlabChannel) -> tuple[Session, Admitted]:
        """Begin a session; raise KvdError when there can be none now."""
        self._check_room(tenant)
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
        self._begin(session, admitted.session)
        session.pid = peer.pid
        try:
            self._watch.add(peer, pidfd, session.id)
        except OSError as error:
            os.close(admitted.page_descriptor)
            self._forget_attached(session)  # Nothing was lent to its process either.
            raise no_session(error) from None
        self._by_nonce[session.nonce] = session
        return session, admitted

    def attach(self, tenant: str, stream: AttachStream) -> tuple[Session, int]:
        """Begin a session that lives as long as a call, and return the daemon's epoch with it.

        Raise KvdError when there can be none now.
        """
        self._check_room(tenant)
        self._check_share(tenant)
        channel = NoSlabs()
        session = Session(self.inbox, tenant, NOBODY, channel, self._forget_attached)
        session.stream, session.check = stream, refuse_slabs
        channel.on_closed = session.end
        try:
            admitted = self.inbox.admit(tenant, session)
        except OSError as error:
            raise no_session(error) from None
        os.close(admitted.page_descriptor)  # A page that nobody can map.
        self._begin(session, admitted.session)
        return session, admitted.epoch

    def bind(self, tenant: str, uid: int, nonce: bytes) -> Session:
        """Return the session that awaits its stream; raise DENIED without one."""
        session = self._by_nonce.get(nonce)
        if session is None or session.tenant != tenant or session.uid != uid:
            raise KvdError(ErrorKind.DENIED, "the nonce is not of a session that awaits a stream")
        del self._by_nonce[nonce]
        return session

    def get(self, number: int) -> Session | None:
        return self._by_id.get(number)

    def by_token(self, token: str) -> Session | None:
        """Return whose token it is; whether it may be used on this way is the door's to say."""
        number, _, _ = token.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < SESSION_DIGITS_MAX):
            return None
        session = self._by_id.get(int(number))
        return session if session is not None and session.has_token(token) else None

    def close(self) -> None:
        for session in list(self._by_id.values()):
            session.end()
        self._watch.close()

    def _check_room(self, tenant: str) -> None:
        """Refuse beyond the bound; near it, who has his part leaves room for who has not.

        Each tenant is sure of half of an equal part, so that none shuts the others out.
        """
        if self.inbox.is_draining():
            raise KvdError(ErrorKind.UNAVAILABLE, "the daemon is draining; go without", RETRY_MS)
        limit = self.inbox.limits.sessions_max
        held = Counter(session.tenant for session in self._by_id.values())
        sure = limit // (2 * max(1, len(self._tenants)))
        others = (max(0, sure - held[name]) for name in self._tenants if name != tenant)
        owed = sum(others) if held[tenant] >= sure else 0
        if len(self._by_id) + owed >= limit:
            kept = f", {owed} of them kept for other tenants" if owed else ""
            what = f"there is room for {limit} sessions, the limit sessions_max{kept}"
            raise KvdError(ErrorKind.OVERLOADED, what, RETRY_MS)

    def _check_share(self, tenant: str) -> None:
        """Refuse more than an equal part: anybody with a token can attach again and again."""
        share = max(1, self.inbox.limits.sessions_max // max(1, len(self._tenants)))
        held = sum(s.tenant == tenant and s.uid == NOBODY for s in self._by_id.values())
        if held >= share:
            what = (
                f"tenant {tenant} has {held} attached sessions, an equal part of the "
                f"{self.inbox.limits.sessions_max} of sessions_max"
            )
            raise KvdError(ErrorKind.OVERLOADED, what, RETRY_MS)

    def _begin(self, session: Session, number: int) -> None:
        session.id = number
        session.rate = self._rates.get(session.tenant)
        session.pace = self._paces.get(session.tenant)
        self._by_id[number] = session

    def _forget_attached(self, session: Session) -> None:
        """No process holds mappings of it, so nothing has to wait for one's end."""
        self._forget(session)
        self.inbox.end(session.id, gone=True)

    def _forget(self, session: Session) -> None:
        self._by_id.pop(session.id, None)
        self._by_nonce.pop(session.nonce, None)

    def _on_gone(self, number: int) -> None:
        session = self._by_id.get(number)
        if session is not None:
            session.end()  # A forked child may hold its sockets open.
        self.inbox.end(number, gone=True)
